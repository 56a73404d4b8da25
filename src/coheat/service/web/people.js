// The view of one person: what they have, what is recommended, and why.

import * as api from "./api.js";
import { bar, barScale, score } from "./charts.js";
import { announce, byId, element, emptiness, fill, skeletons, trouble } from "./dom.js";
import { bundleLink, describe, fieldsOf, itemChip, itemGroups, picture, remarkLine, titleOf } from "./names.js";
import { carrying, parts, reason } from "./reasons.js";
import { searchBox } from "./search.js";
import { number, t } from "./words.js";

const SUGGESTED = 6;
const SHOWN_ITEMS = 12;
const SHOWN_CONTENTS = 8;
const CANNOT_BE_ANSWERED = 422;

let current = null;
let turn = 0;
const justPublished = new Set();

export function remember(bundleId) {
  justPublished.add(bundleId);
}

export function forget(bundleId) {
  justPublished.delete(bundleId);
}

export function linkTo(userId) {
  return `#/people/${encodeURIComponent(userId)}`;
}

export function start() {
  searchBox({
    input: byId("user-search"),
    options: byId("user-options"),
    nouns: t("search.people"),
    find: async (text) => (await api.findUsers(text, 12)).users.map((user) => user.user_id),
    choose: (userId) => {
      if (window.location.hash === linkTo(userId)) {
        show(userId);
      } else {
        window.location.hash = linkTo(userId);
      }
    },
  });
  for (const radio of document.querySelectorAll('input[name="candidates"]')) {
    radio.addEventListener("change", () => current !== null && showList());
  }
  for (const id of ["list-length", "filter-category", "filter-price"]) {
    byId(id).addEventListener("change", () => current !== null && showList());
  }
  offerFilters();
}

/** Filters by category and price, where bundles have these and the service can filter. */
async function offerFilters() {
  try {
    const [{ bundle_columns: columns, categories }, can] = await Promise.all([api.catalogue(), api.canFilter()]);
    byId("category-filter").hidden = !can || categories.length === 0;
    byId("price-filter").hidden = !can || !("price" in columns);
    fill(
      byId("filter-category"),
      element("option", { value: "" }, t("people.anyCategory")),
      categories.map((name) => element("option", {}, name)),
    );
  } catch {
    // Without filters the list is still there, and says itself what is wrong.
  }
}

/** What the list is filtered by; null for nothing. */
function filter() {
  const category = byId("filter-category").value;
  const price = byId("filter-price").valueAsNumber;
  const where = {
    ...(category ? { category: { in: [category] } } : {}),
    ...(Number.isFinite(price) ? { price: { at_most: price } } : {}),
  };
  return Object.keys(where).length ? where : null;
}

/** Show this person, or how to choose one when `userId` is null. */
export async function show(userId) {
  current = userId;
  turn += 1;
  if (userId === null) {
    byId("list-title").textContent = t("people.recommended");
    say("");
    fill(byId("belongings"), element("p", { class: "faint" }, t("people.nobody")));
    fill(
      byId("list"),
      emptiness(t("people.choose"), t("people.chooseHow")),
    );
    await suggest();
    return;
  }
  // The way back from another view leads to the same person.
  document.querySelector('.views [data-view="people"]').setAttribute("href", linkTo(userId));
  byId("user-search").value = userId;
  fill(byId("user-suggestions"));
  byId("list-title").textContent = t("people.recommendedTo", { user: userId });
  await Promise.all([showBelongings(), showList()]);
}

async function suggest() {
  const place = byId("user-suggestions");
  try {
    const { users } = await api.findUsers("", SUGGESTED);
    fill(
      place,
      element("p", { class: "faint" }, t("people.example")),
      element(
        "ul",
        { class: "chips" },
        users.map(({ user_id: userId }) =>
          element("li", {}, element("a", { class: "chip link", href: linkTo(userId) }, userId)),
        ),
      ),
    );
  } catch (error) {
    fill(place, trouble(error, suggest));
  }
}

async function showBelongings() {
  const place = byId("belongings");
  const userId = current;
  place.setAttribute("aria-busy", "true");
  try {
    const found = await api.user(userId);
    await describe(found.bundle_ids, found.item_ids);
    if (userId === current) {
      const bundleChip = (id) => element("li", { class: "chip" }, bundleLink(id));
      fill(
        place,
        chips(t("count.items", { count: found.item_ids.length }), itemGroups(found.item_ids), (ids) => itemChip(ids)),
        chips(t("count.bundles", { count: found.bundle_ids.length }), found.bundle_ids, bundleChip),
      );
    }
  } catch (error) {
    if (userId === current) {
      fill(place, trouble(error, showBelongings));
    }
  } finally {
    place.removeAttribute("aria-busy");
  }
}

/** Chips under a title; of many only some, with a button for the rest. */
function chips(title, ids, chip) {
  const most = SHOWN_ITEMS;
  const list = element("ul", { class: "chips" });
  const draw = (some) => fill(list, some.map(chip));
  draw(ids.slice(0, most));
  return element(
    "div",
    { class: "chip-group" },
    element("h3", {}, title),
    ids.length ? list : element("p", { class: "faint" }, t("none")),
    ids.length > most ? expander(ids.length - most, () => draw(ids)) : null,
  );
}

export function expander(count, expand) {
  return element(
    "button",
    {
      type: "button",
      class: "more",
      onclick: (event) => {
        expand();
        event.currentTarget.remove();
      },
    },
    t("more", { count }),
  );
}

export async function showList() {
  const mine = ++turn;
  const place = byId("list");
  const candidates = document.querySelector('input[name="candidates"]:checked').value;
  const k = Number(byId("list-length").value);
  const userId = current;
  const where = filter();
  place.setAttribute("aria-busy", "true");
  if (!place.querySelector(".card")) {
    fill(place, skeletons(Math.min(k, 5), "card-size"));
  }
  try {
    const [answer, owner] = await Promise.all([
      where === null ? api.recommendations(userId, k, candidates) : api.filtered(userId, k, candidates, where),
      api.user(userId),
    ]);
    const details = await Promise.all(answer.recommendations.map((row) => detail(userId, row)));
    await describe(...mentioned(details));
    if (mine === turn) {
      draw(place, answer, details, new Set(owner.item_ids), candidates, where);
    }
  } catch (error) {
    if (mine === turn) {
      say("");
      fill(place, trouble(error, showList));
    }
  } finally {
    if (mine === turn) {
      place.removeAttribute("aria-busy");
    }
  }
}

async function detail(userId, row) {
  const [contents, why] = await Promise.all([api.bundle(row.bundle_id), explained(userId, row)]);
  return { row, contents, why };
}

/** The bundles and items whose names a list shows. */
function mentioned(details) {
  const bundles = details.flatMap(({ row, why }) => [row.bundle_id, ...carrying(why.user_bundles, "bundle_id")]);
  const items = details.flatMap(({ contents, why }) => [...contents.item_ids, ...carrying(why.user_items, "item_id")]);
  return [bundles, items];
}

/** Why the bundle has its score; the score alone where the model cannot take it apart. */
async function explained(userId, row) {
  try {
    return await api.explanation(userId, row.bundle_id);
  } catch (error) {
    if (error.status !== CANNOT_BE_ANSWERED) {
      throw error;
    }
    const nothing = { bundle_items: [], user_items: [], user_bundles: [] };
    return { history: 0, items: row.score, youth: 0, history_weight: null, terms: [], ...nothing };
  }
}

function draw(place, answer, details, owned, candidates, where) {
  say(listMessage(answer, candidates));
  announce(t("people.announced", { bundles: t("count.bundles", { count: details.length }), user: answer.user_id }));
  if (details.length === 0) {
    const why = where !== null ? "people.emptyFiltered" : candidates === "new" ? "people.emptyNew" : "people.emptyAll";
    fill(place, emptiness(t("people.empty"), t(why)));
    return;
  }
  const scale = barScale(details.flatMap(({ why }) => parts(why).map((part) => part.value)));
  byId("youth-legend").hidden = details.every(({ why }) => why.youth === 0);
  fill(
    place,
    element(
      "ol",
      { class: "cards" },
      details.map((found) => card(found, owned, scale)),
    ),
  );
}

function listMessage(answer, candidates) {
  const fresh = answer.recommendations.filter((row) => row.is_new).length;
  const total = answer.recommendations.length;
  if (total === 0 || candidates === "new") {
    return "";
  }
  if (fresh === 0) {
    return t("people.noneNew");
  }
  return t("people.someNew", { count: fresh, bundles: t("count.bundles", { count: total }) });
}

function card({ row, contents, why }, owned, scale) {
  const fields = fieldsOf(row.bundle_id);
  const title = element("h3", {}, bundleLink(row.bundle_id));
  const items = element("ul", { class: "chips" });
  const groups = itemGroups(contents.item_ids, owned);
  const drawItems = (shown) =>
    fill(
      items,
      shown.map((ids) => itemChip(ids, owned)),
    );
  drawItems(groups.slice(0, SHOWN_CONTENTS));
  const rest = groups.length - SHOWN_CONTENTS;
  return element(
    "li",
    {
      class: justPublished.has(row.bundle_id) ? "card fresh" : "card",
      "data-bundle": row.bundle_id,
    },
    element(
      "div",
      { class: "card-head" },
      element("span", { class: "rank", "aria-label": t("people.place", { rank: row.rank }) }, number(row.rank)),
      picture(fields),
      element("div", { class: "named" }, title, remarkLine(row.bundle_id, fields)),
      row.is_new ? element("span", { class: "badge" }, t("badge.new")) : null,
      element("span", { class: "total", title: t("people.total") }, score(row.score)),
    ),
    element("div", { class: "contents" }, items, rest > 0 ? expander(rest, () => drawItems(groups)) : null),
    element(
      "div",
      { class: "bars" },
      parts(why).map((part) => bar({ ...part, place: scale })),
    ),
    element(
      "div",
      { class: "card-foot" },
      element("p", { class: "reason" }, reason(why, contents)),
      element(
        "button",
        {
          type: "button",
          class: "quiet",
          "aria-label": t("people.record", { user: current, bundle: titleOf(row.bundle_id) }),
          onclick: (event) => took(row.bundle_id, event.currentTarget),
        },
        t("people.took"),
      ),
    ),
  );
}

/** A sentence above the list, perhaps with a button. */
function say(sentence, ...more) {
  fill(byId("list-message"), sentence, ...more);
}

async function took(bundleId, button) {
  const userId = current;
  const bundle = t("list.quoted", { word: titleOf(bundleId) });
  button.disabled = true;
  try {
    const recorded = await api.record(userId, bundleId);
    await Promise.all([showBelongings(), showList()]);
    const said = recorded.history_weight === null ? "people.recorded" : "people.recordedWeighed";
    say(
      t(said, { user: userId, bundle }),
      " ",
      element("button", { type: "button", class: "more", id: "undo", onclick: () => undo(userId, bundleId) }, t("people.undo")),
    );
    byId("list-title").focus();
  } catch (error) {
    button.disabled = false;
    say(error.message);
  }
}

async function undo(userId, bundleId) {
  try {
    await api.takeBack(userId, bundleId);
    await Promise.all([showBelongings(), showList()]);
    say(t("people.undone", { bundle: t("list.quoted", { word: titleOf(bundleId) }) }));
    byId("list-title").focus();
  } catch (error) {
    say(error.message);
  }
}
