// Runs before the page is drawn, so that a chosen theme does not flash: no module, no imports.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("coheat-theme");
  } catch {
    // Storage may be forbidden; the system's theme serves as well.
  }
  if (chosen === "light" || chosen === "dark") {
    document.documentElement.dataset.theme = chosen;
  }
})();
