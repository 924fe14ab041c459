// Light, dark, or as the system has it. theme-first.js has set it before the first paint; this changes it.

const KEY = "kvpager.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage is off: the choice lasts as long as the page
  }
}

export const isDark = () => document.documentElement.dataset.theme === "dark";

function show(theme) {
  document.documentElement.dataset.theme = theme;
  document.dispatchEvent(new CustomEvent("theme"));
}

const wanted = () => stored() ?? (system.matches ? "dark" : "light");

export function startTheme(button) {
  const label = () => button.setAttribute("aria-label", isDark() ? "Switch to light" : "Switch to dark");
  show(wanted());
  label();
  system.addEventListener("change", () => {
    show(wanted());
    label();
  });
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // storage is off
    }
    show(theme);
    label();
  });
}
