// Why a bundle stands in a list, in words.

import { counted, listed, percent } from "./dom.js";

/** One or two sentences for a person who does not know the model. */
export function reason(why, contents) {
  return [trust(why, contents), carriers(why)].filter(Boolean).join(" ");
}

function trust(why, contents) {
  const taken = contents.popularity;
  if (why.history_weight <= 0) {
    return "Nobody has taken it yet, so its items alone decide.";
  }
  const times = `Taken ${counted(taken, "time")}, so its history counts ${percent(why.history_weight)}`;
  if (why.history > why.items) {
    return `${times}: mostly people with similar bundles speak for it.`;
  }
  return `${times}: mostly the items inside speak for it.`;
}

function carriers(why) {
  const inside = positive(why.bundle_items);
  const own = positive(why.user_items);
  if (inside.length === 0) {
    return "";
  }
  if (own.length === 0) {
    return `Of its items, ${listed(inside)} fit best.`;
  }
  return `Of its items, ${listed(inside)} fit best with ${listed(own)}, which they have.`;
}

function positive(rows) {
  return rows.filter((row) => row.share > 0).map((row) => row.item_id).slice(0, 3);
}
