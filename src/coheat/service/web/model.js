// The panel of the model: how uneven the shop is, what scores are made of, how many new bundles are shown, the knobs.

import * as api from "./api.js";
import { columns } from "./charts.js";
import { byId, delayed, drawing, element, fill, skeletons, trouble } from "./dom.js";
import { has, number, percent, t } from "./words.js";

export async function show() {
  const place = byId("model-content");
  if (!place.firstElementChild) {
    fill(place, skeletons(3, "card-size"));
  }
  try {
    const [found, { knobs }] = await Promise.all([api.statistics(), api.catalogue()]);
    if (found.n_bundles === 0) {
      fill(place, tiles(found));
      return;
    }
    const weighs = bins(found).at(-1).mean_history_weight !== null;
    const trusted = weighs ? trust(found) : made((await api.parts()).parts);
    fill(
      place,
      tiles(found),
      element("div", { class: "figures" }, skew(found), trusted, newcomers(found), knobs.map(turning)),
    );
  } catch (error) {
    fill(place, trouble(error, show));
  }
}

function tiles(found) {
  const facts = [
    ["model.people", found.n_users],
    ["model.items", found.n_items],
    ["model.bundles", found.n_bundles],
    ["model.cold", found.n_cold_bundles],
    ["model.interactions", found.n_interactions],
  ];
  return element(
    "dl",
    { class: "tiles" },
    facts.map(([name, count]) =>
      element("div", { class: "tile" }, element("dt", {}, t(name)), element("dd", {}, number(count))),
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
      element("span", {}, element("i", { class: `swatch ${kind}`, "aria-hidden": "true" }), t(name)),
    ),
  );
}

function range({ least, most }) {
  return least === most ? number(least) : `${number(least)}–${number(most)}`;
}

/** Bins that hold a bundle; an empty one says nothing about how its bundles fare. */
function bins(found) {
  return found.popularity.filter((bin) => bin.bundles > 0);
}

function named(bin) {
  const least = number(bin.least, { notation: "compact" });
  return { name: t("model.takenTimes", { range: range(bin) }), short: bin.least === bin.most ? least : `${least}+` };
}

const share = (part, whole) => (whole > 0 ? part / whole : 0);

function skew(found) {
  const most = bins(found).at(-1);
  const sentence = t("model.skewSays", {
    count: most.bundles,
    range: range(most),
    share: percent(share(most.bundles, found.n_bundles)),
    interactions: percent(share(most.interactions, found.n_interactions)),
  });
  return figure(
    t("model.skew"),
    sentence,
    swatches(["plain", "model.shareBundles"], ["history", "model.shareTaken"]),
    columns({
      groups: bins(found).map((bin) => ({
        ...named(bin),
        shares: [share(bin.bundles, found.n_bundles), share(bin.interactions, found.n_interactions)],
      })),
      kinds: ["plain", "history"],
      title: t("model.times"),
      label: sentence,
      write: percent,
    }),
  );
}

/** Where the weight of history follows from how often a bundle was taken. */
function trust(found) {
  const most = bins(found).at(-1);
  const sentence = t("model.trustSays", { range: range(most), share: percent(most.mean_history_weight) });
  return figure(
    t("model.trust"),
    sentence,
    swatches(["history", "model.trustLegend"]),
    columns({
      groups: bins(found).map((bin) => ({ ...named(bin), shares: [bin.mean_history_weight] })),
      kinds: ["history"],
      title: t("model.times"),
      label: sentence,
      write: percent,
    }),
  );
}

/** Where it does not, what the scores in lists are made of, by how often bundles were taken. */
function made(parts) {
  if (parts.length === 0) {
    return figure(t("model.trust"), t("model.partsNone"));
  }
  const [first, last] = [parts[0], parts.at(-1)];
  const sentence = t("model.partsSays", {
    least: range(first),
    first: percent(first.history),
    range: range(last),
    last: percent(last.history),
  });
  return figure(
    t("model.trust"),
    sentence,
    swatches(["history", "model.partHistory"], ["items", "model.partItems"], ["youth", "model.partYouth"]),
    columns({
      groups: parts.map((part) => ({ ...named(part), shares: [part.history, part.items, part.youth] })),
      kinds: ["history", "items", "youth"],
      title: t("model.times"),
      label: sentence,
      write: percent,
    }),
  );
}

function newcomers(found) {
  const sentence = t("model.newSays", {
    bundles: percent(found.cold_share_of_bundles),
    places: percent(found.cold_share_of_lists),
    length: found.list_length,
    people: t("count.people", { count: found.sampled_users }),
  });
  return figure(
    t("model.newcomers"),
    sentence,
    shareRow("model.newBundles", found.cold_share_of_bundles, "plain"),
    shareRow("model.newPlaces", found.cold_share_of_lists, "fresh"),
  );
}

function shareRow(name, value, kind) {
  return element(
    "div",
    { class: "share" },
    element("p", { class: "share-name" }, t(name)),
    element("p", { class: "big" }, percent(value)),
    drawing(
      "svg",
      { class: "share-bar", height: 14, "aria-hidden": "true" },
      drawing("rect", { class: "bar-ground", x: 0, y: 0, width: "100%", height: 14, rx: 7 }),
      drawing("rect", { class: `column ${kind}`, x: 0, y: 0, width: `${value * 100}%`, height: 14, rx: 7 }),
    ),
  );
}

// A slider from 0 to 100 feels even when its steps grow: the handle stands at the logarithm.
const STEPS = 60;
const valueAt = (place, most) => Math.round(((most + 1) ** (place / STEPS) - 1) * 10) / 10;
const placeOf = (value, most) => Math.round((STEPS * Math.log(value + 1)) / Math.log(most + 1));

/** A knob as a slider, with what it would change. */
function turning(knob) {
  const title = has(`knob.${knob.name}`) ? t(`knob.${knob.name}`) : t("knob.any", { name: knob.name });
  const says = element("figcaption", { role: "status", class: "knob-says" });
  const how = element("p", { class: "faint" }, t("knob.how"));
  const set = element("button", { type: "button", class: "quiet", id: `set-${knob.name}`, disabled: true, onclick: turn }, t("knob.set", { value: number(knob.value) }));
  const shown = element("output", { class: "big", for: `knob-${knob.name}` }, number(knob.value));
  const change = element("div", {});
  const stands = placeOf(knob.value, knob.most);
  const chosen = () => (Number(slider.value) === stands ? knob.value : valueAt(Number(slider.value), knob.most));
  let asked = 0;
  const look = delayed(async () => {
    const value = chosen();
    const mine = ++asked;
    try {
      const found = await api.turned(knob.name, value);
      if (mine !== asked) {
        return;
      }
      fill(
        says,
        t("knob.stands", {
          value: number(knob.value),
          other: number(value),
          share: percent(found.cold_share),
          now: percent(found.cold_share_now),
          changed: number(found.changed_lists),
          lists: t("count.lists", { count: found.sampled_users }),
        }),
      );
      fill(set, t("knob.set", { value: number(value) }));
      set.disabled = value === knob.value;
      fill(change, shareRow("model.newPlaces", found.cold_share, "fresh"));
    } catch (error) {
      fill(says, error.message);
    }
  }, 150);
  const slider = element("input", {
    type: "range",
    id: `knob-${knob.name}`,
    class: "knob",
    min: 0,
    max: STEPS,
    step: 1,
    value: stands,
    "aria-label": title,
    oninput: () => {
      const value = chosen();
      fill(shown, number(value));
      slider.setAttribute("aria-valuetext", number(value));
      look.begin();
    },
  });
  async function turn() {
    set.disabled = true;
    try {
      await api.turn(knob.name, chosen());
      await show();
    } catch (error) {
      set.disabled = false;
      fill(says, error.message);
    }
  }
  look.begin();
  return element(
    "figure",
    { class: "panel turning" },
    element("h2", {}, title),
    shown,
    slider,
    change,
    says,
    element("p", {}, set),
    how,
  );
}
