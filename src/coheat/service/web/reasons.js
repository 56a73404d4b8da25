// Why a bundle stands in a list, in words.

import { counted, listed, percent } from "./dom.js";

/** One or two sentences for a person who does not know the model. */
export function reason(why, contents) {
  return [trust(why, contents), byHistory(why), byItems(why)].filter(Boolean).join(" ");
}

/** The parts of a score that are drawn: history and items where it tells them apart, and youth where it counts. */
export function parts(why) {
  const youth = why.youth === 0 ? [] : [{ name: "Youth", kind: "youth", value: why.youth }];
  if (about(why, "history") && about(why, "items")) {
    const history = { name: "History", kind: "history", value: why.history };
    return [history, { name: "Items", kind: "items", value: why.items }, ...youth];
  }
  const name = about(why, "items") ? "Items" : "Score";
  return [{ name, kind: "items", value: why.history + why.items }, ...youth];
}

/** Whether some term of the score is about this. */
function about(why, aspect) {
  return why.terms.some((term) => term.about === aspect);
}

function trust(why, contents) {
  const taken = `Taken ${counted(contents.popularity, "time")}`;
  if (why.history_weight === null && about(why, "items")) {
    if (!about(why, "history")) {
      return `${contents.popularity > 0 ? taken : "Nobody has taken it yet"}. This model goes by items alone.`;
    }
    return contents.is_new
      ? "New, so its items decide until the model is trained with it."
      : `${taken}; its history and its items are added up.`;
  }
  if (why.history_weight === null) {
    return `${contents.popularity > 0 ? taken : "Nobody has taken it yet"}. This model gives one score for everything it knows.`;
  }
  if (why.history_weight === 0) {
    return "Nobody has taken it yet, so only its items count.";
  }
  return `${taken}, so its history counts ${percent(why.history_weight)} and its items the rest.`;
}

function byHistory(why) {
  const own = carrying(why.user_bundles, "bundle_id");
  if (why.history <= Math.max(why.items, 0) || own.length === 0) {
    return "";
  }
  return `Mostly it is taken by people who also took ${listed(own)}.`;
}

function byItems(why) {
  const inside = carrying(why.bundle_items, "item_id");
  const own = carrying(why.user_items, "item_id");
  if (why.items <= 0 || inside.length === 0) {
    return "";
  }
  const fitting = `${listed(inside)} ${inside.length === 1 ? "fits" : "fit"} best`;
  return own.length === 0 ? `Inside, ${fitting}.` : `Inside, ${fitting}; they have ${listed(own)}.`;
}

/** The names that carry most, at most three, among those that speak for the bundle. */
function carrying(rows, name) {
  return rows
    .filter((row) => row.share > 0)
    .sort((one, other) => other.share - one.share)
    .slice(0, 3)
    .map((row) => row[name]);
}
