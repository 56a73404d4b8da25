// Bundles: searching them, and the page of one: what it holds, who took it, who would want it, what would lift it.

import * as api from "./api.js";
import { steps } from "./charts.js";
import { alikeRows, audienceRows } from "./compose.js";
import { announce, byId, element, emptiness, fill, skeletons, trouble } from "./dom.js";
import { bundleLink, date, describe, fieldsOf, forgetBundle, itemChips, picture, remarkLine, remarks, titleOf } from "./names.js";
import { linkTo } from "./people.js";
import { searchBox } from "./search.js";
import { number, t } from "./words.js";

const SUGGESTED = 12;
const SHOWN = 8;
const ALL = 1000;
const CANNOT_BE_ANSWERED = 422;
const OWN_PLACE = ["title", "image", "category", "price"];

let turn = 0;

export function start() {
  searchBox({
    input: byId("bundle-search"),
    options: byId("bundle-options"),
    nouns: t("search.bundles"),
    clears: true,
    find: async (text) => {
      const ids = (await api.findBundles(text, SUGGESTED)).bundles.map((bundle) => bundle.bundle_id);
      await describe(ids, []);
      return ids;
    },
    title: titleOf,
    describe: (id) => remarks(id, fieldsOf(id)).join(" · "),
    choose: (id) => {
      window.location.hash = `#/bundles/${encodeURIComponent(id)}`;
    },
  });
}

/** Show this bundle, or some to choose from when `bundleId` is null. */
export async function show(bundleId) {
  const mine = ++turn;
  const place = byId("bundle-content");
  place.setAttribute("aria-busy", "true");
  fill(place, skeletons(3, "card-size"));
  try {
    const page = await (bundleId === null ? some() : one(bundleId));
    if (mine === turn) {
      fill(place, page);
    }
  } catch (error) {
    if (mine === turn) {
      fill(place, trouble(error, () => show(bundleId)));
    }
  } finally {
    if (mine === turn) {
      place.removeAttribute("aria-busy");
    }
  }
}

async function some() {
  const { bundles } = await api.findBundles("", SUGGESTED);
  await describe(bundles.map((row) => row.bundle_id), []);
  return element(
    "section",
    { class: "panel" },
    element("h2", {}, t("bundles.some")),
    element(
      "ul",
      { class: "shelf" },
      bundles.map((row) => {
        const fields = fieldsOf(row.bundle_id);
        return element(
          "li",
          {},
          picture(fields),
          element("div", { class: "named" }, bundleLink(row.bundle_id), remarkLine(row.bundle_id, fields)),
          element("span", { class: "faint" }, t("bundles.taken", { count: row.popularity })),
          row.is_new ? element("span", { class: "badge" }, t("badge.new")) : null,
        );
      }),
    ),
  );
}

async function one(bundleId) {
  forgetBundle(bundleId);
  const [bundle, standing, audience, similar] = await Promise.all([
    api.bundle(bundleId),
    api.standing(bundleId),
    api.audience(bundleId, SHOWN),
    alike(bundleId),
  ]);
  await describe([bundleId, ...similar.map((row) => row.bundle_id)], bundle.item_ids);
  return element(
    "div",
    { class: "bundle-page", "data-bundle": bundleId },
    head(bundle, standing),
    element(
      "div",
      { class: "columns even" },
      element("div", { class: "stack" }, contents(bundle), stands(bundle, standing), facts(bundleId)),
      element("div", { class: "stack" }, wanted(bundleId, audience.audience), likes(similar), takers(standing)),
    ),
  );
}

/** The bundles most like one; none where the model cannot compare. */
async function alike(bundleId) {
  try {
    return (await api.similar(bundleId, SHOWN)).similar;
  } catch (error) {
    if (error.status !== CANNOT_BE_ANSWERED) {
      throw error;
    }
    return [];
  }
}

function head(bundle, standing) {
  const fields = fieldsOf(bundle.bundle_id);
  return element(
    "div",
    { class: "bundle-head" },
    picture(fields, "large"),
    element(
      "div",
      { class: "named" },
      element("h2", { id: "bundle-name-shown", tabindex: "-1" }, titleOf(bundle.bundle_id)),
      remarkLine(bundle.bundle_id, fields),
    ),
    bundle.is_new ? element("span", { class: "badge" }, t("badge.new")) : null,
    standing.on_offer ? null : element("span", { class: "badge off" }, t("badge.hidden")),
  );
}

function panel(title, id, ...content) {
  return element("section", { class: "panel", "aria-labelledby": id }, element("h2", { id }, title), ...content);
}

function contents(bundle) {
  return panel(
    t("bundles.holds"),
    "holds-title",
    element("ul", { class: "chips", id: "bundle-items" }, itemChips(bundle.item_ids)),
  );
}

/** What the shop's own columns say, but for what stands elsewhere on the page. */
function facts(bundleId) {
  const rows = Object.entries(fieldsOf(bundleId)).filter(([name, value]) => !OWN_PLACE.includes(name) && value !== null);
  if (rows.length === 0) {
    return null;
  }
  return panel(
    t("bundles.facts"),
    "facts-title",
    element(
      "dl",
      { class: "facts" },
      rows.map(([name, value]) => [element("dt", {}, name), element("dd", {}, shown(name, value))]),
    ),
  );
}

function shown(name, value) {
  if (typeof value === "number") {
    return number(value);
  }
  return ["launched", "ends"].includes(name) ? date(value) : String(value);
}

function stands(bundle, found) {
  const people = t("count.people", { count: found.sampled_users });
  const now = t("bundles.inLists", {
    length: found.list_length,
    lists: t("count.lists", { count: found.in_lists }),
    people,
    takers: t("count.takers", { count: found.popularity }),
  });
  const levels = new Set(found.steps.map((step) => step.in_lists));
  return panel(
    t("bundles.stands"),
    "stands-title",
    levels.size > 1 ? element("p", { class: "faint" }, t("bundles.curve")) : null,
    levels.size > 1
      ? steps({
          points: found.steps.map((step) => [step.taken, step.in_lists]),
          now: [bundle.popularity, found.in_lists],
          most: found.sampled_users,
          title: t("bundles.timesTaken"),
          label: t("bundles.curve"),
          here: t("bundles.now"),
        })
      : null,
    element("p", { class: "caption", id: "standing" }, `${now} ${rise(found, levels.size > 1)}`),
  );
}

/** What it would take to stand in more lists. */
function rise(found, counts) {
  if (found.rises_at !== null) {
    return t("bundles.rises", { takers: t("count.takers", { count: found.rises_at }) });
  }
  if (found.in_lists === found.sampled_users) {
    return t("bundles.everywhere");
  }
  return t(counts ? "bundles.doesNotRise" : "bundles.cannot");
}

function takers(found) {
  const all = found.popularity;
  return panel(
    t("bundles.takers"),
    "takers-title",
    found.takers.length === 0 ? element("p", { class: "faint" }, t("bundles.nobodyTook")) : null,
    element(
      "ul",
      { class: "chips", id: "takers" },
      found.takers.map((userId) => element("li", {}, element("a", { class: "chip link", href: linkTo(userId) }, userId))),
    ),
    all > found.takers.length
      ? element("p", { class: "faint" }, t("bundles.takersMore", { shown: number(found.takers.length), all: number(all) }))
      : null,
  );
}

function wanted(bundleId, audience) {
  return panel(
    t("bundles.audience"),
    "wanted-title",
    audience.length === 0 ? emptiness(t("compose.nobody"), t("none")) : audienceRows(audience),
    element(
      "div",
      { class: "actions" },
      element(
        "button",
        { type: "button", class: "quiet", id: "download", onclick: (event) => download(bundleId, event.currentTarget) },
        t("bundles.download"),
      ),
      element("p", { class: "faint", id: "downloaded", role: "status" }),
    ),
  );
}

function likes(similar) {
  return panel(t("bundles.alike"), "alike-title", alikeRows(similar));
}

/** The audience as a file: as many as the service gives at once. */
async function download(bundleId, button) {
  button.disabled = true;
  try {
    const { audience } = await api.audience(bundleId, ALL);
    const file = `audience-${bundleId.replace(/[^\p{L}\p{N}._-]+/gu, "_").slice(0, 80)}.csv`;
    const rows = [["user_id", "rank", "score"], ...audience.map((row) => [row.user_id, row.rank, row.score])];
    const text = rows.map((row) => row.map(cell).join(",")).join("\r\n");
    const address = URL.createObjectURL(new Blob([`${text}\r\n`], { type: "text/csv;charset=utf-8" }));
    const link = element("a", { href: address, download: file });
    document.body.append(link);
    link.click();
    link.remove();
    window.setTimeout(() => URL.revokeObjectURL(address), 10_000);
    const people = t("count.people", { count: audience.length });
    byId("downloaded").textContent = t("bundles.downloaded", { people, file });
    announce(t("bundles.downloaded", { people, file }));
  } catch (error) {
    byId("downloaded").textContent = error.message;
  } finally {
    button.disabled = false;
  }
}

/** A cell of a .csv, in quotes where it needs them. */
function cell(value) {
  const text = String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
