// Training: every unit that reports its training, and its loss over time.

import { follow, said } from "../asking.js";
import { Table, badge, by, bytes, clock, el, figures, jobOf, jobPath, link, nanoseconds } from "../dom.js";
import { chart } from "../drawing.js";

export const title = "Training";
export const path = "/training";

const EVERY = 3000;
const CHARTS = 6;

const [AT, STEP, LOSS, WORLD, BATCH, ACCUMULATION, GOODPUT, PHASE] = [0, 1, 2, 3, 4, 5, 6, 7];
const per = (milli) => (milli ? (milli / 1000).toPrecision(4) : "-");
const loss = (value) => (value ? value.toPrecision(4) : "-");

export const energyOf = (one) => (one.energy ? `${(one.energy / 3.6e9).toPrecision(3)} kWh (${one.energy_source ?? "unknown"})` : "unknown");
export const batchOf = (one) => `${one.batch ?? "-"} × ${one.accumulation ?? 1}`;

export function lossChart(course) {
  const points = course.points.filter((one) => one[LOSS]).map((one) => [one[STEP], one[LOSS]]);
  const [first, last] = [points[0], points.at(-1)];
  return chart(`Loss of ${course.unit} by step${last ? `: ${loss(first[1])} at step ${first[0]}, ${loss(last[1])} at step ${last[0]}` : ""}`, points, (step) => `step ${step}`, loss);
}

// Ranges of consecutive points with the same phase, workers and batch.
function stretches(course) {
  const found = [];
  for (const one of course.points) {
    const key = [one[PHASE], one[WORLD], one[BATCH], one[ACCUMULATION]].join();
    if (found.at(-1)?.key !== key) found.push({ key, first: one, last: one });
    found.at(-1).last = one;
  }
  return found;
}

// Phases, batches and resizes of one course, as tables.
export function courseTables(course) {
  const phases = new Table({
    caption: `Phases and batches of ${course.unit}`,
    key: (one) => `${one.first[AT]}`,
    columns: [
      { title: "From step", number: true, text: (one) => one.first[STEP] }, { title: "To step", number: true, text: (one) => one.last[STEP] },
      { title: "Phase", text: (one) => one.first[PHASE] || "-" }, { title: "Workers", number: true, text: (one) => one.first[WORLD] },
      { title: "Batch × accumulation", number: true, text: (one) => `${one.first[BATCH] || "-"} × ${one.first[ACCUMULATION]}` },
      { title: "Loss at the end", number: true, text: (one) => loss(one.last[LOSS]) },
      { title: "Goodput, samples/s", number: true, text: (one) => per(one.last[GOODPUT]) },
    ],
  });
  phases.draw(stretches(course));
  const resizes = new Table({
    caption: `Resizes of ${course.unit} in place`,
    key: (one) => `${one[0]}`,
    empty: "No resizes in place",
    columns: [
      { title: "When", text: (one) => clock(one[0]) }, { title: "Joined", number: true, text: (one) => one[1] },
      { title: "Left", number: true, text: (one) => one[2] }, { title: "Why", text: (one) => one[3] },
    ],
  });
  resizes.draw(course.resizes);
  return [phases.element, resizes.element];
}

export function show(element, state, api) {
  const head = el("div");
  const note = el("p", { class: "quiet", role: "status" });
  const charts = el("div", { class: "charts" });
  const table = new Table({
    caption: "Units that train, the latest first",
    key: (one) => one.unit,
    empty: "No unit has said how it trains",
    columns: [
      { title: "Unit", text: (one) => one.unit, node: (one) => link(jobPath(jobOf(one.unit)), one.unit) },
      { title: "Name", text: (one) => one.name || "-" },
      { title: "Tenant", text: (one) => one.tenant },
      { title: "Status", text: (one) => (one.runs ? "running" : "stopped"), node: (one) => badge(one.runs ? "running" : "stopped") },
      { title: "Step", number: true, text: ({ said: now }) => now.step },
      { title: "Progress", number: true, text: ({ said: now }) => ((now.progress ?? -1) >= 0 ? `${(now.progress / 10000).toFixed(1)} %` : "-") },
      { title: "Loss", number: true, text: ({ said: now }) => loss(now.loss) },
      { title: "Phase", text: ({ said: now }) => now.phase || "-" },
      { title: "Workers", number: true, text: ({ said: now }) => now.world ?? 1 },
      { title: "Batch × accumulation", number: true, text: ({ said: now }) => batchOf(now) },
      { title: "Goodput, samples/s", number: true, text: ({ said: now }) => per(now.goodput) },
      { title: "Throughput, samples/s", number: true, text: ({ said: now }) => per(now.throughput) },
      { title: "Step time", number: true, text: ({ said: now }) => (now.step_time ? nanoseconds(now.step_time) : "-") },
      { title: "Sent per step", number: true, text: ({ said: now }) => (now.sent ? bytes(now.sent) : "-") },
      { title: "Resizes in place", number: true, text: (one) => one.resizes.length },
      { title: "Checkpoint", text: ({ said: now }) => (now.checkpoint ? `step ${now.checkpoint.step}` : "-") },
      { title: "Energy", text: ({ said: now }) => energyOf(now) },
    ],
  });
  element.append(el("h1", {}, title), head, charts, table.element, note, by("poise show JOB"));
  return follow(api, EVERY, () => api.data("training"), (told) => {
    note.textContent = "";
    const running = told.filter((one) => one.runs);
    head.replaceChildren(figures([["Training now", running.length, "training"], ["Workers now", running.reduce((all, one) => all + (one.said.world ?? 1), 0), "workers"]]));
    charts.replaceChildren(...running.slice(0, CHARTS).flatMap((one) => {
      const drawn = lossChart(one);
      return drawn ? [el("figure", {}, el("figcaption", {}, `Loss of ${one.unit} ${one.name}`), drawn)] : [];
    }));
    table.draw(told);
  }, (error) => { note.textContent = said(error); }).moved;
}
