"use strict";

const root = document.body.dataset.root.replace(/\/?$/, "/");
const query = document.getElementById("query");
const results = document.getElementById("results");
const sidebar = document.getElementById("sidebar");

// Some browsers keep nothing for pages that are opened as files; then nothing is remembered.
function remember(name, value) {
  try { localStorage.setItem(`poise-${name}`, value); } catch { }
}
function remembered(name) {
  try { return localStorage.getItem(`poise-${name}`); } catch { return null; }
}

// --- search ---

let loading;
function loadIndex() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `${root}search/index.js`;
    script.onload = resolve;
    script.onerror = reject;
    document.head.append(script);
  });
  return loading;
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

async function show() {
  await loadIndex();
  const found = query.value.trim() ? find(query.value) : [];
  results.hidden = !query.value.trim();
  results.replaceChildren(...found.map(({ place, page, title, excerpt }) => {
    const link = element("a", element("b", page === title ? page : `${page} › ${title}`));
    link.href = root + place;
    link.append(element("small", ...excerpt.map(([text, marked]) => (marked ? element("mark", text) : text))));
    return link;
  }));
  if (!found.length) results.append(element("p", "Nothing found"));
}

query.addEventListener("focus", loadIndex);
query.addEventListener("input", show);
document.addEventListener("click", ({ target }) => { if (!target.closest(".search")) results.hidden = true; });
document.addEventListener("keydown", (event) => {
  const links = [...results.querySelectorAll("a")];
  const at = links.indexOf(document.activeElement);
  if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) query.focus();
  else if (event.key === "Escape") { results.hidden = true; query.blur(); }
  else if (results.hidden || !links.length) return;
  else if (event.key === "ArrowDown") links[Math.min(at + 1, links.length - 1)].focus();
  else if (event.key === "ArrowUp") (links[at - 1] ?? query).focus();
  else if (event.key === "Enter" && document.activeElement === query) links[0].click();
  else return;
  event.preventDefault();
});

// --- the sidebar: its open groups and its place stay as they are from page to page ---

const groups = [...sidebar.querySelectorAll("details")];
const opened = new Set(JSON.parse(remembered("groups") ?? "[]"));
for (const group of groups) if (opened.has(group.dataset.group)) group.open = true;
sidebar.scrollTop = Number(remembered("place") ?? 0);
const current = sidebar.querySelector("[aria-current]");
if (current) {
  const { top, bottom } = current.getBoundingClientRect();
  const shown = sidebar.getBoundingClientRect();
  if (top < shown.top || bottom > shown.bottom) current.scrollIntoView({ block: "center" });
}
window.addEventListener("pagehide", () => {
  remember("groups", JSON.stringify(groups.filter((group) => group.open).map((group) => group.dataset.group)));
  remember("place", sidebar.scrollTop);
});
document.getElementById("menu").addEventListener("click", ({ currentTarget }) => {
  currentTarget.setAttribute("aria-expanded", sidebar.classList.toggle("shown"));
});

// --- light and dark ---

document.getElementById("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  remember("theme", document.documentElement.dataset.theme);
});

// --- code: a button that copies it; of a session in a shell the commands alone ---

function copied(block) {
  const copy = block.cloneNode(true);
  const session = copy.querySelector(".gp");
  for (const part of copy.querySelectorAll(".gp, .go")) part.remove();
  const text = copy.textContent;
  return session ? text.split("\n").filter((line) => line.trim()).join("\n") : text.trimEnd();
}

async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = element("textarea", text); // pages opened as files have no clipboard in some browsers
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

for (const block of document.querySelectorAll("main pre")) {
  const frame = element("div");
  frame.className = "code";
  block.replaceWith(frame);
  const button = element("button", "Copy");
  button.addEventListener("click", async () => {
    await toClipboard(copied(block));
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  frame.append(block, button);
}
