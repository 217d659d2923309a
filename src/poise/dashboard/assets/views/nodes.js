// Nodes: allocation, load, and why a node is unused; and one node with its devices and its load history.

import { Table, badge, bytes, by, clock, cpus, duration, el, figures, filter, inOrder, jobOf, jobPath, link, nodePath, percent } from "../dom.js";
import { termsOf } from "./decisions.js";
import { stateOf } from "./now.js";

export const title = "Nodes";
export const path = "/nodes";

const SCORES = 50; // maximum number of rounds whose scores are shown
const SIGNALS_IN_WATTS = /power$/;

export function show(element, state, api) {
  return api.rest.length ? showNode(element, state, api, api.rest[0]) : showAll(element, state);
}

// Why a node, or a part of it, is unused now.
export function unused(node, waiting) {
  if (node.unfit) return `unfit: ${node.unfit}`;
  if (node.status !== "up") return node.status;
  const closed = (node.devices ?? []).filter((device) => device[3]).length;
  const free = (node.devices ?? []).filter((device) => stateOf(node, device) === "free").length;
  const idle = free ? `${free} free ${free === 1 ? "device" : "devices"}` : !node.devices && !node.running ? "free" : "";
  const why = idle && (waiting ? `${idle}: ${waiting} units wait, and do not fit or are not served yet` : `${idle}: nothing waits`);
  return [closed && `${closed} devices closed`, why].filter(Boolean).join("; ") || "-";
}

const waitingIn = (state) => Object.values(state.head.queue ?? {}).reduce((sum, count) => sum + count, 0);
const heldOf = (node) => `${node.devices.filter((device) => device[2]).length}/${node.devices.length}`;

function showAll(element, state) {
  const chosen = filter("Filter by name, status, rack or model", () => draw());
  const table = new Table({
    caption: "Nodes, by name",
    key: (node) => node.name,
    empty: "No node has joined",
    columns: [
      { title: "Node", text: (node) => node.name, node: (node) => link(nodePath(node.name), node.name) },
      { title: "Status", text: (node) => node.status, node: (node) => badge(node.status) },
      { title: "Place", text: (node) => [node.zone, node.rack].filter(Boolean).join("/") || "-" },
      { title: "CPU used", number: true, text: (node) => `${cpus(node.cpu_used)}/${cpus(node.cpu)}` },
      { title: "Memory used", number: true, text: (node) => `${bytes(node.memory_used)}/${bytes(node.memory)}` },
      { title: "Devices held", number: true, text: (node) => (node.devices ? heldOf(node) : "-") },
      { title: "Device models", text: (node) => [...new Set((node.devices ?? []).map((device) => device[1]))].join(", ") || "-" },
      { title: "Load", text: (node) => node.level || "-" },
      { title: "CPU busy", number: true, text: (node) => percent(node.busy ?? -1) },
      { title: "Memory busy", number: true, text: (node) => percent(node.memory_busy ?? -1) },
      { title: "Running", number: true, text: (node) => node.running ?? 0 },
      { title: "Queued", number: true, text: (node) => node.queued ?? 0 },
      { title: "Failures", number: true, text: (node) => percent(node.failures ?? 0) },
      { title: "Why not used", text: (node) => unused(node, waitingIn(state)) },
    ],
  });
  element.append(el("h1", {}, "Nodes"), el("div", { class: "controls" }, chosen.element), table.element, by("poise nodes", "poise profile"));

  function draw() {
    const nodes = inOrder(Object.values(state.nodes));
    table.draw(nodes.filter((node) => chosen.matches(node.name, node.status, node.rack ?? "", node.zone ?? "", node.model ?? "", ...(node.devices ?? []).map((device) => device[1]))));
  }
  draw();
  return (now, changed) => {
    state = now;
    if (changed.has("nodes") || changed.has("head")) draw();
  };
}

function showNode(element, state, api, name) {
  let left = false;
  api.onLeave(() => { left = true; });
  const head = el("div");
  const profile = el("div");
  const scored = el("div");
  const devices = new Table({
    caption: "Devices",
    key: (device) => device[0],
    empty: "It has no devices",
    columns: [
      { title: "Device", text: (device) => device[0] },
      { title: "Model", text: (device) => device[1] },
      { title: "Held by", text: (device) => device[2] || "-", node: (device) => (/^j\d/.test(device[2]) ? link(jobPath(jobOf(device[2])), device[2]) : device[2] || "-") },
      { title: "Closed because", text: (device) => device[3] || "-" },
    ],
  });
  const running = new Table({
    caption: "Tasks that run here, of the first that run",
    key: (task) => task.task,
    empty: "No task among the first that run",
    columns: [
      { title: "Task", text: (task) => task.task, node: (task) => link(jobPath(jobOf(task.task)), task.task) },
      { title: "Status", text: (task) => task.status, node: (task) => badge(task.status) },
      { title: "User", text: (task) => task.user || "-" },
      { title: "Devices", text: (task) => task.devices.join(", ") || "-" },
      { title: "CPUs", text: (task) => task.cpus.join(", ") || "-" },
      { title: "Runs since", text: (task) => clock(task.since) },
      { title: "Expected", number: true, text: (task) => (task.expected ? duration(task.expected / 1e9) : "unknown") },
    ],
  });
  const answers = new Map();
  const waiting = new Table({
    caption: "Waiting units, and why they are not here",
    key: (unit) => unit.unit,
    empty: "Nothing waits for room",
    page: 10,
    columns: [
      { title: "Unit", text: (unit) => unit.unit, node: (unit) => link(jobPath(jobOf(unit.unit)), unit.unit) },
      { title: "First reason", text: (unit) => unit.why || "-" },
      {
        title: "Why not here",
        text: (unit) => answers.get(unit.unit) ?? "ask",
        node: (unit) => answers.get(unit.unit) ?? el("button", { type: "button", "aria-label": `Why ${unit.unit} is not on ${name}`, onclick: () => ask(unit) }, "Ask"),
      },
    ],
  });
  element.append(el("h1", {}, name), head, el("h2", {}, "Devices"), devices.element, el("h2", {}, "Work"), running.element, waiting.element, by(`poise why-not JOB ${name}`), profile, scored);

  async function ask(unit) {
    answers.set(unit.unit, "…");
    draw();
    try {
      const told = await api.data("why-not", { job: unit.unit, node: name });
      answers.set(unit.unit, told.reasons.join("; ") || told.text || (told.fits ? `it fits here${told.chosen ? `, and ${told.chosen} is better` : ""}` : "unknown"));
    } catch (error) {
      answers.set(unit.unit, error.message);
    }
    if (!left) draw();
  }

  async function lookAtProfile() {
    try {
      const [told] = await api.data("profile", { node: name });
      if (left || !told) return;
      const signals = Object.entries(told.signals).map(([signal, use]) => ({ signal, ...use }));
      const amount = (signal, value) => (SIGNALS_IN_WATTS.test(signal) ? `${(value / 1000).toFixed(1)} W` : percent(value));
      const table = new Table({
        caption: "Load history",
        key: (one) => one.signal,
        empty: "Nothing has been measured yet",
        columns: [{ title: "Signal", text: (one) => one.signal.replace("_", " ") }, ...[["Last", "last"], ["Now", "smoothed"], ["Mean", "mean"], ["P95", "p95"], ["Peak", "peak"]].map(([titled, field]) => ({ title: titled, number: true, text: (one) => amount(one.signal, one[field]) }))],
      });
      table.draw(signals);
      const unusual = Object.entries(told.unusual ?? {}).map(([signal, one]) => el("li", {}, `${signal.replace("_", " ")}: ${amount(signal, one.value)}, usually ${amount(signal, one.usual)} (${one.by}; ${one.score.toFixed(1)} spreads apart)`));
      profile.replaceChildren(el("h2", {}, "Profile"), ...(unusual.length ? [el("p", {}, "Unusual now:"), el("ul", {}, unusual)] : []), el("p", {}, [told.pattern && `Pattern: ${told.pattern}`, told.advice && `advice: ${told.advice}`, told.why].filter(Boolean).join("; ")), table.element, by(`poise profile ${name}`));
    } catch (error) {
      if (!left) profile.replaceChildren(el("p", { class: "quiet" }, error.message));
    }
  }

  // Placements that chose or considered this node, each with its score.
  async function lookAtScores() {
    try {
      const told = await api.data("decisions", { node: name, count: SCORES, ...(api.at() === null ? {} : { before: state.head.revision + 1 }) });
      if (left) return;
      const rows = told.flatMap((round) => round.made.map((made, number) => ({ round, made, number })));
      const sum = (score) => Object.values(score ?? {}).reduce((all, value) => all + value, 0);
      const isChosen = ({ made }) => (made.where ?? []).some((place) => place.split("[")[0] === name);
      const scoreOf = (one) => (isChosen(one) ? sum(one.made.score) : one.made.instead_of?.[name]);
      const table = new Table({
        caption: "Latest decisions for which this node was chosen or weighed",
        key: (one) => `${one.round.revision}.${one.number}`,
        empty: "No decision weighed this node",
        page: 20,
        columns: [
          { title: "Round", number: true, text: (one) => one.round.revision }, { title: "When", text: (one) => clock(one.round.at) },
          { title: "Unit", text: (one) => one.made.of[0], node: (one) => link(jobPath(jobOf(one.made.of[0])), one.made.of[0]) },
          { title: "Chosen", text: (one) => (isChosen(one) ? "yes" : `no: ${(one.made.where ?? []).join(", ")}`) },
          { title: "Score", number: true, text: (one) => (scoreOf(one) === undefined || scoreOf(one) === null ? "-" : Number(scoreOf(one).toPrecision(4))) },
          { title: "Terms", text: (one) => (isChosen(one) ? termsOf(one.made.score) : "-") },
        ],
      });
      table.draw(rows);
      scored.replaceChildren(el("h2", {}, "Scores"), table.element, by(`poise decisions --node ${name}`));
    } catch (error) {
      if (!left) scored.replaceChildren(el("p", { class: "quiet" }, error.message));
    }
  }

  function draw() {
    const node = state.nodes[name];
    if (!node) {
      head.replaceChildren(el("p", {}, state.head.condition ? "No node of this name is known now." : "Loading"));
      return;
    }
    head.replaceChildren(
      el("p", {}, badge(node.status)),
      figures([
        ["CPU used", `${cpus(node.cpu_used)}/${cpus(node.cpu)}`, "cpu"], ["Memory used", `${bytes(node.memory_used)}/${bytes(node.memory)}`, "memory"],
        ["Running", node.running ?? 0, "running"], ["Queued", node.queued ?? 0, "queued"], ["Load", node.level || "-", "level"],
        ["CPU busy", percent(node.busy ?? -1), "busy"], ["Failures", percent(node.failures ?? 0), "failures"],
        ["Place", [node.zone, node.rack].filter(Boolean).join("/") || "-", "place"], ["Model", node.model || "-", "model"],
      ]),
      el("p", {}, `Why not used: ${unused(node, waitingIn(state))}`),
      by("poise nodes -o wide"),
    );
    devices.draw(node.devices ?? []);
    running.draw(Object.values(state.running).filter((task) => task.node === name));
    waiting.draw(Object.values(state.waiting).toSorted((one, other) => one.place - other.place));
  }
  draw();
  lookAtProfile();
  lookAtScores();
  return (now, changed) => {
    state = now;
    if (["nodes", "head", "running", "waiting"].some((part) => changed.has(part))) draw();
  };
}
