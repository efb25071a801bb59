// What pages do in the browser: stay live, tell what became of clicks, and obey the keyboard. Data goes into the page
// as text only, or as HTML that our server has rendered.
"use strict";
(() => {
  const base = document.body.dataset.base;
  const get = (selector) => document.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const SOON = 1500, POLL = 5000;

  // -- live

  let on = true, stream = null, due = null, last = 0;
  const busy = () =>
    document.hidden || !on || get("dialog[open], .htmx-request") || get("#live input:checked") ||
    get("#live details[open]") || (document.activeElement?.closest("#live") && document.activeElement.matches("input, select, textarea"));

  async function refresh() {
    due = null;
    const before = get("[data-live]");
    if (!before || busy()) return;
    last = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { "HX-Request": "true" }, credentials: "same-origin" });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const after = page.querySelector("[data-live]");
      // A server that was started anew has another secret.
      document.body.setAttribute("hx-headers", page.body.getAttribute("hx-headers"));
      if (!after || busy() || !before.isConnected) return;
      const row = rows().findIndex((one) => one.contains(document.activeElement));
      before.replaceWith(after);
      window.htmx.process(after);
      settle(after);
      if (row >= 0) focusRow(row);
      told(true);
    } catch {
      told(false);
    }
  }

  function soon() {
    if (due === null) due = setTimeout(refresh, Math.max(0, SOON - (Date.now() - last)));
  }

  function told(well) {
    const button = get("[data-toggle-live]");
    button.classList.toggle("off", !on);
    button.classList.toggle("away", on && !well);
    button.setAttribute("aria-pressed", String(on));
    button.lastElementChild.textContent = !on ? "stopped" : well ? "live" : "away";
  }

  function listen() {
    stream?.close();
    stream = null;
    if (!on || document.hidden || !get("[data-live]")) return;
    stream = new EventSource(`${base}/api/v1/events`);
    stream.addEventListener("digest", (event) => {
      const digest = JSON.parse(event.data);
      if (digest.tallies.length || digest.happenings.length) soon();
    });
  }

  function toggle() {
    on = !on;
    told(true);
    listen();
    if (on) refresh();
  }

  setInterval(() => { if (on && Date.now() - last >= POLL) soon(); }, 1000);
  document.addEventListener("visibilitychange", () => { listen(); if (!document.hidden) soon(); });
  addEventListener("pagehide", () => stream?.close());

  // -- what became of clicks

  function toast(sentence, wrong) {
    const told = document.createElement("p");
    told.className = wrong ? "toast wrong" : "toast";
    told.textContent = sentence;
    get("#toasts").append(told);
    get("#toasts").dataset.last = sentence;
    setTimeout(() => told.remove(), wrong ? 12000 : 6000);
  }

  document.addEventListener("headrace:told", (event) => {
    if (event.detail.leaves) {
      // The next page tells it.
      try { sessionStorage.setItem("headrace-told", event.detail.sentence); } catch { /* then nobody does */ }
      return;
    }
    toast(event.detail.sentence, event.detail.wrong);
    all("input[name=id]:checked").forEach((box) => { box.checked = false; });
    chosen();
    if (get("[data-live]")) refresh();
    else if (get("#live")) setTimeout(() => location.reload(), 900);
  });
  document.addEventListener("htmx:responseError", (event) => {
    const answer = event.detail.xhr;
    let sentence = `the server answered ${answer.status}`;
    try { sentence = JSON.parse(answer.responseText).error; } catch {
      const page = new DOMParser().parseFromString(answer.responseText, "text/html").querySelector(".error p");
      if (page) sentence = page.textContent;
    }
    toast(sentence, true);
  });
  document.addEventListener("htmx:sendError", () => toast("the server does not answer", true));
  document.addEventListener("htmx:confirm", (event) => {
    if (!event.detail.question) return;
    event.preventDefault();
    const dialog = get("#confirm");
    get("#confirm-text").textContent = event.detail.question;
    dialog.returnValue = "no";
    dialog.addEventListener("close", () => {
      if (dialog.returnValue === "yes") event.detail.issueRequest(true);
    }, { once: true });
    dialog.showModal();
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id === "dialog-body" && !get("#dialog").open) get("#dialog").showModal();
    settle(event.detail.target);
  });

  // -- choosing rows

  function chosen() {
    const form = get("#chosen");
    if (!form) return;
    const count = all("input[name=id]:checked").length;
    form.hidden = count === 0;
    form.querySelector("[data-count]").textContent = String(count);
  }

  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.matches("[data-all]")) all("input[name=id]").forEach((one) => { one.checked = box.checked; });
    if (box.matches("[data-submit]")) box.form.requestSubmit();
    if (box.matches("select[name=action]")) argument(box);
    chosen();
  });

  function argument(select) {
    const field = select.form.querySelector("[data-argument]");
    if (!field) return;
    const hints = { move: "to queue", prioritise: "priority", reschedule: "delay, such as 10m; empty: now" };
    field.hidden = !(select.value in hints);
    field.disabled = field.hidden;
    field.placeholder = hints[select.value] ?? "";
  }

  // -- clicks

  document.addEventListener("click", (event) => {
    const target = event.target.closest("button, a");
    if (!target) return;
    if (target.matches("[data-close]")) target.closest("dialog").close();
    if (target.matches("[data-none]")) {
      all("input[name=id]:checked, [data-all]").forEach((box) => { box.checked = false; });
      chosen();
    }
    if (target.matches("[data-toggle-live]")) toggle();
    if (target.matches("[data-help]")) get("#help").showModal();
    if (target.matches("[data-menu]")) menu(target.getAttribute("aria-expanded") !== "true");
    if (target.matches("[data-example]")) target.form.elements.sql.value = target.dataset.example;
    if (target.matches("[data-theme-button]")) theme();
  });

  function menu(open) {
    get("#nav").classList.toggle("open", open);
    get("[data-menu]").setAttribute("aria-expanded", String(open));
  }

  function theme() {
    const dark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("headrace-theme", document.documentElement.dataset.theme); } catch { /* for this page only */ }
  }

  // -- keyboard

  let going = false;
  const rows = () => all("[data-row]");

  function focusRow(at) {
    const row = rows()[Math.max(0, Math.min(at, rows().length - 1))];
    (row?.querySelector("[data-open]") ?? row?.querySelector("a, button"))?.focus();
    row?.scrollIntoView({ block: "nearest" });
  }

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") menu(false);
    if (event.ctrlKey || event.metaKey || event.altKey || get("dialog[open]")) return;
    if (event.target.matches("input:not([type=checkbox]), select, textarea")) return;
    const at = rows().findIndex((one) => one.contains(document.activeElement));
    if (going) {
      going = false;
      const link = all("nav.side a").find((one) => one.dataset.key === event.key);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    const deeds = {
      "/": () => (get("[data-filter]") ?? get("[data-search]")).focus(),
      "?": () => get("#help").showModal(),
      g: () => { going = true; },
      j: () => focusRow(at + 1),
      k: () => focusRow(at < 0 ? 0 : at - 1),
      x: () => rows()[at]?.querySelector("input[name=id]")?.click(),
      l: toggle,
      r: refresh,
    };
    if (event.target.matches("input[name=id]")) deeds.Enter = () => rows()[at]?.querySelector("[data-open]")?.click();
    if (event.key in deeds) { event.preventDefault(); deeds[event.key](); }
  });

  // -- the viewer's own clock

  function settle(within) {
    all("time[data-here]", within).forEach((one) => {
      // Written as the server writes instants: Swedish dates are ISO's.
      one.textContent = new Date(one.dateTime).toLocaleString("sv-SE", {
        year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
        timeZoneName: "short",
      });
    });
    all("time:not([data-here])", within).forEach((one) => {
      one.title = `${new Date(one.dateTime).toLocaleString()} · ${one.title}`;
    });
    all("select[name=action]", within).forEach(argument);
  }

  settle(document);
  listen();
  try {
    const sentence = sessionStorage.getItem("headrace-told");
    if (sentence) toast(sentence, false);
    sessionStorage.removeItem("headrace-told");
  } catch { /* as before */ }
})();
