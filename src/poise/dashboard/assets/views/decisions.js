// Decisions: rounds with decisions, the newest first: each decision, its reasons, and the alternatives.

import { Table, by, clock, code, el, filter, jobOf, jobPath, link, nodePath } from "../dom.js";

export const title = "Decisions";
export const path = "/decisions";

const EACH = 50;
const AGAIN = 2000;
const BUSY = "E205";

export const termsOf = (score) => Object.entries(score ?? {}).map(([term, value]) => `${term} ${Number(value.toPrecision(3))}`).join(", ") || "-";

export function show(element, state, api) {
  let left = false;
  let rounds = [];
  let first = 0; // the page shows rounds before this revision; 0: the newest rounds
  let asked = 0;
  let wanted = 0;
  api.onLeave(() => { left = true; clearTimeout(wanted); });
  const chosen = filter("Only this job (name or id)", () => { first = 0; settle(300); });
  const note = el("p", { class: "quiet", role: "status" });
  const older = el("button", { type: "button", onclick: () => { first = rounds.at(-1).revision; settle(0); } }, "Older rounds");
  const newest = el("button", { type: "button", onclick: () => { first = 0; settle(0); } }, "Newest rounds");
  const table = new Table({
    caption: "Decisions by round, the newest round first",
    key: (one) => `${one.round.revision}.${one.number}`,
    empty: "Nothing was decided yet",
    columns: [
      { title: "Round", number: true, text: (one) => one.round.revision },
      { title: "When", text: (one) => clock(one.round.at) },
      { title: "Policy", text: (one) => one.round.policy },
      { title: "Forced by", text: (one) => (one.round.fired ?? []).join(", ") || "-" },
      { title: "Decision", text: (one) => one.made.what },
      { title: "Of", text: (one) => named(one.made), node: (one) => el("span", {}, one.made.of.slice(0, 4).flatMap((unit, at) => [at ? ", " : "", link(jobPath(jobOf(unit)), unit)]), more(one.made)) },
      { title: "On", text: (one) => (one.made.where ?? []).join(", ") || "-", node: (one) => el("span", {}, one.made.where?.length ? one.made.where.flatMap((place, at) => [at ? ", " : "", link(nodePath(place.split("[")[0]), place)]) : "-") },
      { title: "Instead of (score)", text: (one) => Object.entries(one.made.instead_of ?? {}).map(([node, score]) => (score === null ? node : `${node} (${score.toPrecision(4)})`)).join(", ") || "-" },
      { title: "Why", text: (one) => one.made.why || "-" },
      { title: "Terms of the score", text: (one) => termsOf(one.made.score) },
    ],
  });
  element.append(el("h1", {}, "Decisions"), el("div", { class: "controls" }, chosen.element, newest, older), table.element, note, by("poise decisions", "poise explain JOB", "poise replay --from REVISION"));

  const more = (made) => { const rest = made.of.length - 4 + (made.more ?? 0); return rest > 0 ? ` and ${rest} more` : ""; };
  const named = (made) => made.of.slice(0, 4).join(", ") + more(made);

  function settle(after) {
    clearTimeout(wanted);
    wanted = setTimeout(load, after);
  }

  async function load() {
    const number = (asked += 1);
    try {
      const job = chosen.value();
      const past = api.at() === null ? 0 : state.head.revision + 1;
      const before = first && past ? Math.min(first, past) : first || past;
      const told = await api.data("decisions", { count: EACH, ...(before ? { before } : {}), ...(job ? { job } : {}) });
      if (left || number !== asked) return;
      rounds = told;
      const rows = told.flatMap((round) => round.made.map((made, at) => ({ round, made, number: at })));
      table.draw(rows);
      const left_out = told.reduce((sum, round) => sum + (round.left_out ?? 0), 0);
      note.replaceChildren(...(left_out ? [`${left_out} further decisions of these rounds: `, code("poise events --decisions")] : []));
      older.disabled = told.length < EACH;
      newest.disabled = !first;
    } catch (error) {
      if (left || number !== asked) return;
      note.textContent = error.message;
      if (error.code === BUSY) settle(AGAIN);
    }
  }
  settle(0);

  let heard = state.head.revision;
  return (now, changed) => {
    state = now;
    if (!changed.has("head") || heard === state.head.revision) return;
    heard = state.head.revision;
    if (!first) settle(500);
  };
}
