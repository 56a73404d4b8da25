// The page as a whole: which view is shown, the theme, the key.

import * as api from "./api.js";
import * as bundles from "./bundles.js";
import * as compose from "./compose.js";
import { byId } from "./dom.js";
import * as happened from "./happened.js";
import * as model from "./model.js";
import * as people from "./people.js";
import { moment, t, writePage } from "./words.js";

const VIEWS = ["people", "bundles", "compose", "model", "happened"];

/** "#/people/ID" shows the person, "#/bundles/ID" the bundle; anything unknown shows the people. */
function route() {
  if (window.location.hash && !window.location.hash.startsWith("#/")) {
    return; // an ordinary anchor, such as the skip link's
  }
  const [, name, rest] = window.location.hash.match(/^#\/([^/]*)(?:\/(.*))?$/) ?? [];
  const view = VIEWS.includes(name) ? name : "people";
  for (const other of VIEWS) {
    byId(other).hidden = other !== view;
  }
  for (const link of document.querySelectorAll(".views a")) {
    if (link.dataset.view === view) {
      link.setAttribute("aria-current", "page");
    } else {
      link.removeAttribute("aria-current");
    }
  }
  nameModel();
  if (view === "people") {
    people.show(rest ? decoded(rest) : null);
  } else if (view === "bundles") {
    bundles.show(rest ? decoded(rest) : null);
  } else if (view === "model") {
    model.show();
  } else if (view === "happened") {
    happened.show();
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // somebody typed the address by hand
  }
}

function startTheme() {
  const button = byId("theme-button");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : system.matches;
  };
  const draw = () => {
    button.setAttribute("aria-pressed", String(isDark()));
    button.textContent = t(isDark() ? "theme.light" : "theme.dark");
    button.setAttribute("aria-label", t(isDark() ? "theme.toLight" : "theme.toDark"));
  };
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("coheat-theme", theme);
    } catch {
      // Without storage the choice lasts until the page is loaded again.
    }
    draw();
  });
  system.addEventListener("change", draw);
  draw();
}

/** The prompt for a key; requests that are refused at the same time wait for the same answer. */
function startKeys() {
  const dialog = byId("key-dialog");
  const input = byId("key-input");
  let pending = null;

  function prompt(refused) {
    byId("key-button").hidden = false;
    pending ??= new Promise((resolve) => {
      byId("key-reason").textContent = t(refused ? "key.refused" : "key.closed");
      input.value = "";
      dialog.returnValue = "";
      dialog.showModal();
      input.focus();
      dialog.addEventListener(
        "close",
        () => {
          const given = dialog.returnValue === "use" && input.value.trim() !== "";
          if (given) {
            api.storeKey(input.value.trim());
          }
          input.value = "";
          pending = null;
          resolve(given);
        },
        { once: true },
      );
    });
    return pending;
  }

  api.askForKeysWith(prompt);
  byId("key-cancel").addEventListener("click", () => dialog.close(""));
  byId("key-button").hidden = api.storedKey() === "";
  byId("key-button").addEventListener("click", async () => {
    if (await prompt(false)) {
      route();
    }
  });
}

async function nameModel() {
  try {
    const found = await api.models();
    byId("foot-model").textContent = t("foot.model", {
      model: found.model,
      epoch: found.best_epoch,
      time: moment(found.loaded_at),
    });
  } catch {
    // The footer is only a remark; the view itself says what is wrong.
  }
}

writePage();
startTheme();
startKeys();
people.start();
bundles.start();
compose.start();
window.addEventListener("hashchange", route);
route();
