// Before anything is painted: the theme last chosen here, else the system's. A classic script, so that it blocks.
{
  let theme = null;
  try {
    theme = localStorage.getItem("kvpager.theme");
  } catch {
    // storage is off
  }
  const isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}
