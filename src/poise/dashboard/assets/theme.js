"use strict";
// Set the theme chosen in this browser, if any, before the first paint.
try {
  const chosen = localStorage.getItem("poise-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { }
