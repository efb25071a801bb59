// Runs before the page is drawn, so that it is never drawn in the wrong colours.
"use strict";
try {
  const kept = localStorage.getItem("headrace-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch { /* storage is off: the system's choice counts */ }
