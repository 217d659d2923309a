// Queue: waiting units in order, with their reasons and expected starts.

import { Table, ago, by, code, el, figures, filter, jobOf, jobPath, link, nanoseconds } from "../dom.js";

export const title = "Queue";
export const path = "/queue";

const FORECAST = 5; // units at the head of the queue whose start is forecast without a click
const AGAIN_AFTER = 30_000;
const SHARE = 20; // wait 20 times the duration of a forecast before the next one, to limit the load on the control plane

export function startText(start) {
  if (!start) return "unknown";
  if (start.likely !== null) return `in ${nanoseconds(start.likely)} (${nanoseconds(start.earliest)} to ${nanoseconds(start.latest)})`;
  if (start.earliest !== null) return `not before ${nanoseconds(start.earliest)}`;
  if (start.guesses.length) return `unknown: the run time of ${start.guesses.join(", ")} is unknown`;
  return start.why ? `unknown: ${start.why}` : "unknown";
}

// All reasons of the unit, and all reasons of nodes.
export function reasonsOf(waiting) {
  const nodes = waiting.refusing.flatMap(({ count, nodes: some, reasons }) => (count === 1 ? reasons : [`${count} nodes (${some.join(", ")}${count > some.length ? ", …" : ""}): ${reasons.join("; ")}`]));
  return [...new Set([...waiting.reasons, ...nodes])];
}

export function show(element, state, api) {
  const forecasts = new Map(); // by unit: {start, at, why, asking, failed}
  let left = false;
  api.onLeave(() => { left = true; });
  const head = el("div");
  const note = el("p", { class: "quiet" });
  const chosen = filter("Filter by job, user or reason", () => draw());
  const table = new Table({
    caption: "Units that wait for room, in the order in which they are served",
    key: (unit) => unit.unit,
    empty: "Nothing waits for room",
    columns: [
      { title: "Unit", text: (unit) => unit.unit, node: (unit) => link(jobPath(jobOf(unit.unit)), unit.unit) },
      { title: "Place", number: true, text: (unit) => unit.place },
      { title: "Name", text: (unit) => state.jobs[jobOf(unit.unit)]?.name || "-" },
      { title: "Class", text: (unit) => unit.priority },
      { title: "User", text: (unit) => unit.user || "-" },
      { title: "Waits", number: true, text: (unit) => ago(unit.since) },
      { title: "First reason", text: (unit) => unit.why || "-" },
      { title: "Expected start: P50 (P10 to P90)", text: (unit) => expected(unit), node: (unit) => expectedNode(unit) },
    ],
  });
  element.append(el("h1", {}, "Queue"), head, el("div", { class: "controls" }, chosen.element), table.element, note,
    by("poise top", "poise eta", "poise explain JOB"));

  function expected(unit) {
    const known = forecasts.get(unit.unit);
    if (known?.failed) return known.failed;
    if (known?.explained) return startText(known.explained.start) + reasonsOf(known.explained).join();
    return known?.asking ? "…" : "ask";
  }

  function expectedNode(unit) {
    const text = expected(unit);
    if (text === "ask") return el("button", { type: "button", "aria-label": `Forecast the start of ${unit.unit}`, onclick: () => ask(unit) }, "Forecast");
    const known = forecasts.get(unit.unit)?.explained;
    if (!known) return text;
    const reasons = reasonsOf(known);
    return el("div", {}, el("span", { class: "start" }, startText(known.start)),
      reasons.length ? el("details", {}, el("summary", {}, `All reasons (${reasons.length})`), el("ul", { class: "reasons" }, reasons.map((one) => el("li", {}, one)))) : null);
  }

  async function ask(unit) {
    const known = { ...forecasts.get(unit.unit), why: unit.why, asking: true };
    forecasts.set(unit.unit, known);
    draw();
    const begun = performance.now();
    try {
      const told = await api.data("explanation", { job: unit.unit });
      Object.assign(known, { explained: told.waiting?.[0], failed: told.waiting?.length ? "" : "it no longer waits" });
    } catch (error) {
      known.failed = error.message;
    }
    const now = performance.now();
    Object.assign(known, { asking: false, until: now + Math.max(AGAIN_AFTER, SHARE * (now - begun)) });
    if (!left) draw();
    return now - begun;
  }

  // Request forecasts one at a time with pauses, so that an open page costs the control plane little.
  async function forecast() {
    while (!left) {
      const first = Object.values(state.waiting).filter((unit) => unit.place <= FORECAST);
      const due = first.find((unit) => { const known = forecasts.get(unit.unit); return !known || (!known.asking && (known.why !== unit.why || performance.now() > known.until)); });
      const took = due ? await ask(due) : 0;
      await new Promise((resolve) => { setTimeout(resolve, Math.max(500, SHARE * took)); });
    }
  }

  function draw() {
    const waiting = Object.values(state.waiting).toSorted((one, other) => one.place - other.place);
    for (const name of forecasts.keys()) if (!state.waiting[name]) forecasts.delete(name);
    const { queue = {}, blocked, more_waiting: more } = state.head;
    head.replaceChildren(figures([
      ["Waiting for room", Object.values(queue).reduce((sum, count) => sum + count, 0), "waiting"],
      ...Object.entries(queue).map(([name, count]) => [`Class ${name}`, count, `queue.${name}`]),
      ["Waiting for other work", blocked ?? "-", "blocked"],
    ]));
    note.replaceChildren(...(more ? [`${more} further units wait behind these: `, code("poise ls --status pending")] : []));
    table.draw(waiting.filter((unit) => chosen.matches(unit.unit, unit.user, unit.why, state.jobs[jobOf(unit.unit)]?.name ?? "")));
  }

  draw();
  forecast();
  return (now, changed) => {
    state = now;
    if (["head", "waiting", "jobs", "time"].some((part) => changed.has(part))) draw();
  };
}
