// What happened: recorded, published, withdrawn, loaded; and how models stand side by side, where there are several.

import * as api from "./api.js";
import { byId, element, emptiness, fill, skeletons, trouble } from "./dom.js";
import { bundleLink, describe, itemTitle } from "./names.js";
import { has, moment, number, percent, t } from "./words.js";

export async function show() {
  const place = byId("happened-content");
  if (!place.firstElementChild) {
    fill(place, skeletons(3, "row-size"));
  }
  try {
    const [{ since, events }, model, statistics] = await Promise.all([api.happened(), api.models(), api.statistics()]);
    const named = (field) => events.map((event) => event[field]).filter(Boolean);
    await describe(named("bundle_id"), named("item_id"));
    const started = {
      time: model.loaded_at,
      text: t("happened.started", { model: model.model, fingerprint: model.fingerprint.slice(0, 8) }),
      kind: "reload",
    };
    const rows = events.map(described);
    const loaded = new Date(model.loaded_at);
    const older = rows.findIndex((event) => !event.time || new Date(event.time) < loaded);
    rows.splice(older < 0 ? rows.length : older, 0, started);
    fill(
      place,
      sides(statistics, model),
      element(
        "section",
        { class: "panel" },
        element("p", { class: "faint" }, t("happened.since", { time: moment(since) })),
        events.length === 0
          ? emptiness(t("happened.nothing"), t("happened.nothingHow", { time: moment(since) }))
          : null,
        element("ol", { class: "events" }, rows.map(line)),
      ),
    );
  } catch (error) {
    fill(place, trouble(error, show));
  }
}

function described(event) {
  const many = event.rows === undefined ? "" : ".rows";
  const kind = event.event === "write" ? `write.${event.kind}${many}` : event.event;
  const name = `happened.${event.model ? `${kind}.model` : kind}`;
  return { ...event, sentence: has(name) || has(`${name}.other`) ? name : "happened.write" };
}

/** One event: when, what, and by which key. The bundle that it is about is a link. */
function line(event) {
  const [before, after] = event.text
    ? [event.text, ""]
    : t(event.sentence, {
        bundle: "\u0000",
        kind: event.kind,
        knob: has(`knob.${event.knob}`) ? t(`knob.${event.knob}`) : event.knob,
        value: event.value === null ? t("happened.asStarted") : number(event.value ?? 0),
        item: event.item_id === undefined ? "" : itemTitle(event.item_id),
        model: event.model?.slice(0, 8),
        reason: event.reason ?? "",
        generation: event.generation,
        ...(event.rows === undefined ? {} : { count: event.rows }),
      }).split("\u0000");
  return element(
    "li",
    { class: event.event?.endsWith("failed") ? "event failed" : "event" },
    event.time ? element("time", { datetime: event.time }, moment(event.time)) : element("span", { class: "faint" }, t("happened.before")),
    element(
      "span",
      {},
      before,
      after !== undefined && event.bundle_id ? bundleLink(event.bundle_id) : null,
      after ?? "",
      event.key ? element("span", { class: "faint" }, ` ${t("happened.by", { key: event.key })}`) : null,
    ),
  );
}

/** Several models that share the users, where the service has them: what came of each. */
function sides(statistics, model) {
  const found = statistics.sides ?? [];
  if (found.length < 2) {
    return null;
  }
  const shares = Object.fromEntries((model.sides ?? []).map((side) => [side.side, side.share]));
  const columns = [
    ["happened.side", (side) => side.side],
    ["happened.share", (side) => (side.side in shares ? percent(shares[side.side]) : "")],
    ["happened.lists", (side) => number(side.lists)],
    ["happened.shown", (side) => number(side.shown)],
    ["happened.clicked", (side) => number(side.clicked)],
    ["happened.took", (side) => number(side.took)],
  ];
  return element(
    "section",
    { class: "panel" },
    element("h2", {}, t("happened.sides")),
    element(
      "div",
      { class: "wide" },
      element(
        "table",
        { class: "sides" },
        element("thead", {}, element("tr", {}, columns.map(([name]) => element("th", { scope: "col" }, t(name))))),
        element("tbody", {}, found.map((side) => element("tr", {}, columns.map(([, write]) => element("td", {}, write(side)))))),
      ),
    ),
  );
}
