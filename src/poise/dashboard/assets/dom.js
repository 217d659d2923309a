// Helpers for page elements. Data from the server is inserted as text, never as markup.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export const code = (text) => el("code", {}, text);

// The command that prints the same data.
export const by = (...commands) => el("p", { class: "by" }, "Printed by ", commands.flatMap((one, at) => (at ? [", ", code(one)] : [code(one)])));

export const link = (path, text) => el("a", { href: path }, text);
export const jobPath = (name) => `/jobs/${encodeURIComponent(name)}`;
export const nodePath = (name) => `/nodes/${encodeURIComponent(name)}`;
export const jobOf = (name) => name.split(".")[0];

// --- texts ---

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "unknown";
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 9.95 && !Number.isInteger(seconds)) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${String(whole % 60).padStart(2, "0")}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")}m`;
  return `${Math.floor(whole / 86400)}d${Math.floor((whole % 86400) / 3600)}h`;
}
export const nanoseconds = (count) => duration(count / 1e9);
export const ago = (instant) => (instant ? duration(Math.max(1, Math.floor(Date.now() / 1000 - instant))) : "-");
export const clock = (instant) => (instant ? new Date(instant * 1000).toLocaleString() : "-");
export const cpus = (milli) => String(milli / 1000);
export const percent = (thousandths) => (thousandths < 0 ? "-" : `${Math.round(thousandths / 10)} %`);

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) { count /= 1024; at += 1; }
  return `${count < 10 && at ? count.toFixed(1) : Math.round(count)} ${units[at]}`;
}

// A status is a sign and a word: colour alone is not accessible.
const SIGNS = {
  running: ["●", ""], placed: ["◕", ""], pending: ["◔", ""], waiting: ["○", ""], resting: ["○", ""], idle: ["○", ""], spare: ["○", ""],
  recovering: ["◌", "bad"], stopping: ["◍", ""], stopped: ["■", ""], done: ["✓", "good"], failed: ["✕", "bad"], cancelled: ["⊘", ""],
  skipped: ["↷", ""], up: ["✓", "good"], drained: ["–", ""], emptying: ["–", ""], suspect: ["?", "bad"], lost: ["✕", "bad"], unfit: ["!", "bad"],
  open: ["!", "bad"], closed: ["✓", "good"],
};
export function badge(status) {
  const [sign, kind] = SIGNS[status.split(/[ ,]/)[0]] ?? ["•", ""];
  return el("span", { class: "badge", "data-kind": kind }, `${sign} ${status}`);
}

export function figures(entries) {
  return el("dl", { class: "figures" }, entries.map(([name, value, key]) => el("div", {}, el("dt", {}, name), el("dd", { "data-figure": key }, value))));
}

// --- tables: rows keep their places, and only changed cells are redrawn ---

// Nodes in the order of their names, n2 before n10. The order is cached while the set of nodes is the same: sorting 10,000
// of them takes a tenth of a second.
const names = new Intl.Collator("en", { numeric: true });
let places = new Map();
export function inOrder(nodes) {
  if (nodes.length !== places.size || nodes.some((node) => !places.has(node.name))) {
    places = new Map(nodes.map((node) => node.name).sort(names.compare).map((name, at) => [name, at]));
  }
  const sorted = new Array(nodes.length);
  for (const node of nodes) sorted[places.get(node.name)] = node;
  return sorted;
}

// Columns are {title, text(item), node(item)?, number?}; `text` also shows whether the cell has changed.
export class Table {
  constructor({ caption, columns, key, empty = "Nothing", page = 200 }) {
    this.columns = columns;
    this.key = key;
    this.page = this.limit = page;
    this.rows = new Map();
    this.body = el("tbody");
    this.note = el("p", { class: "quiet" }, empty);
    this.empty = empty;
    this.more = el("button", { type: "button", hidden: true, onclick: () => { this.limit += this.page; this.draw(this.items); } });
    const heads = columns.map((column) => el("th", { scope: "col", class: column.number && "number" }, column.title));
    this.element = el("div", {},
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, heads)), this.body)),
      this.note, this.more);
  }

  draw(items) {
    this.items = items;
    const shown = items.slice(0, this.limit);
    const kept = new Map();
    shown.forEach((item, at) => {
      const key = this.key(item);
      const row = this.rows.get(key) ?? this.made(key);
      this.fill(row, item);
      kept.set(key, row);
      if (this.body.children[at] !== row) this.body.insertBefore(row, this.body.children[at] ?? null);
    });
    for (const [key, row] of this.rows) if (!kept.has(key)) row.remove();
    this.rows = kept;
    this.note.textContent = items.length ? "" : this.empty;
    this.more.hidden = items.length <= this.limit;
    this.more.textContent = `Show more (${items.length - shown.length} left)`;
  }

  made(key) {
    return el("tr", { "data-key": key }, this.columns.map((column, at) => el(at ? "td" : "th", { class: column.number && "number", scope: at ? null : "row" })));
  }

  fill(row, item) {
    this.columns.forEach((column, at) => {
      const cell = row.children[at];
      const text = String(column.text(item));
      if (cell.told === text) return;
      cell.told = text;
      cell.replaceChildren(column.node ? column.node(item) : text);
    });
  }
}

// A text field that filters rows, and its current value.
export function filter(label, changed) {
  const field = el("input", { type: "search", autocomplete: "off", oninput: () => changed() });
  return { element: el("label", {}, label, field), matches: (...texts) => texts.join(" ").toLowerCase().includes(field.value.trim().toLowerCase()), value: () => field.value.trim() };
}
