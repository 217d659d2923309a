"use strict";
// Before the first paint: the theme that was chosen here, if any was.
try {
  const chosen = localStorage.getItem("poise-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { }
