// Services: requests, latency, batches and refusals of the home's gateways.

import { follow, said } from "../asking.js";
import { Table, by, code, el, figures, jobPath, link, nanoseconds } from "../dom.js";

export const title = "Services";
export const path = "/services";

const EVERY = 2000;

const latency = (took) => (took ? (took < 1e9 ? `${Number((took / 1e6).toPrecision(3))} ms` : nanoseconds(took)) : "-");
const sum = (counts) => Object.values(counts).reduce((all, count) => all + count, 0);
const isMissed = (one) => one.objective > 0 && one.p99 > one.objective;

function objective(one) {
  if (!one.objective) return "-";
  return `${latency(one.objective)}${one.p99 ? (isMissed(one) ? " missed" : " met") : ""}`;
}

function refused(one) {
  const told = Object.entries(one.refused).filter(([, count]) => count).map(([why, count]) => `${count} ${why}`).join(", ");
  return told || "0";
}

export function show(element, state, api) {
  const head = el("div");
  const note = el("p", { class: "quiet", role: "status" });
  const table = new Table({
    caption: "Services and versions on trial, their figures for the last minute",
    key: (one) => `${one.service} ${one.url}`,
    empty: "No services",
    columns: [
      { title: "Service", text: (one) => one.service },
      { title: "Replicas", number: true, text: (one) => `${one.replicas}/${one.started}` },
      { title: "Rate", number: true, text: (one) => `${Number(one.rate.toPrecision(3))}/s` },
      { title: "Foreseen rate", number: true, text: (one) => (one.foreseen ? `${Number(one.foreseen.toPrecision(3))} ± ${Number(one.spread.toPrecision(2))}/s` : "-") },
      { title: "P50", number: true, text: (one) => latency(one.p50) },
      { title: "P95", number: true, text: (one) => latency(one.p95) },
      { title: "P99", number: true, text: (one) => latency(one.p99) },
      { title: "Objective of P99", text: objective, node: (one) => el("span", { class: "badge", "data-kind": isMissed(one) ? "bad" : one.p99 && one.objective ? "good" : "" }, objective(one)) },
      { title: "Answered", number: true, text: (one) => one.answered },
      { title: "Failed", number: true, text: (one) => one.failed },
      { title: "Cached", number: true, text: (one) => one.cached },
      { title: "Refused", text: refused },
      { title: "Waiting", number: true, text: (one) => one.waiting },
      { title: "Serving", number: true, text: (one) => one.serving },
      { title: "Mean batch", number: true, text: (one) => (one.batches ? Number(one.batch_mean.toPrecision(3)) : "-") },
      { title: "Largest batch", number: true, text: (one) => one.batch_max || "-" },
      { title: "Replica jobs", text: (one) => one.jobs.join(", ") || "-", node: (one) => el("span", {}, one.jobs.length ? one.jobs.flatMap((job, at) => [at ? ", " : "", link(jobPath(job), job)]) : "-") },
      { title: "Address", text: (one) => one.url, node: (one) => code(one.url) },
    ],
  });
  element.append(el("h1", {}, title), head, table.element, note, by("poise services -o wide"));
  return follow(api, EVERY, () => api.data("services"), (told) => {
    note.replaceChildren(...(told.length ? [] : ["A service starts with ", code("poise serve app.py:Model"), "."]));
    head.replaceChildren(figures([
      ["Services", new Set(told.map((one) => one.service)).size, "services"], ["Answers per second", Number(told.reduce((all, one) => all + one.rate, 0).toPrecision(3)), "rate"],
      ["Objectives missed", told.filter(isMissed).length, "missed"], ["Refused in the last minute", told.reduce((all, one) => all + sum(one.refused), 0), "refused"],
    ]));
    table.draw(told);
  }, (error) => { note.textContent = said(error); }).moved;
}
