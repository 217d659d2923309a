// Jobs: the unfinished and the latest ended ones; and one job with its tasks, attempts, reasons, training and output.

import { Table, ago, badge, by, bytes, clock, code, duration, el, figures, filter, jobPath, link, nanoseconds, nodePath } from "../dom.js";
import { graph as drawnGraph } from "../drawing.js";
import { dollars, kilograms, kilowattHours } from "./energy.js";
import { reasonsOf, startText } from "./queue.js";
import { batchOf, courseTables, energyOf, lossChart } from "./training.js";

export const title = "Jobs";
export const path = "/jobs";

const EVERY = 2000; // milliseconds between two requests for an open job
const DRAWN = 80; // maximum number of tasks in a drawn graph
const ESCAPES = /\u001b\[[0-9;?]*[ -/]*[@-~]/g;

export function show(element, state, api) {
  return api.rest.length ? showJob(element, api, api.rest[0]) : showAll(element, state);
}

// --- the list ---

function showAll(element, state) {
  const chosen = filter("Filter by job, name, user, status or command", () => draw());
  const table = new Table({
    caption: "Unfinished jobs and the latest ended ones, newest first",
    key: (job) => job.id,
    empty: "No job",
    columns: [
      { title: "Job", text: (job) => job.id, node: (job) => link(jobPath(job.id), job.id) },
      { title: "Name", text: (job) => job.name || "-" },
      { title: "Status", text: (job) => statusOf(job), node: (job) => badge(statusOf(job)) },
      { title: "Tasks", text: (job) => countsOf(job) },
      { title: "User", text: (job) => job.user || "-" },
      { title: "Tenant", text: (job) => job.tenant },
      { title: "Submitted", text: (job) => clock(job.submitted) },
      { title: "Took", number: true, text: (job) => elapsed(job) },
      { title: "Command", text: (job) => job.command, node: (job) => code(job.command) },
    ],
  });
  element.append(el("h1", {}, "Jobs"), el("div", { class: "controls" }, chosen.element), table.element, by("poise ls"));

  function draw() {
    const jobs = Object.values(state.jobs).filter((job) => chosen.matches(job.id, job.name, job.user, statusOf(job), job.command));
    table.draw(jobs.toSorted((one, other) => Number(other.id.slice(1)) - Number(one.id.slice(1))));
  }
  draw();
  return (now, changed) => {
    state = now;
    if (changed.has("jobs") || changed.has("time")) draw();
  };
}

const statusOf = (job) => {
  if (job.idle_since) return `${job.status}, ${job.suspended ? "suspended, " : ""}idle since ${clock(job.idle_since)}`;
  return job.hold ? `${job.status}, held` : job.status;
};
const countsOf = (job) => Object.entries(job.counts).map(([status, count]) => `${count} ${status}`).join(", ");
const elapsed = (job) => duration((job.ended || Date.now() / 1000) - job.submitted);

// --- one job ---

function showJob(element, api, name) {
  let left = false;
  let report = null;
  api.onLeave(() => { left = true; });
  const head = el("div");
  const why = el("div");
  const graph = el("div");
  const training = el("div");
  const courses = el("div");
  const attempts = el("div");
  const captures = el("div");
  const spent = el("div");
  const output = el("div");
  const tasks = new Table({
    caption: "Tasks",
    key: (task) => task.task,
    columns: [
      { title: "Task", text: (task) => task.name },
      { title: "Status", text: (task) => task.outcome && task.outcome !== task.status ? `${task.status}: ${task.outcome}` : task.status, node: (task) => badge(task.outcome && task.outcome !== task.status && task.status === "failed" ? `failed: ${task.outcome}` : task.status) },
      { title: "Class", text: (task) => task.priority },
      { title: "Node", text: (task) => task.node || "-", node: (task) => (task.node ? link(nodePath(task.node), task.node) : "-") },
      { title: "Devices", text: (task) => task.devices.join(", ") || "-" },
      { title: "CPUs", text: (task) => task.cpus.join(", ") || "-" },
      { title: "Epoch", number: true, text: (task) => task.epoch },
      { title: "Waited", number: true, text: (task) => nanoseconds(task.wait) },
      { title: "Ran", number: true, text: (task) => (task.run ? nanoseconds(task.run) : "-") },
      { title: "Expected", number: true, text: (task) => (task.expected ? nanoseconds(task.expected) : "-") },
      { title: "Slack", number: true, text: (task) => (task.critical ? "critical" : task.slack ? nanoseconds(task.slack) : "-") },
      { title: "Peak memory", number: true, text: (task) => (task.peak ? bytes(task.peak) : "-") },
      { title: "Why", text: (task) => [task.why, ...task.reasons, task.note].filter(Boolean).join("; ") || "-" },
    ],
  });
  element.append(el("h1", {}, name), head, why, graph, training, courses, el("h2", {}, "Tasks"), tasks.element, attempts, captures, spent, output);

  async function look() {
    try {
      const told = await api.data("job", { job: name });
      if (left) return;
      report = told.job;
      drawJob(told.more_tasks);
      const trains = report.training.length > 0;
      const [explained, log, course] = await Promise.all([
        api.data("explanation", { job: name }).catch((error) => error), api.data("log", { job: name }).catch((error) => error),
        trains ? api.data("training", { job: name }).catch((error) => error) : [],
      ]);
      if (left) return;
      drawWhy(explained);
      drawLog(log);
      drawCourses(course);
    } catch (error) {
      if (!left && !report) head.replaceChildren(el("p", {}, error.message), el("p", {}, error.hint ?? ""));
    }
  }

  // Poll the job until it has ended.
  async function follow() {
    while (!left) {
      await look();
      if (report?.exit_code !== null && report) return;
      await new Promise((resolve) => { setTimeout(resolve, EVERY); });
    }
  }

  function drawJob(more) {
    const job = report;
    head.replaceChildren(
      el("p", {}, badge(statusOf(job)), " ", job.name && job.name !== name ? `${job.name} ` : "", code(job.command)),
      figures([
        ["Job", job.id, "id"], ["Tenant", job.tenant, "tenant"], ["User", job.user || "-", "user"], ["Submitted", clock(job.submitted), "submitted"],
        [job.ended ? "Took" : "So far", elapsed(job), "elapsed"], ["Exit code", job.exit_code ?? "-", "exit_code"],
        ...Object.entries(job.counts).map(([status, count]) => [`Tasks ${status}`, count, `counts.${status}`]),
      ]),
      ...(job.note ? [el("p", {}, job.note)] : []),
      by(`poise show ${job.id}`),
    );
    const isGraph = job.tasks.some((task) => task.needs.length);
    graph.replaceChildren(...(isGraph && job.tasks.length <= DRAWN ? [
      el("h2", {}, "Graph"),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Graph of the tasks" }, drawnGraph(`${job.tasks.length} tasks and what they need; thick lines are the critical path; the table below has them`,
        job.tasks.map((task) => ({ name: task.name, text: badge(task.status).textContent.replace(task.status, task.name), needs: task.needs, critical: task.critical })))),
    ] : []), ...(job.critical_path.length > 1 ? [
      el("h2", {}, "Critical path"),
      el("ol", { class: "path" }, job.critical_path.map((task) => el("li", {}, code(task)))),
      el("p", { class: "quiet" }, job.ended ? "" : `Expected still to come: ${job.remaining === null ? "unknown" : nanoseconds(job.remaining)}`),
    ] : []));
    tasks.draw(job.tasks);
    const past = job.tasks.flatMap((task) => task.attempts.map((one) => el("li", {}, `${task.name} epoch ${one.epoch} on ${one.node} ended ${one.outcome}${one.run ? ` after ${nanoseconds(one.run)}` : ""}${one.note ? `: ${one.note}` : ""}`)));
    attempts.replaceChildren(
      ...(more ? [el("p", { class: "quiet" }, `${more} further tasks: `, code(`poise show ${job.id}`))] : []),
      ...(past.length ? [el("h2", {}, "Earlier attempts"), el("ul", { id: "attempts" }, past)] : []));
    training.replaceChildren(...job.training.flatMap(drawTraining));
    captures.replaceChildren(...(job.captures.length ? [el("h2", {}, "Captures"), el("ul", {}, job.captures.map((one) => el("li", {}, `${one.task} epoch ${one.epoch}: ${one.kind}, ${bytes(one.size)}, ${clock(one.at)}. `, code(`poise capture ${job.id} --get ${one.name}`))))] : []));
    if (!spent.childElementCount) spent.append(el("h2", {}, "Energy and cost"), el("p", {}, el("button", { type: "button", onclick: account }, "Compute energy and cost")));
  }

  // Report since the job's submission. It reads the log since then, so it is made on request only.
  async function account() {
    const age = Math.ceil((Date.now() / 1000 - report.submitted) / 3600) + 1;
    const parameters = { job: name, period: age < 1000 ? `${age}h` : `${Math.min(999, Math.ceil(age / 24))}d` };
    spent.replaceChildren(el("h2", {}, "Energy and cost"), el("p", { role: "status" }, "The report is being made."));
    try {
      const told = await api.data("spent", parameters);
      const [one] = told.jobs;
      if (left) return;
      spent.lastChild.replaceWith(
        figures(one ? [["Energy of held devices", kilowattHours(one.energy ?? 0), "spent.energy"], ["CO2e", kilograms(one.co2), "spent.co2"], ["Price of held devices", dollars(one.price ?? 0), "spent.price"]] : []),
        by(`poise report ${told.flags} ${report.id}`));
    } catch (error) {
      if (!left) spent.lastChild.replaceWith(el("p", { role: "status" }, error.message));
    }
  }

  function drawCourses(told) {
    if (told instanceof Error) { courses.replaceChildren(el("p", { class: "quiet" }, told.message)); return; }
    courses.replaceChildren(...told.flatMap((one) => {
      const drawn = lossChart(one);
      return [...(drawn ? [el("figure", {}, el("figcaption", {}, `Loss of ${one.unit}`), drawn)] : []), ...courseTables(one)];
    }));
  }

  function drawWhy(told) {
    if (told instanceof Error) { why.replaceChildren(el("p", { class: "quiet" }, told.message)); return; }
    const waiting = told.waiting.map((one) => el("section", {},
      el("p", {}, el("strong", {}, one.named.join(", ")), ` waits${one.ahead ? `, behind ${one.ahead} others` : ""}. Expected start: `, el("span", { class: "start" }, startText(one.start)), "."),
      el("ul", { class: "reasons" }, reasonsOf(one).map((reason) => el("li", {}, reason)))));
    const running = told.running.map((one) => el("p", {}, el("strong", {}, one.unit), ` ${one.status} on `, one.nodes.flatMap((node, at) => [at ? ", " : "", link(nodePath(node), node)]), one.why ? `: ${one.why}` : ""));
    const story = told.story.map((one) => el("li", {}, el("span", { class: "quiet" }, `${clock(one.at)} `), one.text));
    why.replaceChildren(el("h2", {}, "Why"), ...waiting, ...running, story.length ? el("details", {}, el("summary", {}, `What happened (${story.length})`), el("ol", {}, story)) : "",
      by(`poise explain ${name}`, ...(waiting.length ? [`poise explain ${name} --unblock`] : [])));
  }

  const text = el("pre", { tabindex: "0", "aria-label": "The end of the output" });
  function drawLog(log) {
    if (log instanceof Error) return;
    const now = log.text.replace(ESCAPES, "");
    if (text.textContent !== now || !text.isConnected) {
      text.textContent = now;
      output.replaceChildren(el("h2", {}, "End of the output"), now ? text : el("p", { class: "quiet" }, "No output yet"), by(`poise logs ${name}`));
      text.scrollTop = text.scrollHeight;
    }
  }

  follow();
}

// The training that a gang reports.
function drawTraining({ unit, heard, said }) {
  const saved = said.checkpoint;
  const entries = [
    ["Step", said.step, "step"], ["Samples", said.samples, "samples"], ["Loss", said.loss || "-", "loss"], ["Phase", said.phase || "-", "phase"],
    ["Workers", said.world ?? 1, "world"], ["Resizes in place", said.resizes ? "yes" : "no", "resizes"], ["Batch × accumulation", batchOf(said), "batch"], ["Effective batch", said.effective ?? "-", "effective"],
    ["Step time", said.step_time ? nanoseconds(said.step_time) : "-", "step_time"],
    ["Goodput, samples/s", said.goodput ? said.goodput / 1000 : "-", "goodput"], ["Throughput, samples/s", said.throughput ? said.throughput / 1000 : "-", "throughput"],
    ["Progress", said.progress >= 0 ? `${(said.progress / 10000).toFixed(1)} %` : "-", "progress"],
    ["Last checkpoint", saved ? `step ${saved.step}, ${clock(saved.at)}` : "-", "saved"],
    ["Bytes sent per step", said.sent ? bytes(said.sent) : "-", "sent"], ["Peak device memory", said.memory ? bytes(said.memory) : "-", "memory"],
    ["Energy", energyOf(said), "energy"],
  ].filter(([, value]) => value !== undefined);
  return [el("h2", {}, `Training of ${unit}`), figures(entries), ...[said.restored, said.advice].filter(Boolean).map((text) => el("p", {}, text)), el("p", { class: "quiet" }, `Said ${ago(heard)} ago.`)];
}
