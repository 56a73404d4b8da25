// Putting a new bundle together: its audience and its likes while it grows, then publishing it.

import * as api from "./api.js";
import { bar, barScale, score } from "./charts.js";
import { announce, byId, delayed, element, emptiness, fill, skeletons, trouble } from "./dom.js";
import { bundleLink, describe, forgetBundle, itemFields, itemTitle, remarks } from "./names.js";
import { forget, linkTo, remember } from "./people.js";
import { searchBox } from "./search.js";
import { listed, t } from "./words.js";

const SHOWN = 8;
const LIST_LENGTH = 20;

let basket = [];
let turn = 0;

export function start() {
  const input = byId("item-search");
  searchBox({
    input,
    options: byId("item-options"),
    nouns: t("search.items"),
    clears: true,
    find: async (text) => {
      const ids = (await api.findItems(text, 12)).items.map((item) => item.item_id);
      await describe([], ids);
      return ids;
    },
    title: itemTitle,
    describe: (itemId) =>
      basket.includes(itemId) ? t("compose.inBundle") : remarks(itemId, itemFields(itemId)).join(" · "),
    choose: (itemId) => {
      if (basket.includes(itemId)) {
        announce(t("compose.already", { item: itemTitle(itemId) }));
        return;
      }
      basket = [...basket, itemId];
      changed(t("compose.added", { item: itemTitle(itemId), items: t("count.items", { count: basket.length }) }));
    },
  });
  byId("compose-form").addEventListener("submit", (event) => {
    event.preventDefault();
    publish();
  });
  byId("clear-basket").addEventListener("click", () => {
    basket = [];
    byId("bundle-name").value = "";
    fill(byId("published"));
    changed(t("compose.emptied"));
    input.focus();
  });
  drawBasket();
  drawPreview(null);
}

const preview = delayed(showPreview, 100);

function changed(sentence) {
  complain("");
  drawBasket();
  announce(sentence);
  preview.begin();
}

function complain(sentence) {
  byId("compose-problem").textContent = sentence;
}

function drawBasket() {
  if (basket.length === 0) {
    fill(byId("basket"), element("p", { class: "faint" }, t("compose.noItems")));
    return;
  }
  fill(
    byId("basket"),
    element(
      "ul",
      { class: "chips", "aria-label": t("compose.itemsOf") },
      basket.map((itemId) =>
        element(
          "li",
          { class: "chip removable" },
          element("span", {}, itemTitle(itemId)),
          element(
            "button",
            { type: "button", "aria-label": t("compose.remove", { item: itemTitle(itemId) }), onclick: () => drop(itemId) },
            "×",
          ),
        ),
      ),
    ),
  );
}

function drop(itemId) {
  basket = basket.filter((other) => other !== itemId);
  changed(t("compose.removed", { item: itemTitle(itemId), items: t("count.items", { count: basket.length }) }));
  // The pressed button is gone; the focus goes where the next item is added.
  byId("item-search").focus();
}

async function showPreview() {
  const mine = ++turn;
  if (basket.length === 0) {
    drawPreview(null);
    return;
  }
  for (const name of ["audience", "similar"]) {
    const place = byId(name);
    place.setAttribute("aria-busy", "true");
    if (!place.querySelector(".rows")) {
      fill(place, skeletons(SHOWN, "row-size"));
    }
  }
  try {
    const found = await api.preview(basket, SHOWN);
    await describe(found.similar.map((row) => row.bundle_id), []);
    if (mine === turn) {
      drawPreview(found);
    }
  } catch (error) {
    if (mine === turn) {
      fill(byId("audience"), trouble(error, showPreview));
      fill(byId("similar"));
    }
  } finally {
    if (mine === turn) {
      byId("audience").removeAttribute("aria-busy");
      byId("similar").removeAttribute("aria-busy");
    }
  }
}

function drawPreview(found) {
  if (found === null) {
    fill(byId("audience"), emptiness(t("compose.nobody"), t("compose.nobodyHow")));
    fill(byId("similar"), emptiness(t("compose.nothing"), t("compose.nothingHow")));
    return;
  }
  fill(byId("audience"), audienceRows(found.audience.slice(0, SHOWN)));
  fill(byId("similar"), alikeRows(found.similar.slice(0, SHOWN)));
}

/** People with a bar each, as links. */
export function audienceRows(audience) {
  const scale = barScale(audience.map((row) => row.score));
  return element(
    "ol",
    { class: "rows" },
    audience.map((row) =>
      element(
        "li",
        {},
        element("a", { href: linkTo(row.user_id), class: "row-name" }, row.user_id),
        bar({ name: "", value: row.score, place: scale, kind: "items", label: t("score.is", { score: score(row.score) }) }),
      ),
    ),
  );
}

/** Bundles that are alike, each with a bar, as links. */
export function alikeRows(similar) {
  if (similar.length === 0) {
    return emptiness(t("compose.nothing"), t("compose.noOther"));
  }
  const likeness = barScale([1, ...similar.map((row) => row.similarity)]);
  return element(
    "ol",
    { class: "rows" },
    similar.map((row) =>
      element(
        "li",
        { "data-bundle": row.bundle_id },
        element(
          "span",
          { class: "row-name" },
          bundleLink(row.bundle_id),
          row.is_new ? element("span", { class: "badge" }, t("badge.new")) : null,
        ),
        bar({
          name: "",
          value: row.similarity,
          place: likeness,
          kind: "alike",
          label: t("likeness.is", { score: score(row.similarity) }),
        }),
      ),
    ),
  );
}

async function publish() {
  const name = byId("bundle-name").value.trim();
  if (basket.length === 0) {
    complain(t("compose.needItem"));
    byId("item-search").focus();
    return;
  }
  if (name === "") {
    complain(t("compose.needName"));
    byId("bundle-name").focus();
    return;
  }
  complain("");
  const button = byId("publish");
  button.disabled = true;
  try {
    const items = basket;
    await api.publish(name, items);
    remember(name);
    forgetBundle(name);
    announce(t("compose.published", { bundle: name }));
    await showEntering(name, items);
    basket = [];
    byId("bundle-name").value = "";
    changed(t("compose.published", { bundle: name }));
  } catch (error) {
    complain(error.message);
  } finally {
    button.disabled = false;
  }
}

/** Where the published bundle now stands in the lists of those whom it suits best. */
async function showEntering(name, items) {
  const place = byId("published");
  const list = element("ol", { class: "rows entering" });
  const box = element(
    "section",
    { class: "note good", "aria-label": t("compose.publishedHead"), tabindex: "-1" },
    element("p", {}, element("strong", {}, bundleLink(name)), t("compose.publishedHow")),
    element("p", { class: "faint" }, t("compose.entering", { length: LIST_LENGTH })),
    list,
    element(
      "button",
      { type: "button", class: "quiet", onclick: (event) => withdraw(name, event.currentTarget, box) },
      t("compose.withdraw"),
    ),
  );
  fill(place, box);
  box.focus();
  const { audience } = await api.preview(items, SHOWN);
  const places = await Promise.all(
    audience.slice(0, SHOWN).map(async ({ user_id: userId }) => {
      const { recommendations } = await api.recommendations(userId, LIST_LENGTH, "all");
      return { userId, row: recommendations.find((row) => row.bundle_id === name) };
    }),
  );
  fill(
    list,
    places.map(({ userId, row }) =>
      element(
        "li",
        {},
        element("a", { href: linkTo(userId), class: "row-name" }, userId),
        element("span", { class: row ? "place entered" : "place" }, row ? t("people.place", { rank: row.rank }) : t("compose.notIn")),
      ),
    ),
  );
  const entered = places.filter(({ row }) => row).length;
  announce(t("compose.entered", { entered, lists: t("count.lists", { count: places.length }) }));
}

async function withdraw(name, button, box) {
  button.disabled = true;
  try {
    await api.withdraw(name);
    forget(name);
    fill(box, element("p", {}, t("compose.withdrawn", { bundle: listed([name]) })));
    preview.begin();
  } catch (error) {
    button.disabled = false;
    complain(error.message);
  }
}
