// Putting a new bundle together: its audience and its likes while it grows, then publishing it.

import * as api from "./api.js";
import { bar, barScale, score } from "./charts.js";
import { announce, byId, counted, delayed, element, emptiness, fill, listed, skeletons, trouble } from "./dom.js";
import { forget, linkTo, remember } from "./people.js";
import { searchBox } from "./search.js";

const SHOWN = 8;
const LIST_LENGTH = 20;

let basket = [];
let turn = 0;

export function start() {
  const input = byId("item-search");
  searchBox({
    input,
    options: byId("item-options"),
    nouns: "items",
    clears: true,
    find: async (text) => (await api.findItems(text, 12)).items.map((item) => item.item_id),
    describe: (itemId) => (basket.includes(itemId) ? "in the bundle" : ""),
    choose: (itemId) => {
      if (basket.includes(itemId)) {
        announce(`${itemId} is in the bundle already.`);
        return;
      }
      basket = [...basket, itemId];
      changed(`${itemId} added; ${counted(basket.length, "item")}.`);
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
    changed("The bundle is empty again.");
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
    fill(byId("basket"), element("p", { class: "faint" }, "No items yet. Search above and press Enter to add one."));
    return;
  }
  fill(
    byId("basket"),
    element(
      "ul",
      { class: "chips", "aria-label": "Items of the bundle" },
      basket.map((itemId) =>
        element(
          "li",
          { class: "chip removable" },
          element("span", {}, itemId),
          element(
            "button",
            { type: "button", "aria-label": `Remove ${itemId}`, onclick: () => drop(itemId) },
            "×",
          ),
        ),
      ),
    ),
  );
}

function drop(itemId) {
  basket = basket.filter((other) => other !== itemId);
  changed(`${itemId} removed; ${counted(basket.length, "item")}.`);
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
    fill(byId("audience"), emptiness("Nobody yet", "Add an item to see whom it would suit best."));
    fill(byId("similar"), emptiness("Nothing yet", "Add an item to see which bundles are alike."));
    return;
  }
  const audience = found.audience.slice(0, SHOWN);
  const scale = barScale(audience.map((row) => row.score));
  fill(
    byId("audience"),
    element(
      "ol",
      { class: "rows" },
      audience.map((row) =>
        element(
          "li",
          {},
          element("a", { href: linkTo(row.user_id), class: "row-name" }, row.user_id),
          bar({ name: "", value: row.score, place: scale, kind: "items", label: `score ${score(row.score)}` }),
        ),
      ),
    ),
  );
  const similar = found.similar.slice(0, SHOWN);
  const likeness = barScale([1, ...similar.map((row) => row.similarity)]);
  fill(
    byId("similar"),
    similar.length === 0 ? emptiness("None", "There is no other bundle to compare with.") : null,
    element(
      "ol",
      { class: "rows" },
      similar.map((row) =>
        element(
          "li",
          { "data-bundle": row.bundle_id },
          element("span", { class: "row-name" }, row.bundle_id, row.is_new ? element("span", { class: "badge" }, "New") : null),
          bar({ name: "", value: row.similarity, place: likeness, kind: "alike", label: `likeness ${score(row.similarity)} of 1` }),
        ),
      ),
    ),
  );
}

async function publish() {
  const name = byId("bundle-name").value.trim();
  if (basket.length === 0) {
    complain("Add at least one item first.");
    byId("item-search").focus();
    return;
  }
  if (name === "") {
    complain("Give the bundle a name first.");
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
    announce(`${name} is published.`);
    await showEntering(name, items);
    basket = [];
    byId("bundle-name").value = "";
    changed(`${name} is published.`);
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
    { class: "note good", "aria-label": "Published", tabindex: "-1" },
    element("p", {}, element("strong", {}, name), " is published. It can be recommended from now on, without training."),
    element("p", { class: "faint" }, `Its place in the lists of ${LIST_LENGTH} of those whom it suits best:`),
    list,
    element(
      "button",
      { type: "button", class: "quiet", onclick: (event) => withdraw(name, event.currentTarget, box) },
      "Withdraw it",
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
        element("span", { class: row ? "place entered" : "place" }, row ? `place ${row.rank}` : "not in the list"),
      ),
    ),
  );
  const entered = places.filter(({ row }) => row).length;
  announce(`It entered ${entered} of ${counted(places.length, "list")}.`);
}

async function withdraw(name, button, box) {
  button.disabled = true;
  try {
    await api.withdraw(name);
    forget(name);
    fill(box, element("p", {}, `${listed([name])} is withdrawn; no list shows it any more.`));
    preview.begin();
  } catch (error) {
    button.disabled = false;
    complain(error.message);
  }
}
