// The time slider. The moment shown is in the address as ?at=SECONDS, so that it can be bookmarked and shared.
//
// `state` is the state of the stream at that moment, null for now; `changed` is called when the moment changes.

import { clock, code, el } from "./dom.js";
import * as place from "./place.js";

const SETTLED = 150; // milliseconds without movement before the moment is requested
const STEPS = 1000;
const BUSY = "E205"; // the log is still being read
const AGAIN = 1000;

export class Past {
  constructor(element, button, ask, changed) {
    Object.assign(this, { element, button, ask, changed, state: null, moment: null, waiting: 0 });
    button.addEventListener("click", () => (element.hidden ? this.open() : this.close(true)));
    this.slider = el("input", { type: "range", id: "moment", min: 0, max: STEPS, value: STEPS, oninput: () => this.moved() });
    this.exact = el("input", { type: "datetime-local", step: 1, "aria-label": "Exact time", onchange: () => this.typed() });
    this.note = el("span", { role: "status" });
    element.append(
      el("label", { for: "moment" }, "Moment"), this.slider, this.exact,
      el("button", { type: "button", onclick: () => this.step(-1) }, "Earlier"),
      el("button", { type: "button", onclick: () => this.step(1) }, "Later"),
      el("button", { type: "button", onclick: () => this.close(true) }, "Back to now"),
      this.note,
    );
  }

  at() { return this.moment; }

  kept(path) { return this.moment === null ? path : `${path}?at=${this.moment}`; }

  // Show the moment in the address, if there is one.
  async begin() {
    const given = place.moment();
    if (given > 0 && Number.isFinite(given)) await this.open(given);
  }

  async open(moment = null) {
    this.element.hidden = false;
    this.button.setAttribute("aria-expanded", "true");
    try {
      this.range = await this.ask("moments");
      this.slider.setAttribute("aria-valuetext", clock(this.range.until));
      this.note.textContent = "Move the slider to a past moment.";
      if (moment !== null) await this.show(moment);
    } catch (error) {
      this.note.textContent = error.message;
      if (error.code === BUSY) setTimeout(() => this.element.hidden || this.open(moment), AGAIN);
    }
  }

  close(tell) {
    const was = this.moment;
    this.element.hidden = true;
    this.button.setAttribute("aria-expanded", "false");
    delete document.documentElement.dataset.past;
    this.state = this.moment = null;
    this.slider.value = STEPS;
    if (tell && was !== null) this.changed();
  }

  moved() {
    if (!this.range) return;
    const { since, until } = this.range;
    this.settle(since + ((until - since) * this.slider.value) / STEPS);
  }

  typed() {
    const seconds = new Date(this.exact.value).getTime() / 1000;
    if (Number.isFinite(seconds)) this.settle(seconds);
  }

  step(by) {
    if (!this.range) return;
    this.settle((this.moment ?? this.range.until) + by * Math.max(1, (this.range.until - this.range.since) / STEPS));
  }

  settle(moment) {
    clearTimeout(this.waiting);
    this.note.textContent = clock(moment);
    this.waiting = setTimeout(() => this.show(moment), SETTLED);
  }

  async show(moment) {
    const asked = (this.asked = Math.ceil(moment * 100) / 100);
    try {
      const state = await this.ask("state", { at: asked });
      if (this.asked !== asked || this.element.hidden) return;
      Object.assign(this, { state, moment: asked });
    } catch (error) {
      if (this.asked === asked) this.note.textContent = [error.message, error.need, error.hint].filter(Boolean).join(". ");
      return;
    }
    const { since, until } = this.range;
    document.documentElement.dataset.past = "";
    this.slider.value = ((asked - since) / Math.max(1, until - since)) * STEPS;
    this.slider.setAttribute("aria-valuetext", clock(asked));
    const local = new Date((asked - new Date(asked * 1000).getTimezoneOffset() * 60) * 1000);
    this.exact.value = local.toISOString().slice(0, 19);
    this.note.replaceChildren(`This is ${clock(asked)}, revision ${this.state.head.revision}. The same in a terminal: `, code(`poise ls --at ${this.state.head.revision}`));
    this.changed();
  }
}
