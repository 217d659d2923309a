// The frame around the views: sign-in, stream, navigation, theme, and error messages.

import { code, el } from "./dom.js";
import * as place from "./place.js";
import { EMPTY, Stream, apply } from "./stream.js";
import { Past } from "./past.js";
import { VIEWS } from "./views.js";

const main = document.getElementById("main");
const banner = document.getElementById("banner");
const who = document.getElementById("who");

let state = EMPTY();
let view = null; // {module, update, leave}
let linked = true;
let ended = null;
let changed = new Set();

// --- the views ---

const find = (path) => VIEWS.find((one) => path === one.path || path.startsWith(`${one.path}/`));

async function ask(name, parameters = {}) {
  const answer = await fetch(`/data/${name}?${new URLSearchParams(parameters)}`);
  const told = await answer.json();
  if (answer.status === 401) say({ kind: "end", why: "session", text: told.error.message });
  if (!answer.ok) throw Object.assign(new Error(told.error.message), { hint: told.error.hint, code: told.error.code });
  return told;
}

// Data functions whose data is not in the log, so that they have no answer for a past moment.
const LIVE_ONLY = {
  explanation: "poise explain JOB", log: "poise logs JOB", profile: "poise profile", "why-not": "poise why-not JOB NODE",
  incidents: "poise incidents --all", incident: "poise incidents INCIDENT", services: "poise services",
  rules: "poise rules", budgets: "poise usage --budgets",
};
const OF_A_MOMENT = { job: "past-job", training: "training", spent: "spent" };

async function data(name, parameters = {}) {
  const at = past.at();
  if (at === null) return ask(name, parameters);
  if (LIVE_ONLY[name]) throw new Error(`This is not shown for a past moment. For the present: ${LIVE_ONLY[name]}`);
  return OF_A_MOMENT[name] ? ask(OF_A_MOMENT[name], { ...parameters, at }) : ask(name, parameters);
}

function go(path) {
  place.go(past.kept(path));
  open();
}

// Redraw when another moment is shown, or the present again.
const past = new Past(document.getElementById("past"), document.getElementById("look-back"), ask, () => {
  place.stay(past.kept(place.path()));
  if (!view || ended) return;
  if (view.rest.length) open();
  else view.update?.(shown(), new Set(Object.keys(shown())));
});
const shown = () => past.state ?? state;

function open() {
  leave();
  const path = place.path() === "/" ? VIEWS[0].path : place.path();
  const module = find(path);
  for (const one of document.querySelectorAll("#views a")) {
    if (one.getAttribute("href") === module?.path) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  const element = el("div");
  main.replaceChildren(element);
  if (!module) {
    document.title = "Unknown page · Poise";
    element.append(
      el("h1", {}, "Unknown page"),
      el("p", {}, "This version of the dashboard has no page ", code(path), "."),
      el("p", {}, "It has: ", VIEWS.flatMap((one, at) => [at ? ", " : "", el("a", { href: one.path }, one.title)])),
    );
    return;
  }
  const rest = path.slice(module.path.length).split("/").filter(Boolean).map(decoded);
  document.title = `${[module.title, ...rest].join(" ")} · Poise`;
  const leaving = [];
  view = { rest, leave: () => leaving.forEach((one) => one()) };
  const api = { data, go, rest, at: () => past.at(), onLeave: (what) => leaving.push(what) };
  view.update = module.show(element, shown(), api);
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

function leave() {
  view?.leave();
  view = null;
}

document.getElementById("views").append(...VIEWS.map((one) => el("li", {}, el("a", { href: one.path }, one.title))));

document.addEventListener("click", (event) => {
  const target = event.target.closest("a");
  if (!target || target.origin !== location.origin || target.hasAttribute("download") || target.rel === "external" || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  if (target.hash && target.pathname === location.pathname) { document.querySelector(target.hash)?.focus(); return; }
  go(target.pathname);
  main.focus();
});
addEventListener("popstate", open);

// --- messages of the stream ---

function say(message) {
  if (ended && message.kind !== "whole") return;
  if (message.kind === "whole") {
    state = message.state;
    Object.keys(state).forEach((part) => changed.add(part));
    if (ended) { ended = null; open(); }
  } else if (message.kind === "change") { apply(state, message.delta); Object.keys(message.delta).forEach((part) => changed.add(part)); }
  else if (message.kind === "link") linked = message.up;
  else if (message.kind === "end") { end(message); return; }
  draw();
}

let drawing = false;
function draw() {
  if (drawing) return;
  drawing = true;
  setTimeout(() => {
    drawing = false;
    if (ended) return;
    const parts = changed;
    changed = new Set();
    tellHead();
    if (past.state) parts.forEach((part) => part !== "theme" && parts.delete(part));
    if (parts.size) view?.update?.(shown(), parts);
  }, 50);
}

function tellHead() {
  const { condition, trouble, tenant, role, token } = state.head;
  who.textContent = role ? `${token || "owner"}, ${role} of ${tenant}` : "";
  if (!linked) tell("The dashboard does not answer. Its process may have ended: `poise dashboard` starts it. Trying again.");
  else if (condition === "away") tell(`No control plane answers: ${trouble}. The page shows the last known state. Trying again.`);
  else if (!condition) tell("Waiting for the first answer of the control plane.");
  else tell("");
}

function tell(text) {
  if (banner.textContent !== text) banner.textContent = text;
}

const ENDINGS = {
  revoked: ["Access has ended", "The control plane no longer accepts the token of this session."],
  session: ["No session", "This browser has no session with this dashboard, or it is over."],
  link: ["The link is not valid", "The link was used before, or has expired."],
  E120: ["Sign-in is not set up", "This control plane has no sign-in issuer."],
  E136: ["Sign-in was refused", "No rule gives your account a tenant. Ask an admin for one."],
  E218: ["Sign-in is not available", "The sign-in issuer does not answer."],
  refused: ["Sign-in was refused", "The sign-in issuer or Poise refused it."],
};

function end({ why, text }) {
  ended = why;
  leave();
  state = EMPTY();
  past.close();
  tell("");
  who.textContent = "";
  const [title, told] = ENDINGS[why] ?? ["Access has ended", text];
  document.title = `${title} · Poise`;
  main.replaceChildren(el("h1", {}, title), el("p", {}, told),
    el("p", {}, el("a", { href: "/sign-in", rel: "external" }, "Sign in"), " with your company account, or type ", code("poise dashboard"), " for a new link."));
}

setInterval(() => { if (view && !ended) { changed.add("time"); draw(); } }, 1000);

// --- the theme ---

const themes = ["system", "light", "dark"];
const button = document.getElementById("theme");
let theme = document.documentElement.dataset.theme ?? "system";

function useTheme() {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  button.textContent = `Theme: ${theme}`;
  try {
    if (theme === "system") localStorage.removeItem("poise-theme");
    else localStorage.setItem("poise-theme", theme);
  } catch { }
  changed.add("theme");
  draw();
}
button.addEventListener("click", () => { theme = themes[(themes.indexOf(theme) + 1) % themes.length]; useTheme(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { changed.add("theme"); draw(); });

// --- sign-in and sign-out ---

document.getElementById("leave").addEventListener("click", async () => {
  await fetch("/leave", { method: "POST" });
  say({ kind: "end", why: "session" });
});

function connect(again) {
  if (typeof SharedWorker === "undefined") { new Stream(say); return; }
  const worker = new SharedWorker("/worker.js", { type: "module", name: "poise" });
  worker.port.onmessage = ({ data: message }) => say(message);
  worker.port.start();
  if (again) worker.port.postMessage("again");
  addEventListener("pagehide", () => worker.port.postMessage("leave"));
  addEventListener("pageshow", ({ persisted }) => { if (persisted) location.reload(); });
}

async function enter() {
  const secret = location.hash.match(/^#link=([\w-]+)$/)?.[1], refused = location.hash.match(/^#refused=(E\d{3})$/)?.[1];
  if (refused) {
    history.replaceState(null, "", location.pathname);
    say({ kind: "end", why: refused in ENDINGS ? refused : "refused" });
    return;
  }
  if (secret) {
    history.replaceState(null, "", location.pathname);
    const answer = await fetch("/session", { method: "POST", body: JSON.stringify({ link: secret }) });
    if (!answer.ok) { say({ kind: "end", why: "link" }); return; }
  }
  useTheme();
  await past.begin();
  open();
  connect(Boolean(secret));
}

enter();
