// The sentences of the page, in the language of the browser. One file per language; English fills in for others.

const LANGUAGES = ["en", "de"];

/** The first language of the browser that we have; `?lang=de` in the address decides otherwise. */
function chosen() {
  const asked = new URLSearchParams(window.location.search).get("lang");
  const wanted = [asked, ...(navigator.languages ?? [navigator.language])].filter(Boolean);
  const known = wanted.map((tag) => tag.toLowerCase().split("-")[0]).find((tag) => LANGUAGES.includes(tag));
  return known ?? "en";
}

export const language = chosen();
const sentences = await (await fetch(`sentences.${language}.json`)).json();
const plurals = new Intl.PluralRules(language);

/**
 * The sentence of this name with its {places} filled in. Where a `count` is given, it is that for one or for many
 * ("name.one", "name.other"), and {count} is written as numbers are here.
 */
export function t(name, values = {}) {
  const key = "count" in values ? `${name}.${plurals.select(values.count)}` : name;
  const text = sentences[key];
  if (text === undefined) {
    throw new Error(`there is no sentence ${key} in ${language}`);
  }
  return text.replace(/\{(\w+)\}/g, (_, place) => (place === "count" ? number(values.count) : String(values[place])));
}

/** Whether there is a sentence of this name. */
export function has(name) {
  return name in sentences;
}

export function number(value, options = {}) {
  return value.toLocaleString(language, options);
}

export function moment(text) {
  return new Date(text).toLocaleString(language, { dateStyle: "medium", timeStyle: "medium" });
}

export function percent(share) {
  const value = Math.round(share * 10_000) / 100;
  if (value > 0 && value < 1) {
    return t("number.under", { shown: number(0.01, { style: "percent" }) });
  }
  const digits = value < 10 && value % 1 !== 0 ? 1 : 0;
  return number(share, { style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** "a, b and c", each in quotes; of many only the first few are named. */
export function listed(words, most = 3) {
  const shown = words.slice(0, most).map((word) => t("list.quoted", { word }));
  const rest = words.length - shown.length;
  if (rest > 0) {
    return t("list.more", { shown: shown.join(", "), rest: number(rest) });
  }
  return shown.length > 1 ? t("list.and", { first: shown.slice(0, -1).join(", "), last: shown.at(-1) }) : (shown[0] ?? "");
}

/** Write the sentences into the page: `data-t` is an element's text, `data-t-label` and so on its attributes. */
export function writePage() {
  document.documentElement.lang = language;
  document.title = t("page.title");
  for (const node of document.querySelectorAll("[data-t]")) {
    node.textContent = t(node.dataset.t);
  }
  for (const [data, attribute] of [["tLabel", "aria-label"], ["tPlaceholder", "placeholder"]]) {
    for (const node of document.querySelectorAll(`[data-${data.replace(/[A-Z]/, (l) => `-${l.toLowerCase()}`)}]`)) {
      node.setAttribute(attribute, t(node.dataset[data]));
    }
  }
}
