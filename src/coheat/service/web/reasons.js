// Why a bundle stands in a list, in words.

import { itemTitle, titleOf } from "./names.js";
import { listed, percent, t } from "./words.js";

/** One or two sentences for a person who does not know the model. */
export function reason(why, contents) {
  return [trust(why, contents), byHistory(why), byKind(why), byItems(why)].filter(Boolean).join(" ");
}

/** The parts of a score that are drawn: history and items where it tells them apart, and youth where it counts. */
export function parts(why) {
  const youth = why.youth === 0 ? [] : [{ name: t("reason.partYouth"), kind: "youth", value: why.youth }];
  if (about(why, "history") && about(why, "items")) {
    const history = { name: t("reason.partHistory"), kind: "history", value: why.history };
    return [history, { name: t("reason.partItems"), kind: "items", value: why.items }, ...youth];
  }
  const name = t(about(why, "items") ? "reason.partItems" : "reason.partScore");
  return [{ name, kind: "items", value: why.history + why.items }, ...youth];
}

/** Whether some term of the score is about this. */
function about(why, aspect) {
  return why.terms.some((term) => term.about === aspect);
}

function trust(why, contents) {
  const often = t("reason.taken", { count: contents.popularity });
  const taken = contents.popularity > 0 ? often : t("reason.nobody");
  if (why.history_weight === null && about(why, "items")) {
    if (!about(why, "history")) {
      return t("reason.itemsAlone", { taken });
    }
    return contents.is_new ? t("reason.newItems") : t("reason.addedUp", { taken: often });
  }
  if (why.history_weight === null) {
    return t("reason.oneScore", { taken });
  }
  if (why.history_weight === 0) {
    return t("reason.onlyItems");
  }
  return t("reason.weighed", { taken: often, share: percent(why.history_weight) });
}

function byHistory(why) {
  const own = distinct(carrying(why.user_bundles, "bundle_id").map(titleOf));
  if (why.history <= Math.max(why.items, 0) || own.length === 0) {
    return "";
  }
  return t("reason.alsoTook", { bundles: listed(own) });
}

/** What is foretold of a bundle of this size and these items, compared with the usual one; the same for everybody. */
function foretold(why) {
  return why.terms.find((term) => term.name === "prospects") ?? { share: 0, weight: 0 };
}

/** Said where that speaks for the bundle, and more than anything else. */
function byKind(why) {
  const { share, weight } = foretold(why);
  const isMost = weight > 0 && share > Math.max(why.history, why.items - share, 0);
  return isMost ? t("reason.prospects") : "";
}

function byItems(why) {
  const inside = distinct(carrying(why.bundle_items, "item_id").map(itemTitle));
  const own = distinct(carrying(why.user_items, "item_id").map(itemTitle));
  if (why.items - foretold(why).share <= 0 || inside.length === 0) {
    return "";
  }
  const fits = t("reason.fits", { count: inside.length, items: listed(inside) });
  return own.length === 0 ? t("reason.inside", { fits }) : t("reason.insideHas", { fits, own: listed(own) });
}

/** Several items may have one title, which is said once. */
const distinct = (titles) => [...new Set(titles)];

/** The ids that carry most, at most three, among those that speak for the bundle. */
export function carrying(rows, name) {
  return rows
    .filter((row) => row.share > 0)
    .sort((one, other) => other.share - one.share)
    .slice(0, 3)
    .map((row) => row[name]);
}
