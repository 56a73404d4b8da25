// Bars and curves as SVG. Widths are attributes, since the page forbids inline styles.

import { drawing, element } from "./dom.js";

export function score(value) {
  return (Math.abs(value) < 0.005 ? 0 : value).toFixed(2).replace("-", "−");
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
  const width = Math.max(Math.abs(end - zero), 0.4);
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

const WIDTH = 480;
const HEIGHT = 250;
const LEFT = 46;
const BOTTOM = 40;
const TOP = 12;
const RIGHT = 14;

/**
 * A curve through `points` ([x, y], x rising). `x` and `y` say the axis: title, ticks, how a tick is
 * written, and the range. `against` is a second, fainter curve to compare with.
 */
export function curve({ points, x, y, label, against = null, area = true }) {
  const across = (value) => LEFT + ((value - x.from) / (x.to - x.from || 1)) * (WIDTH - LEFT - RIGHT);
  const down = (value) => HEIGHT - BOTTOM - ((value - y.from) / (y.to - y.from || 1)) * (HEIGHT - BOTTOM - TOP);
  const path = (line) =>
    line.map(([at, value], i) => `${i ? "L" : "M"}${across(at).toFixed(1)} ${down(value).toFixed(1)}`).join("");
  const ground = `L${across(points.at(-1)[0]).toFixed(1)} ${down(y.from)}L${across(points[0][0]).toFixed(1)} ${down(y.from)}Z`;
  return drawing(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    y.ticks.map((tick) => [
      drawing("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: down(tick), y2: down(tick) }),
      drawing("text", { class: "tick", x: LEFT - 8, y: down(tick) + 4, "text-anchor": "end" }, y.write(tick)),
    ]),
    x.ticks.map((tick) =>
      drawing(
        "text",
        { class: "tick", x: across(tick), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" },
        x.write(tick),
      ),
    ),
    area ? drawing("path", { class: "area", d: path(points) + ground }) : null,
    against ? drawing("path", { class: "line against", d: path(against) }) : null,
    drawing("path", { class: "line", d: path(points) }),
    drawing(
      "text",
      { class: "axis", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" },
      x.title,
    ),
  );
}
