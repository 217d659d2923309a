// Rules: what each does, its last firing or why it does not act, the budget, and what waits for approval.

import { follow, said } from "../asking.js";
import { Table, ago, badge, by, code, el, figures, link, nodePath } from "../dom.js";

export const title = "Rules";
export const path = "/rules";

const EVERY = 5000;

const where = (firing) => firing.subject || "the fleet";
const last = (rule) => rule.firings[0];
const statusOf = (firing) => (firing.over ? `${firing.outcome}, over` : firing.outcome);
const paths = { node: nodePath, service: () => "/services" };
const of = (firing) => (firing.about in paths ? link(paths[firing.about](firing.subject), firing.subject) : where(firing));

export function show(element, state, api) {
  const head = el("div");
  const note = el("p", { class: "quiet", role: "status" });
  const asks = new Table({
    caption: "Waiting for approval",
    key: (one) => one.answer,
    empty: "Nothing waits for approval",
    columns: [
      { title: "Rule", text: (one) => one.rule },
      { title: "Where", text: where, node: of },
      { title: "Observed", text: (one) => one.have },
      { title: "Since", text: (one) => `${ago(one.at)} ago` },
      { title: "Allow", text: (one) => one.answer, node: (one) => code(one.answer) },
      { title: "Deny", text: (one) => one.deny, node: (one) => code(one.deny) },
    ],
  });
  const rules = new Table({
    caption: "Rules in force",
    key: (one) => one.name,
    empty: "No rules",
    columns: [
      { title: "Rule", text: (one) => one.name },
      { title: "Mode", text: (one) => one.mode },
      { title: "Scope", text: (one) => one.scope },
      { title: "Actions", text: (one) => one.actions.join(", ") + (one.knob ? ` (${one.knob})` : "") },
      { title: "Last firing", text: (one) => (last(one) ? `${statusOf(last(one))} ${ago(last(one).at)} ago` : "never") },
      { title: "Why it does not act", text: (one) => one.why_not || "-" },
    ],
  });
  const firings = new Table({
    caption: "Firings, the newest first",
    key: (one) => `${one.rule} ${one.subject} ${one.at}`,
    empty: "No rule has fired",
    page: 20,
    columns: [
      { title: "Rule", text: (one) => one.rule },
      { title: "Where", text: where, node: of },
      { title: "Outcome", text: statusOf, node: (one) => badge(statusOf(one)) },
      { title: "Observed", text: (one) => one.have },
      { title: "Done", text: (one) => one.actions.join(", ") || "-" },
      { title: "Not done", text: (one) => one.failed || "-" },
      { title: "At", text: (one) => `${ago(one.at)} ago` },
    ],
  });
  element.append(el("h1", {}, title), head, asks.element, rules.element, firings.element, note, by("poise rules"));
  return follow(api, EVERY, () => api.data("rules"), (told) => {
    note.textContent = "";
    const fired = told.rules.flatMap((rule) => rule.firings.map((firing) => ({ rule: rule.name, about: rule.about, ...firing }))).sort((one, other) => other.at - one.at);
    const open = fired.filter((one) => one.answer).map((one) => ({ ...one, deny: one.answer.replace(" approve ", " deny ") }));
    head.replaceChildren(figures([
      ["Actions left this hour", `${Math.max(0, told.budget - told.spent)} of ${told.budget}`, "budget"],
      ["Waiting for approval", open.length, "asks"],
      ["Evaluated", told.evaluated ? `${ago(told.evaluated)} ago` : "never", "evaluated"],
    ]));
    asks.draw(open);
    rules.draw(told.rules);
    firings.draw(fired);
  }, (error) => { note.textContent = said(error); }).moved;
}
