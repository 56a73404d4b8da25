// Building the page. Text goes in as text nodes only, so nothing in an id can become markup.

import { t } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: attributes by name, `on...` listeners as functions, the rest are children. */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function drawing(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) {
      continue;
    }
    if (typeof value === "function") {
      node.addEventListener(name.slice(2), value);
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return node;
}

/** The element with this id; the page and the scripts must agree. */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) {
    throw new Error(`the page has no element #${id}`);
  }
  return found;
}

export function fill(node, ...children) {
  node.replaceChildren(...children.flat(2).filter((child) => child !== null && child !== undefined));
}

/** Say something to those who hear the page; the region is emptied first so that repeats are heard. */
export function announce(sentence) {
  const region = byId("announcements");
  region.textContent = "";
  window.setTimeout(() => {
    region.textContent = sentence;
  }, 50);
}

/** A note about what went wrong, with a way to try again. */
export function trouble(error, again) {
  return element(
    "div",
    { class: "note trouble", role: "alert" },
    element("p", {}, error.message),
    again ? element("button", { type: "button", class: "quiet", onclick: again }, t("again")) : null,
  );
}

export function emptiness(title, text, ...more) {
  return element("div", { class: "empty" }, element("h3", {}, title), element("p", {}, text), ...more);
}

/** Grey shapes of about the size of what is coming, so that nothing jumps when it comes. */
export function skeletons(count, kind) {
  return Array.from({ length: count }, () =>
    element("div", { class: `skeleton ${kind}`, "aria-hidden": "true" }),
  );
}

/** `begin` does the action once nothing has begun it anew for a while; `cancel` lets it be. */
export function delayed(action, milliseconds) {
  let timer = 0;
  const cancel = () => window.clearTimeout(timer);
  const begin = () => {
    cancel();
    timer = window.setTimeout(action, milliseconds);
  };
  return { begin, cancel };
}
