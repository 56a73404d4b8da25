// The panel of the model: how uneven the shop is, whom the model trusts, how many new bundles are shown.

import * as api from "./api.js";
import { curve } from "./charts.js";
import { byId, counted, drawing, element, fill, percent, skeletons, trouble } from "./dom.js";

export async function show() {
  const place = byId("model-content");
  if (!place.firstElementChild) {
    fill(place, skeletons(3, "card-size"));
  }
  try {
    const found = await api.statistics();
    fill(place, tiles(found), element("div", { class: "figures" }, skew(found), trust(found), newcomers(found)));
  } catch (error) {
    fill(place, trouble(error, show));
  }
}

function tiles(found) {
  const facts = [
    ["people", found.users],
    ["items", found.items],
    ["bundles", found.bundles],
    ["of them new", found.new_bundles],
    ["times a bundle was taken", found.interactions],
  ];
  return element(
    "dl",
    { class: "tiles" },
    facts.map(([name, count]) =>
      element("div", { class: "tile" }, element("dt", {}, name), element("dd", {}, count.toLocaleString("en"))),
    ),
  );
}

function figure(title, sentence, picture) {
  return element("figure", { class: "panel" }, element("h2", {}, title), picture, element("figcaption", {}, sentence));
}

function skew({ skew: found }) {
  const sentence =
    `The 10% most taken bundles have ${percent(found.top_10_percent_share)} of all the times a bundle was taken. ` +
    "The dashed line is a shop where all are taken alike.";
  return figure(
    "A few bundles get most of it",
    sentence,
    curve({
      points: found.curve.map((point) => [point.share_of_bundles, point.share_of_interactions]),
      against: [
        [0, 0],
        [1, 1],
      ],
      x: { title: "bundles, most taken first", from: 0, to: 1, ticks: [0, 0.25, 0.5, 0.75, 1], write: percent },
      y: { from: 0, to: 1, ticks: [0, 0.5, 1], write: percent },
      label: sentence,
    }),
  );
}

/** Popularity spans decades, so it is drawn by its logarithm, with room for zero. */
const spread = (popularity) => Math.log10(1 + popularity);

function trust({ history_weight: rows }) {
  const greatest = rows.at(-1);
  const sentence =
    "How much the history of a bundle counts, by how often it was taken. For a new bundle it is 0%: its items decide. " +
    `At ${counted(greatest.popularity, "time")} it is ${percent(greatest.history_weight)}.`;
  const ticks = [0, 1, 10, 100, 1000, 10000].filter((tick) => tick <= greatest.popularity);
  return figure(
    "History is trusted where there is some",
    sentence,
    curve({
      points: rows.map((row) => [spread(row.popularity), row.history_weight]),
      x: {
        title: "times taken",
        from: 0,
        to: spread(greatest.popularity),
        ticks: ticks.map(spread),
        write: (tick) => Math.round(10 ** tick - 1).toLocaleString("en"),
      },
      y: { from: 0, to: 1, ticks: [0, 0.5, 1], write: percent },
      label: sentence,
    }),
  );
}

function newcomers({ lists }) {
  const share = lists.places ? lists.new_places / lists.places : 0;
  const sentence =
    `Of ${counted(lists.places, "place")} in the lists of ${counted(lists.users, "person", "people")} (${lists.k} each), ` +
    `${counted(lists.new_places, "place")} ${lists.new_places === 1 ? "goes" : "go"} to new bundles; ` +
    `${counted(lists.new_bundles, "new bundle")} ${lists.new_bundles === 1 ? "appears" : "appear"} in at least one list.`;
  return figure(
    "New bundles in people’s lists",
    sentence,
    element(
      "div",
      { class: "share" },
      element("p", { class: "big" }, percent(share)),
      drawing(
        "svg",
        { class: "share-bar", height: 18, role: "img", "aria-label": sentence },
        drawing("rect", { class: "bar-ground", x: 0, y: 0, width: "100%", height: 18, rx: 9 }),
        drawing("rect", { class: "share-new", x: 0, y: 0, width: `${Math.max(share * 100, 0.5)}%`, height: 18, rx: 9 }),
      ),
      element("p", { class: "faint" }, "of all places in lists go to bundles that nobody has taken yet"),
    ),
  );
}
