// Incidents: symptoms with one suspected cause; and one incident with its evidence, timeline and remedies.

import { follow, said } from "../asking.js";
import { Table, ago, badge, by, clock, duration, el, figures, jobOf, jobPath, link, nodePath } from "../dom.js";

export const title = "Incidents";
export const path = "/incidents";

const EVERY = 5000;

const statusOf = (one) => (one.closed ? "closed" : "open");
const nameOf = ({ kind, name }) => `${kind} ${name}`.trim();
const suspects = (one) => [one.cause, ...one.tied];
const lasted = (one) => duration((one.closed || Date.now() / 1000) - one.opened);
const symptoms = (one) => Object.values(one.symptoms).reduce((sum, count) => sum + count, 0);

export function show(element, state, api) {
  return api.rest.length ? showOne(element, api, api.rest[0]) : showAll(element, api);
}

function showAll(element, api) {
  const head = el("div");
  const note = el("p", { class: "quiet", role: "status" });
  const table = new Table({
    caption: "Incidents, the newest first",
    key: (one) => one.id,
    empty: "No incidents",
    columns: [
      { title: "Incident", text: (one) => one.id, node: (one) => link(`${path}/${encodeURIComponent(one.id)}`, one.id) },
      { title: "Status", text: statusOf, node: (one) => badge(statusOf(one)) },
      { title: "Suspected cause", text: (one) => suspects(one).map(nameOf).join(" or ") },
      { title: "Score", number: true, text: (one) => one.cause.score.toFixed(2) },
      { title: "Symptoms", number: true, text: symptoms },
      { title: "Nodes", number: true, text: (one) => one.nodes.length + one.more_nodes },
      { title: "Jobs", number: true, text: (one) => one.jobs.length + one.more_jobs },
      { title: "Began", text: (one) => clock(one.opened) },
      { title: "Lasted", number: true, text: lasted },
      { title: "What", text: (one) => one.title },
    ],
  });
  element.append(el("h1", {}, title), head, table.element, note, by("poise incidents --all"));
  return follow(api, EVERY, () => api.data("incidents"), (told) => {
    note.textContent = "";
    head.replaceChildren(figures([["Open", told.filter((one) => !one.closed).length, "open"], ["Closed", told.filter((one) => one.closed).length, "closed"]]));
    table.draw(told.toReversed());
  }, (error) => { note.textContent = said(error); }).moved;
}

function showOne(element, api, name) {
  const body = el("div");
  element.append(el("h1", {}, `Incident ${name}`), body);
  const list = (titled, lines, kind = "ul") => (lines.length ? [el("h2", {}, titled), el(kind, {}, lines.map((line) => el("li", {}, line)))] : []);
  const links = (names, more, pathOf) => el("p", {}, names.flatMap((one, at) => [at ? ", " : "", link(pathOf(one), one)]), more ? `, and ${more} more` : "");
  const causes = new Table({
    caption: "Suspected causes",
    key: nameOf,
    columns: [{ title: "Cause", text: nameOf, node: (one) => (one.kind === "node" ? link(nodePath(one.name), nameOf(one)) : one.kind === "job" ? link(jobPath(one.name), nameOf(one)) : nameOf(one)) },
      { title: "Score", number: true, text: (one) => one.score.toFixed(2) }],
  });
  const kinds = new Table({ caption: "Symptoms", key: ([kind]) => kind, columns: [{ title: "Symptom", text: ([kind]) => kind }, { title: "Count", number: true, text: ([, count]) => count }] });
  return follow(api, EVERY, () => api.data("incident", { incident: name }), (one) => {
    causes.draw(suspects(one));
    kinds.draw(Object.entries(one.symptoms));
    body.replaceChildren(
      el("p", {}, badge(statusOf(one)), ` ${one.title}`),
      figures([["Began", clock(one.opened), "opened"], ["Lasted", lasted(one), "lasted"], ["Latest symptom", `${ago(one.last)} ago`, "last"], ["Score", one.cause.score.toFixed(2), "score"]]),
      el("h2", {}, "What to do"), el("p", { id: "hint" }, one.hint),
      causes.element,
      ...list("Evidence", one.evidence), ...list("What was done", one.done), ...list("Outputs", one.outputs),
      kinds.element,
      ...(one.nodes.length ? [el("h2", {}, "Nodes"), links(one.nodes, one.more_nodes, nodePath)] : []),
      ...(one.jobs.length ? [el("h2", {}, "Jobs"), links(one.jobs, one.more_jobs, (job) => jobPath(jobOf(job)))] : []),
      ...list("Timeline", one.timeline.map((step) => `${clock(step.at)} ${step.text}`), "ol"),
      ...list("Not delivered", Object.entries(one.undelivered).map(([target, why]) => `${target}: ${why}`)),
      by(`poise incidents ${name}`));
  }, (error) => { body.replaceChildren(el("p", { role: "status" }, said(error))); }).moved;
}
