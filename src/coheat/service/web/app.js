// The page as a whole: which view is shown, the theme, the key.

import * as api from "./api.js";
import * as compose from "./compose.js";
import { byId } from "./dom.js";
import * as model from "./model.js";
import * as people from "./people.js";

const VIEWS = ["people", "compose", "model"];

/** "#/people/ID" shows the person; anything unknown shows the people. */
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
  } else if (view === "model") {
    model.show();
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
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
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
      byId("key-reason").textContent = refused
        ? "This key was not accepted. Enter another one; it is kept until you close this tab."
        : "This service is closed. Enter the key you were given; it is kept until you close this tab.";
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
    byId("foot-model").textContent =
      `Model ${found.model}, epoch ${found.best_epoch}, loaded ${new Date(found.loaded_at).toLocaleString("en-GB")}.`;
  } catch {
    // The footer is only a remark; the view itself says what is wrong.
  }
}

startTheme();
startKeys();
people.start();
compose.start();
window.addEventListener("hashchange", route);
route();
