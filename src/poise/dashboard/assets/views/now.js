// Now: every node with its devices, coloured by job or by state. A large fleet is grouped by rack.

import { Table, badge, bytes, by, cpus, el, figures, inOrder, jobOf, jobPath, link, nodePath, percent } from "../dom.js";

export const title = "Now";
export const path = "/now";

const FOLD_ABOVE = 400;
const IN_A_BLOCK = 64;
const CELL = 22;
const GAP = 3;
const LABEL = 15;

const JOB_COLOURS = ["#8fc1ec", "#f2c078", "#9fd8a4", "#e7a6d3", "#c9b8f0", "#f0e08a", "#8fd9d3", "#f3b5a0"];
const LOST = /^(lost|suspect|unfit)/;

// --- states of devices and nodes ---

export function stateOf(node, device) {
  if (device?.[3]) return "failed";
  if (LOST.test(node.status) || node.unfit) return "failed";
  if (device ? device[2] : node.running) return "held";
  return node.status === "up" ? "free" : "closed";
}
const SIGN = { free: "", held: "●", closed: "–", failed: "✕" };
const WORDS = { free: "free", held: "held", closed: "closed to new work", failed: "lost, unfit or failed" };

export function colourOf(job) {
  let sum = 0;
  for (const letter of job) sum = (sum * 31 + letter.codePointAt(0)) >>> 0;
  return JOB_COLOURS[sum % JOB_COLOURS.length];
}

// Nodes grouped by rack, or in blocks of consecutive nodes where no rack or zone is known.
export function groups(nodes) {
  const sorted = inOrder(nodes);
  const named = new Map();
  sorted.forEach((node, at) => {
    const place = [node.zone, node.rack].filter(Boolean).join("/");
    const block = Math.floor(at / IN_A_BLOCK) * IN_A_BLOCK;
    const name = place || (nodes.length > FOLD_ABOVE ? `${sorted[block].name} …` : "");
    if (!named.has(name)) named.set(name, []);
    named.get(name).push(node);
  });
  return [...named].map(([name, members]) => ({ name, members, ...counted(members) }));
}

export function counted(nodes) {
  const told = { devices: 0, held: 0, failed: 0, cpu: 0, cpu_used: 0, running: 0, queued: 0 };
  for (const node of nodes) {
    told.cpu += node.cpu;
    told.cpu_used += node.cpu_used;
    told.running += node.running ?? 0;
    told.queued += node.queued ?? 0;
    for (const device of node.devices ?? []) {
      told.devices += 1;
      told.held += Boolean(device[2]);
      told.failed += stateOf(node, device) === "failed";
    }
  }
  return told;
}

// --- the picture ---

class Map2D {
  constructor(hovered, chosen) {
    this.element = el("canvas", { class: "map", role: "img" });
    this.cells = [];
    this.lit = "";
    this.element.addEventListener("mousemove", (event) => { this.hover(this.at(event)); hovered(this.over); });
    this.element.addEventListener("mouseleave", () => { this.hover(null); hovered(null); });
    this.element.addEventListener("click", (event) => { const cell = this.at(event); if (cell) chosen(cell); });
    this.watching = new ResizeObserver(() => this.draw());
    this.watching.observe(this.element);
  }

  hover(cell) {
    this.over = cell;
    const lit = cell?.job ?? "";
    if (lit !== this.lit) { this.lit = lit; this.draw(); }
  }

  at(event) {
    const { left, top } = this.element.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    return this.cells.find((cell) => x >= cell.x && x < cell.x + cell.w && y >= cell.y && y < cell.y + cell.h) ?? null;
  }

  // Blocks are {label, cells: [{sign, colour, share, job, …}]}, drawn side by side.
  show(blocks, about) {
    this.blocks = blocks;
    this.element.setAttribute("aria-label", about);
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    if (!this.blocks || !width) return;
    this.cells = [];
    let [x, y, row] = [GAP, GAP, 0];
    for (const block of this.blocks) {
      const columns = Math.min(block.cells.length || 1, block.columns ?? 8);
      const wide = Math.max(columns * CELL, Math.min(block.label.length * 7, width - 2 * GAP));
      const high = LABEL + Math.ceil(block.cells.length / columns) * CELL;
      if (x + wide > width - GAP && x > GAP) { x = GAP; y += row + 2 * GAP; row = 0; }
      block.x = x; block.y = y; block.w = wide;
      block.cells.forEach((cell, at) => {
        const w = cell.wide ? Math.min(wide, width - 2 * GAP) : CELL - 2;
        this.cells.push(Object.assign(cell, { x: x + (at % columns) * CELL, y: y + LABEL + Math.floor(at / columns) * CELL, w, h: CELL - 2 }));
      });
      x += wide + 3 * GAP;
      row = Math.max(row, high);
    }
    this.paint(width, y + row + GAP);
  }

  paint(width, height) {
    const scale = devicePixelRatio || 1;
    const canvas = this.element;
    canvas.style.height = `${height}px`;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const [text, line, lit] = [colour("text"), colour("line"), colour("lit")];
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.textBaseline = "middle";
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = text;
    for (const { label, x, y, w } of this.blocks) context.fillText(label, x, y + LABEL / 2, w);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    for (const cell of this.cells) {
      context.fillStyle = colour("free");
      context.fillRect(cell.x, cell.y, cell.w, cell.h);
      context.fillStyle = cell.colour.startsWith("#") ? cell.colour : colour(cell.colour);
      context.fillRect(cell.x, cell.y, cell.w * cell.share, cell.h);
      const isLit = this.lit && cell.job === this.lit;
      context.strokeStyle = isLit ? lit : line;
      context.lineWidth = isLit ? 2.5 : 1;
      context.strokeRect(cell.x + 0.5, cell.y + 0.5, cell.w - 1, cell.h - 1);
      context.fillStyle = cell.colour.startsWith("#") ? "#111111" : text;
      if (cell.sign) context.fillText(cell.sign, cell.x + cell.w / 2, cell.y + cell.h / 2 + 1, cell.w - 3);
    }
  }
}

function deviceCell(node, device, byJob) {
  const state = stateOf(node, device);
  const holder = device[2];
  const job = holder ? jobOf(holder) : "";
  const told = `${node.name} device ${device[0]} (${device[1]}): ${device[3] || (state === "held" ? `held by ${holder}` : WORDS[state])}`;
  return {
    node: node.name, job, told, share: 1,
    colour: byJob && state === "held" ? colourOf(job) : state,
    sign: byJob && state === "held" ? job : SIGN[state],
  };
}

function nodeCell(node) {
  const state = stateOf(node);
  const told = `${node.name}: ${cpus(node.cpu_used)} of ${cpus(node.cpu)} CPU used, ${node.running ?? 0} running`;
  const share = state === "failed" || state === "closed" ? 1 : Math.min(1, node.cpu_used / Math.max(1, node.cpu));
  return { node: node.name, job: "", told, share, colour: state, wide: true, sign: state === "failed" || state === "closed" ? SIGN[state] : `${cpus(node.cpu_used)}/${cpus(node.cpu)}` };
}

function nodeBlock(node, byJob) {
  const cells = (node.devices ?? []).map((device) => deviceCell(node, device, byJob));
  return { label: node.name, cells: cells.length ? cells : [nodeCell(node)], columns: 8 };
}

function rackBlock(group) {
  const [used, all] = group.devices ? [group.held, group.devices] : [group.cpu_used / 1000, group.cpu / 1000];
  const told = `${group.name}: ${group.members.length} nodes, ${used} of ${all} ${group.devices ? "devices" : "CPU"} used${group.failed ? `, ${group.failed} failed` : ""}`;
  const cell = { group: group.name, job: "", told, share: used / Math.max(1, all), colour: "held", wide: true, sign: `${used}/${all}${group.failed ? " ✕" : ""}` };
  return { label: `${group.name} (${group.members.length})`, cells: [cell] };
}

// --- the view ---

export function show(element, state, api) {
  let opened = null;
  const colouring = el("select", { onchange: () => draw() }, el("option", { value: "job" }, "job"), el("option", { value: "state" }, "state"));
  const back = el("button", { type: "button", hidden: true, onclick: () => { opened = null; draw(); } }, "All racks");
  const hovered = el("p", { class: "hovered quiet" });
  const map = new Map2D(
    (cell) => { hovered.textContent = cell ? cell.told : "Point at a cell for its details. Click it to open its job or node."; },
    (cell) => {
      if (cell.group !== undefined) { opened = cell.group; draw(); }
      else api.go(cell.job ? jobPath(cell.job) : nodePath(cell.node));
    },
  );
  api.onLeave(() => map.watching.disconnect());
  const head = el("div");
  const nodesTable = new Table({
    caption: "Nodes and their use",
    key: (node) => node.name,
    empty: "No node has joined",
    columns: [
      { title: "Node", text: (node) => node.name, node: (node) => link(nodePath(node.name), node.name) },
      { title: "Status", text: (node) => node.unfit || node.status, node: (node) => badge(node.unfit ? `unfit: ${node.unfit}` : node.status) },
      { title: "CPU used", number: true, text: (node) => `${cpus(node.cpu_used)}/${cpus(node.cpu)}` },
      { title: "Memory used", number: true, text: (node) => `${bytes(node.memory_used)}/${bytes(node.memory)}` },
      { title: "Devices held", number: true, text: (node) => (node.devices ? `${node.devices.filter((one) => one[2]).length}/${node.devices.length}` : "-") },
      { title: "Busy", number: true, text: (node) => percent(node.busy ?? -1) },
      { title: "Running", number: true, text: (node) => node.running ?? 0 },
      { title: "Jobs", text: (node) => jobsOn(node).join(" "), node: (node) => el("span", {}, jobsOn(node).flatMap((job) => [link(jobPath(job), job), " "])) },
    ],
  });
  const racksTable = new Table({
    caption: "Racks",
    key: (group) => group.name,
    columns: [
      { title: "Rack", text: (group) => group.name, node: (group) => el("button", { type: "button", onclick: () => { opened = group.name; draw(); } }, group.name) },
      { title: "Nodes", number: true, text: (group) => group.members.length },
      { title: "Devices held", number: true, text: (group) => `${group.held}/${group.devices}` },
      { title: "CPU used", number: true, text: (group) => `${cpus(group.cpu_used)}/${cpus(group.cpu)}` },
      { title: "Failed", number: true, text: (group) => group.failed },
    ],
  });
  const legend = el("ul", { class: "legend", "aria-label": "Signs" }, Object.entries(WORDS).map(([name, words]) => el("li", {}, el("span", { class: name }, SIGN[name] || " "), words)));
  element.append(
    el("h1", {}, "Now"), head,
    el("div", { class: "controls" }, el("label", {}, "Colour by", colouring), back),
    map.element, hovered, legend, by("poise nodes", "poise top"),
    el("h2", {}, "The same as a table"), racksTable.element, nodesTable.element,
  );
  map.element.dispatchEvent(new Event("mouseleave"));

  function jobsOn(node) {
    const held = (node.devices ?? []).map((device) => device[2]).filter((holder) => /^j\d/.test(holder));
    const running = tasksOn.get(node.name) ?? [];
    return [...new Set([...held, ...running].map(jobOf))].slice(0, 8);
  }

  let tasksOn = new Map();
  let all = counted([]);
  function drawHead() {
    head.replaceChildren(figures([
      ["Nodes up", state.head.nodes_up ?? "-", "nodes_up"],
      ["Nodes lost", state.head.nodes_lost ?? "-", "nodes_lost"],
      ["Devices held", `${all.held}/${all.devices}`, "devices"],
      ["CPU used", `${cpus(all.cpu_used)}/${cpus(all.cpu)}`, "cpu"],
      ["Unfinished jobs", state.head.unfinished ?? "-", "unfinished"],
      ["Starts per second", state.head.starts ?? "-", "starts"],
      ["Ends per second", state.head.ends ?? "-", "ends"],
    ]));
  }
  function draw() {
    tasksOn = Map.groupBy(Object.values(state.running), (task) => task.node);
    for (const [node, tasks] of tasksOn) tasksOn.set(node, tasks.map((task) => task.task));
    const nodes = Object.values(state.nodes);
    const found = groups(nodes);
    all = counted(nodes);
    drawHead();
    const folds = nodes.length > FOLD_ABOVE;
    const group = folds ? found.find((one) => one.name === opened) : null;
    back.hidden = !group;
    racksTable.element.hidden = !folds || Boolean(group);
    nodesTable.element.hidden = folds && !group;
    const about = `${nodes.length} nodes, ${all.held} of ${all.devices} devices held; the table below has the same figures`;
    if (folds && !group) {
      racksTable.draw(found);
      map.show(found.map(rackBlock), about);
    } else {
      const members = group ? group.members : found.flatMap((one) => one.members);
      nodesTable.draw(members);
      map.show(members.map((node) => nodeBlock(node, colouring.value === "job")), about);
    }
  }

  draw();
  return (now, changed) => {
    state = now;
    if (["nodes", "running", "theme"].some((part) => changed.has(part))) draw();
    else if (changed.has("head")) drawHead();
  };
}
