// Bars and curves as SVG. Widths are attributes, since the page forbids inline styles.

import { drawing, element } from "./dom.js";
import { number } from "./words.js";

export function score(value) {
  const shown = Math.abs(value) < 0.005 ? 0 : value;
  return number(shown, { minimumFractionDigits: 2, maximumFractionDigits: 2 }).replace("-", "−");
}

/** A scale for bars that may point both ways: from the least to the greatest, zero always on it. */
export function barScale(values) {
  const least = Math.min(0, ...values);
  const greatest = Math.max(0, ...values);
  const span = greatest - least || 1;
  return (value) => ((value - least) / span) * 100;
}

/** One bar with its name and number; `place` is the scale shared by all bars that are compared. */
export function bar({ name, value, place, kind, shown = score(value), label = "" }) {
  const zero = place(0);
  const end = place(value);
  const width = Math.abs(end - zero);
  return element(
    "div",
    { class: `bar ${kind}`, "data-value": value },
    element("span", { class: "bar-name" }, name),
    drawing(
      "svg",
      { class: "bar-track", height: 10, role: "img", "aria-label": label || `${name}: ${shown}` },
      drawing("rect", { class: "bar-ground", x: 0, y: 0, width: "100%", height: 10, rx: 5 }),
      drawing("rect", {
        class: value < 0 ? "bar-fill negative" : "bar-fill",
        x: `${Math.min(zero, end)}%`,
        y: 0,
        width: `${width}%`,
        height: 10,
        rx: 5,
      }),
    ),
    element("span", { class: "bar-number" }, shown),
  );
}

const WIDTH = 360;
const HEIGHT = 220;
const LEFT = 44;
const BOTTOM = 40;
const TOP = 16;
const MOST_LABELS = 8;
const TICKS = [0, 0.25, 0.5, 0.75, 1];

/**
 * Columns of shares in groups: each group has a `name`, a `short` one for the axis, and one share (0 to 1)
 * per entry of `kinds`, the classes that colour them. The axis ends at the first quarter above the tallest.
 */
export function columns({ groups, kinds, title, label, write }) {
  const tallest = Math.max(...groups.flatMap((group) => group.shares));
  const top = TICKS.find((tick) => tick > 0 && tick >= tallest) ?? 1;
  const down = (share) => HEIGHT - BOTTOM - (share / top) * (HEIGHT - BOTTOM - TOP);
  const slot = (WIDTH - LEFT) / groups.length;
  const width = Math.min((slot * 0.76) / kinds.length, 34);
  return drawing(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    TICKS.filter((tick) => tick <= top).map((tick) => [
      drawing("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: down(tick), y2: down(tick) }),
      drawing("text", { class: "tick", x: LEFT - 8, y: down(tick) + 4, "text-anchor": "end" }, write(tick)),
    ]).flat(),
    groups.map((group, position) => {
      const middle = LEFT + slot * (position + 0.5);
      return [
        ...group.shares.map((share, which) =>
          drawing(
            "rect",
            {
              class: `column ${kinds[which]}`,
              x: middle + width * (which - kinds.length / 2) + 1,
              y: share > 0 ? Math.min(down(share), down(0) - 1.5) : down(0),
              width: width - 2,
              height: share > 0 ? Math.max(down(0) - down(share), 1.5) : 0,
              rx: 2,
              "data-share": share,
            },
            drawing("title", {}, `${group.name}: ${write(share)}`),
          ),
        ),
        groups.length > MOST_LABELS && position % 2 === 1
          ? null
          : drawing("text", { class: "tick", x: middle, y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, group.short),
      ];
    }),
    drawing("text", { class: "axis", x: (LEFT + WIDTH) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, title),
  );
}

/**
 * A line over numbers of takers (which stand evenly, since few matter more than many), with a dot where it is now.
 * `points` are [taken, height], heights up to `most`.
 */
export function steps({ points, now, most, title, label, here }) {
  const top = Math.max(...points.map(([, height]) => height), 1);
  const scale = Math.min(most, Math.ceil(top * 1.15)) || 1;
  const across = (place) => LEFT + ((WIDTH - LEFT - 14) * place) / Math.max(points.length - 1, 1);
  const down = (height) => HEIGHT - BOTTOM - (height / scale) * (HEIGHT - BOTTOM - TOP);
  const dot = points.findIndex(([taken]) => taken === now[0]);
  const every = Math.ceil(points.length / MOST_LABELS);
  return drawing(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    [0, 0.5, 1].map((share) => [
      drawing("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: down(scale * share), y2: down(scale * share) }),
      drawing("text", { class: "tick", x: LEFT - 8, y: down(scale * share) + 4, "text-anchor": "end" }, number(Math.round(scale * share))),
    ]),
    drawing("polyline", {
      class: "curve",
      points: points.map(([, height], place) => `${across(place)},${down(height)}`).join(" "),
    }),
    points.map(([taken, height], place) =>
      drawing(
        "circle",
        { class: place === dot ? "dot now" : "dot", cx: across(place), cy: down(height), r: place === dot ? 6 : 3, "data-taken": taken, "data-lists": height },
        drawing("title", {}, `${number(taken)}: ${number(height)}`),
      ),
    ),
    dot < 0
      ? null
      : drawing("text", { class: "tick strong", x: across(dot), y: Math.max(down(now[1]) - 11, 11), "text-anchor": dot === 0 ? "start" : "middle" }, here),
    points.map(([taken], place) =>
      place % every === 0 || place === points.length - 1
        ? drawing("text", { class: "tick", x: across(place), y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, number(taken, { notation: "compact" }))
        : null,
    ),
    drawing("text", { class: "axis", x: (LEFT + WIDTH) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, title),
  );
}
