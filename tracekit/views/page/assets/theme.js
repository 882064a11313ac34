// Light or dark: what the system says, until told otherwise.

function isDark() {
  const told = document.documentElement.dataset.theme;
  return told ? told === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function addTheme() {
  const button = byId("theme");
  const tell = () => {
    button.setAttribute("aria-pressed", String(isDark()));
    redraw();
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    tell();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
  tell();
}
