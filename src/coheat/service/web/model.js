// The panel of the model: how uneven the shop is, whom the model trusts, how many new bundles are shown.

import * as api from "./api.js";
import { columns } from "./charts.js";
import { byId, counted, drawing, element, fill, percent, skeletons, trouble } from "./dom.js";

export async function show() {
  const place = byId("model-content");
  if (!place.firstElementChild) {
    fill(place, skeletons(3, "card-size"));
  }
  try {
    const found = await api.statistics();
    if (found.n_bundles === 0) {
      fill(place, tiles(found));
      return;
    }
    fill(place, tiles(found), element("div", { class: "figures" }, skew(found), trust(found), newcomers(found)));
  } catch (error) {
    fill(place, trouble(error, show));
  }
}

function tiles(found) {
  const facts = [
    ["people", found.n_users],
    ["items", found.n_items],
    ["bundles", found.n_bundles],
    ["bundles nobody has taken yet", found.n_cold_bundles],
    ["times a bundle was taken", found.n_interactions],
  ];
  return element(
    "dl",
    { class: "tiles" },
    facts.map(([name, count]) =>
      element("div", { class: "tile" }, element("dt", {}, name), element("dd", {}, count.toLocaleString("en"))),
    ),
  );
}

function figure(title, sentence, ...picture) {
  return element("figure", { class: "panel" }, element("h2", {}, title), ...picture, element("figcaption", {}, sentence));
}

function swatches(...pairs) {
  return element(
    "p",
    { class: "legend" },
    pairs.map(([kind, name]) =>
      element("span", {}, element("i", { class: `swatch ${kind}`, "aria-hidden": "true" }), name),
    ),
  );
}

function range({ least, most }) {
  return least === most ? least.toLocaleString("en") : `${least.toLocaleString("en")}–${most.toLocaleString("en")}`;
}

/** Bins that hold a bundle; an empty one says nothing about how its bundles fare. */
function bins(found) {
  return found.popularity.filter((bin) => bin.bundles > 0);
}

function named(bin) {
  const least = bin.least.toLocaleString("en", { notation: "compact" });
  return { name: `taken ${range(bin)} times`, short: bin.least === bin.most ? least : `${least}+` };
}

const share = (part, whole) => (whole > 0 ? part / whole : 0);

function skew(found) {
  const most = bins(found).at(-1);
  const sentence =
    `${counted(most.bundles, "bundle was", "bundles were")} taken ${range(most)} times: ` +
    `${percent(share(most.bundles, found.n_bundles))} of all bundles, with ` +
    `${percent(share(most.interactions, found.n_interactions))} of all the times a bundle was taken.`;
  return figure(
    "How unevenly bundles are taken",
    sentence,
    swatches(["plain", "share of bundles"], ["history", "share of times taken"]),
    columns({
      groups: bins(found).map((bin) => ({
        ...named(bin),
        shares: [share(bin.bundles, found.n_bundles), share(bin.interactions, found.n_interactions)],
      })),
      kinds: ["plain", "history"],
      title: "times taken",
      label: sentence,
      write: percent,
    }),
  );
}

function trust(found) {
  const most = bins(found).at(-1);
  if (most.mean_history_weight === null) {
    return figure("When history counts", "This model does not weigh history against items.");
  }
  const sentence =
    "For a bundle that nobody has taken, history counts nothing and its items decide. " +
    `For those taken ${range(most)} times it counts ${percent(most.mean_history_weight)}.`;
  return figure(
    "When history counts",
    sentence,
    swatches(["history", "how much history counts"]),
    columns({
      groups: bins(found).map((bin) => ({ ...named(bin), shares: [bin.mean_history_weight] })),
      kinds: ["history"],
      title: "times taken",
      label: sentence,
      write: percent,
    }),
  );
}

function newcomers(found) {
  const sentence =
    `Bundles that nobody has taken yet are ${percent(found.cold_share_of_bundles)} of all bundles, and fill ` +
    `${percent(found.cold_share_of_lists)} of the first ${found.list_length} places in the lists of ` +
    `${counted(found.sampled_users, "person", "people")} from all over the shop.`;
  const row = (name, value, kind) =>
    element(
      "div",
      { class: "share" },
      element("p", { class: "share-name" }, name),
      element("p", { class: "big" }, percent(value)),
      drawing(
        "svg",
        { class: "share-bar", height: 14, "aria-hidden": "true" },
        drawing("rect", { class: "bar-ground", x: 0, y: 0, width: "100%", height: 14, rx: 7 }),
        drawing("rect", { class: `column ${kind}`, x: 0, y: 0, width: `${value * 100}%`, height: 14, rx: 7 }),
      ),
    );
  return figure(
    "New bundles in lists",
    sentence,
    row("of all bundles are new", found.cold_share_of_bundles, "plain"),
    row("of the places in lists go to new ones", found.cold_share_of_lists, "fresh"),
  );
}
