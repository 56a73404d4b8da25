// What bundles and items are called: titles, pictures, categories and prices where the shop has any; else their ids.

import * as api from "./api.js";
import { element } from "./dom.js";
import { language, number, t } from "./words.js";

const AT_ONCE = 900;
const HINTED_IDS = 10;
const known = { bundles: new Map(), items: new Map() };

/** Fetch what is said of these, where it is not known yet; then the functions below have it. */
export async function describe(bundleIds, itemIds) {
  const missing = {
    bundles: [...new Set(bundleIds)].filter((id) => !known.bundles.has(id)),
    items: [...new Set(itemIds)].filter((id) => !known.items.has(id)),
  };
  while (missing.bundles.length + missing.items.length > 0) {
    const bundles = missing.bundles.splice(0, AT_ONCE);
    const items = missing.items.splice(0, AT_ONCE);
    const found = await api.descriptions(bundles, items);
    bundles.forEach((id) => known.bundles.set(id, found.bundles[id] ?? {}));
    items.forEach((id) => known.items.set(id, found.items[id] ?? {}));
  }
}

/** A bundle changed: what is said of it is asked for anew. */
export function forgetBundle(bundleId) {
  known.bundles.delete(bundleId);
}

export const fieldsOf = (bundleId) => known.bundles.get(bundleId) ?? {};
export const itemFields = (itemId) => known.items.get(itemId) ?? {};
export const titleOf = (bundleId) => fieldsOf(bundleId).title || bundleId;
export const itemTitle = (itemId) => itemFields(itemId).title || itemId;

/** Category and price in one line; the id too, where a title stands in its place. */
export function remarks(id, fields) {
  return [
    fields.title ? id : null,
    fields.category,
    typeof fields.price === "number" ? price(fields.price) : null,
  ].filter(Boolean);
}

export function price(value) {
  return number(value, { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}

/** A line of remarks under a title; nothing where there are none. */
export function remarkLine(id, fields) {
  const found = remarks(id, fields);
  return found.length ? element("p", { class: "remarks" }, found.join(" · ")) : null;
}

/** The picture of a bundle or item, where it has one that a page may show: from here, or over https. */
export function picture(fields, size = "") {
  const address = String(fields.image ?? "");
  if (!/^(https:\/\/|\/(?!\/))/.test(address)) {
    return null;
  }
  const image = element("img", { class: `picture ${size}`, src: address, alt: "", loading: "lazy", referrerpolicy: "no-referrer" });
  image.addEventListener("error", () => image.remove());
  return image;
}

/** When a column of times says something: as a date. */
export function date(text) {
  return new Date(text).toLocaleDateString(language, { dateStyle: "medium" });
}

/** Items by title, in their order: several may have one title, and some of these may be owned. */
export function itemGroups(itemIds, owned = new Set()) {
  const groups = new Map();
  for (const id of itemIds) {
    const key = `${owned.has(id)} ${itemTitle(id)}`;
    groups.set(key, [...(groups.get(key) ?? []), id]);
  }
  return [...groups.values()];
}

/** A chip for items of one title: how many they are, their ids as a hint, and whether the user has them. */
export function itemChip(ids, owned = new Set()) {
  const title = itemTitle(ids[0]);
  const several = ids.length > 1 ? ` × ${number(ids.length)}` : "";
  const hint = ids.slice(0, HINTED_IDS).join(", ") + (ids.length > HINTED_IDS ? " …" : "");
  const has = owned.has(ids[0]);
  return element(
    "li",
    { class: has ? "chip owned" : "chip", title: title === hint ? null : hint },
    title + several,
    has ? element("span", { class: "hidden" }, ` ${t("people.hasIt")}`) : null,
  );
}

/** Chips with the titles of items, each title once. */
export function itemChips(itemIds) {
  return itemGroups(itemIds).map((ids) => itemChip(ids));
}

/** A link to the page of a bundle. */
export function bundleLink(bundleId, kind = "") {
  return element("a", { class: kind, href: `#/bundles/${encodeURIComponent(bundleId)}` }, titleOf(bundleId));
}
