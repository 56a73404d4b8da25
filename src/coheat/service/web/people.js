// The view of one person: what they have, what is recommended, and why.

import * as api from "./api.js";
import { bar, barScale, score } from "./charts.js";
import { announce, byId, counted, element, emptiness, fill, skeletons, trouble } from "./dom.js";
import { parts, reason } from "./reasons.js";
import { searchBox } from "./search.js";

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
    nouns: "people",
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
  byId("list-length").addEventListener("change", () => current !== null && showList());
}

/** Show this person, or how to choose one when `userId` is null. */
export async function show(userId) {
  current = userId;
  turn += 1;
  if (userId === null) {
    byId("list-title").textContent = "Recommended bundles";
    byId("list-message").textContent = "";
    fill(byId("belongings"), element("p", { class: "faint" }, "Nobody chosen yet."));
    fill(
      byId("list"),
      emptiness("Choose a person", "Search for one, or take one of the suggestions, to see their list."),
    );
    await suggest();
    return;
  }
  // The way back from another view leads to the same person.
  document.querySelector('.views [data-view="people"]').setAttribute("href", linkTo(userId));
  byId("user-search").value = userId;
  fill(byId("user-suggestions"));
  byId("list-title").textContent = `Recommended to ${userId}`;
  await Promise.all([showBelongings(), showList()]);
}

async function suggest() {
  const place = byId("user-suggestions");
  try {
    const { users } = await api.findUsers("", SUGGESTED);
    fill(
      place,
      element("p", { class: "faint" }, "For example"),
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
    if (userId === current) {
      fill(
        place,
        chips(counted(found.item_ids.length, "item"), found.item_ids, SHOWN_ITEMS),
        chips(counted(found.bundle_ids.length, "bundle"), found.bundle_ids, SHOWN_ITEMS),
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

/** Ids as chips under a title; of many only some, with a button for the rest. */
function chips(title, ids, most) {
  const list = element("ul", { class: "chips" });
  const draw = (names) =>
    fill(
      list,
      names.map((name) => element("li", { class: "chip" }, name)),
    );
  draw(ids.slice(0, most));
  return element(
    "div",
    { class: "chip-group" },
    element("h3", {}, title),
    ids.length ? list : element("p", { class: "faint" }, "None so far."),
    ids.length > most ? expander(ids.length - most, () => draw(ids)) : null,
  );
}

function expander(count, expand) {
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
    `Show ${count} more`,
  );
}

export async function showList() {
  const mine = ++turn;
  const place = byId("list");
  const candidates = document.querySelector('input[name="candidates"]:checked').value;
  const k = Number(byId("list-length").value);
  const userId = current;
  place.setAttribute("aria-busy", "true");
  if (!place.querySelector(".card")) {
    fill(place, skeletons(Math.min(k, 5), "card-size"));
  }
  try {
    const [answer, owner] = await Promise.all([
      api.recommendations(userId, k, candidates),
      api.user(userId),
    ]);
    const details = await Promise.all(answer.recommendations.map((row) => detail(userId, row)));
    if (mine === turn) {
      draw(place, answer, details, new Set(owner.item_ids), candidates);
    }
  } catch (error) {
    if (mine === turn) {
      byId("list-message").textContent = "";
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

function draw(place, answer, details, owned, candidates) {
  byId("list-message").textContent = listMessage(answer, candidates);
  announce(`${counted(details.length, "bundle")} recommended to ${answer.user_id}.`);
  if (details.length === 0) {
    const text =
      candidates === "new"
        ? "There is no new bundle for this person. Compose one under “New bundle”."
        : "There is nothing left to recommend: this person has taken every bundle.";
    fill(place, emptiness("An empty list", text));
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
    return "None of these bundles is new.";
  }
  return `${fresh} of these ${counted(total, "bundle")} ${fresh === 1 ? "is" : "are"} new.`;
}

function card({ row, contents, why }, owned, scale) {
  const title = element("h3", {}, row.bundle_id);
  const items = element("ul", { class: "chips" });
  const drawItems = (ids) =>
    fill(
      items,
      ids.map((itemId) =>
        owned.has(itemId)
          ? element("li", { class: "chip owned" }, itemId, element("span", { class: "hidden" }, " (has it)"))
          : element("li", { class: "chip" }, itemId),
      ),
    );
  drawItems(contents.item_ids.slice(0, SHOWN_CONTENTS));
  const rest = contents.item_ids.length - SHOWN_CONTENTS;
  return element(
    "li",
    {
      class: justPublished.has(row.bundle_id) ? "card fresh" : "card",
      "data-bundle": row.bundle_id,
    },
    element(
      "div",
      { class: "card-head" },
      element("span", { class: "rank", "aria-label": `place ${row.rank}` }, String(row.rank)),
      title,
      row.is_new ? element("span", { class: "badge" }, "New") : null,
      element("span", { class: "total", title: "all parts together" }, score(row.score)),
    ),
    element("div", { class: "contents" }, items, rest > 0 ? expander(rest, () => drawItems(contents.item_ids)) : null),
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
          "aria-label": `Record that ${current} took ${row.bundle_id}`,
          onclick: (event) => took(row.bundle_id, event.currentTarget),
        },
        "They took it",
      ),
    ),
  );
}

async function took(bundleId, button) {
  const userId = current;
  button.disabled = true;
  try {
    const recorded = await api.record(userId, bundleId);
    await Promise.all([showBelongings(), showList()]);
    const weighed = recorded.history_weight === null ? "" : ", and its history weighs more for everybody else";
    byId("list-message").textContent = `Recorded: ${userId} took “${bundleId}”. It leaves this list${weighed}.`;
    byId("list-title").focus();
  } catch (error) {
    button.disabled = false;
    byId("list-message").textContent = error.message;
  }
}
