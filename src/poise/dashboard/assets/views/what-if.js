// What-if: two forecasts side by side, with and without a change. The fleet itself is not changed.

import { Table, by, code, el, figures, inOrder, nanoseconds } from "../dom.js";

export const title = "What-if";
export const path = "/what-if";

const POLICIES = ["poise", "fifo", "sjf", "srtf", "edf", "las", "tiresias", "goodput", "max-min", "finish-time-fair"];

const text = (of, one) => (one === null || one === undefined ? "never" : of === "count" ? String(one) : one <= 0 ? "now" : nanoseconds(one));
const range = (of, told) => `${text(of, told.p50)} (${text(of, told.p10)} to ${text(of, told.p90)})`;

function difference(one) {
  const by_ = one.difference.p50;
  if (by_ === null) return "for ever";
  if (by_ === 0) return "none";
  return `${by_ > 0 ? "+" : "−"}${one.of === "count" ? Math.abs(by_) : nanoseconds(Math.abs(by_))}`;
}

export function show(element, state, api) {
  let left = false;
  api.onLeave(() => { left = true; });
  const field = (label, name, hint) => { const input = el("input", { name, placeholder: hint, autocomplete: "off" }); return el("label", {}, label, input); };
  const nodes = el("select", { name: "without" });
  const policy = el("input", { name: "policy", list: "policies", autocomplete: "off", placeholder: "as now" });
  const run = el("button", { type: "submit" }, "Compare");
  const note = el("p", { class: "quiet", role: "status" });
  const head = el("div");
  const form = el("form", { class: "controls" },
    el("label", {}, "Policy", policy), el("datalist", { id: "policies" }, POLICIES.map((name) => el("option", { value: name }))),
    field("Add devices or nodes", "add", "2xA100-80"), el("label", {}, "Without node", nodes), field("Priorities", "priority", "JOB=high"), run);
  const table = new Table({
    caption: "Both futures: median (P10 to P90), from now",
    key: (one) => one.figure,
    empty: "No scenario was compared yet",
    columns: [
      { title: "Figure", text: (one) => one.figure },
      { title: "As it is", number: true, text: (one) => range(one.of, one.now) },
      { title: "Changed", number: true, text: (one) => range(one.of, one.then) },
      { title: "Median difference", number: true, text: difference },
    ],
  });
  const command = el("p", { class: "by" });
  element.append(el("h1", {}, "What-if"), el("p", {}, "Simulates pairs of futures of the present state, with the same run times in both. Nothing is changed."), form, head, table.element, note, command, by("poise what-if"));
  table.draw([]);

  function offer() {
    const names = inOrder(Object.values(state.nodes)).slice(0, 1000).map((node) => node.name);
    const known = nodes.value;
    nodes.replaceChildren(el("option", { value: "" }, "none"), ...names.map((name) => el("option", { value: name, selected: name === known }, name)));
  }
  offer();

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const asked = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value));
    if (!Object.keys(asked).length) { note.textContent = "Name a change first: a policy, devices, a node, or a priority."; return; }
    run.disabled = true;
    note.textContent = "Simulating, for some seconds.";
    try {
      const told = await api.data("what-if", asked);
      if (left) return;
      head.replaceChildren(figures([["Pairs of futures", told.futures, "futures"], ["Unfinished units", told.units, "units"], ["Policy now", told.policy, "policy"]]), el("p", {}, `If: ${told.changes.join(", ")}`));
      table.draw(told.figures);
      note.textContent = told.figures.length ? "" : "Nothing is unfinished: there is nothing to compare.";
      const flags = Object.entries(asked).flatMap(([name, value]) => value.split(",").map((one) => `--${name} ${one.trim()}`)).join(" ");
      command.replaceChildren("Printed by ", code(`poise what-if ${flags}`));
    } catch (error) {
      if (!left) note.textContent = [error.message, error.hint].filter(Boolean).join(". ");
    } finally {
      run.disabled = false;
    }
  });

  return (now, changed) => {
    state = now;
    if (changed.has("nodes")) offer();
  };
}
