// For a recorded page: the stream and the data functions answer from the recording (`poise.dashboard.recording`), and the
// current time is always the end of the recording.

import { EMPTY, apply } from "../stream.js";

const { changes, answers } = JSON.parse(document.getElementById("recorded").textContent);
const [since, until] = [changes[0][0], changes.at(-1)[0]];
const NAMED = ["job", "node", "incident"];

function stateAt(at) {
  const state = EMPTY();
  for (const [when, delta] of changes) {
    if (when > at) break;
    apply(state, structuredClone(delta));
  }
  return state;
}

function answer(url) {
  const [path, query] = url.split("?");
  const asked = new URLSearchParams(query);
  const name = path.replace("/data/", "");
  if (name === "moments") return { since, until, revision: stateAt(until).head.revision };
  if (name === "state") return stateAt(Number(asked.get("at")));
  return answers[[name, ...NAMED.filter((one) => asked.has(one)).map((one) => `${one}=${asked.get(one)}`)].join(" ")];
}

Date.now = () => until * 1000;
window.SharedWorker = undefined;
window.fetch = async (url) => {
  const told = answer(url);
  const body = told ?? { error: { code: "E120", message: "This was not kept", hint: "" } };
  return new Response(JSON.stringify(body), { status: told ? 200 : 404 });
};
window.EventSource = class {
  readyState = 1;
  addEventListener(kind, heard) { if (kind === "whole") setTimeout(() => heard({ data: JSON.stringify(stateAt(until)) })); }
  close() {}
};
document.getElementById("leave").hidden = true;
