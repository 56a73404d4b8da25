// A search box with a list of what is found (the ARIA combobox pattern).

import { announce, delayed, element, fill } from "./dom.js";
import { t } from "./words.js";

/**
 * Make a search box of `input` and the list `options`.
 * `find(text)` promises an array of ids; `choose(id)` is called with the chosen one;
 * `title(id)` is what it is called, and `describe(id)` may give a short remark. Arrows move, Enter chooses, Escape closes and then clears.
 */
export function searchBox({ input, options, find, choose, title = (id) => id, describe = () => "", nouns, clears = false }) {
  let found = [];
  let active = -1;
  let asked = 0;
  let waiting = false;

  const isOpen = () => !options.hidden;

  function close() {
    options.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function open() {
    options.hidden = false;
    input.setAttribute("aria-expanded", "true");
  }

  function mark(position) {
    active = position;
    [...options.children].forEach((option, place) => {
      option.setAttribute("aria-selected", String(place === position));
    });
    const option = options.children[position];
    if (option && option.id) {
      input.setAttribute("aria-activedescendant", option.id);
      option.scrollIntoView({ block: "nearest" });
    } else {
      input.removeAttribute("aria-activedescendant");
    }
  }

  function take(position) {
    const id = found[position];
    if (id === undefined) {
      return;
    }
    later.cancel();
    asked += 1;
    waiting = false;
    input.value = clears ? "" : title(id);
    close();
    choose(id);
  }

  function draw() {
    fill(
      options,
      found.map((id, position) =>
        element(
          "li",
          {
            id: `${options.id}-${position}`,
            role: "option",
            "aria-selected": "false",
            // Pressing must not take the focus from the input, else the list closes before the click.
            onmousedown: (event) => event.preventDefault(),
            onclick: () => take(position),
          },
          element("span", { class: "option-name" }, title(id)),
          element("span", { class: "option-remark" }, describe(id)),
        ),
      ),
    );
  }

  function say(sentence) {
    found = [];
    fill(options, element("li", { class: "option-none", role: "option", "aria-disabled": "true" }, sentence));
    open();
  }

  async function search() {
    later.cancel();
    asked += 1;
    const turn = asked;
    waiting = true;
    try {
      const answer = await find(input.value.trim());
      if (turn !== asked) {
        return;
      }
      found = answer;
      if (found.length === 0) {
        say(t("search.none", { nouns, text: input.value.trim() }));
        announce(t("search.noneFound", { nouns }));
        return;
      }
      draw();
      open();
      mark(input.value.trim() ? 0 : -1);
      announce(t("search.choose", { nouns, found: found.length }));
    } catch (error) {
      if (turn === asked) {
        say(error.message);
      }
    } finally {
      if (turn === asked) {
        waiting = false;
      }
    }
  }

  const later = delayed(search, 120);

  input.addEventListener("input", () => {
    waiting = true;
    later.begin();
  });
  input.addEventListener("focus", () => {
    input.select();
  });
  input.addEventListener("click", () => {
    if (!isOpen()) {
      search();
    }
  });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", async (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!isOpen()) {
        await search();
      } else if (found.length > 0) {
        const step = event.key === "ArrowDown" ? 1 : -1;
        mark(active < 0 && step < 0 ? found.length - 1 : (active + step + found.length) % found.length);
      }
    } else if (event.key === "Enter") {
      if (input.value.trim() === "" && active < 0) {
        return;
      }
      event.preventDefault();
      if (waiting) {
        // What is shown belongs to an earlier text; ask for this one and take its first.
        await search();
      }
      if (isOpen()) {
        take(Math.max(active, 0));
      } else {
        await search();
      }
    } else if (event.key === "Escape") {
      event.preventDefault();
      if (isOpen()) {
        close();
      } else {
        input.value = "";
      }
    }
  });

  return { close, search };
}
