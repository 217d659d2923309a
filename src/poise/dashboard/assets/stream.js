// The state of the fleet from the server's stream: parts (`head`, `nodes`, `jobs`, `waiting`, `running`) of records by key.
//
// `tell` is called with each message: {kind: "whole", state}, {kind: "change", delta}, {kind: "link", up},
// {kind: "end", why, text}. The end is the last message; the state is empty then.

const AGAIN = 2000;

export const EMPTY = () => ({ head: {}, nodes: {}, jobs: {}, waiting: {}, running: {} });

export function apply(state, delta) {
  for (const [part, changed] of Object.entries(delta)) {
    const records = (state[part] ??= {});
    for (const [key, record] of Object.entries(changed)) {
      if (record === null) delete records[key];
      else records[key] = record;
    }
  }
}

export class Stream {
  constructor(tell) {
    this.state = EMPTY();
    this.tell = tell;
    this.ended = null;
    this.closed = false;
    this.up = true;
    this.open();
  }

  open() {
    if (this.closed) return;
    const source = this.source = new EventSource("/stream");
    source.addEventListener("open", () => this.link(true));
    source.addEventListener("whole", ({ data }) => {
      this.state = Object.assign(EMPTY(), JSON.parse(data));
      this.tell({ kind: "whole", state: this.state });
    });
    source.addEventListener("change", ({ data }) => {
      const delta = JSON.parse(data);
      apply(this.state, delta);
      this.tell({ kind: "change", delta });
    });
    source.addEventListener("end", ({ data }) => {
      this.end(JSON.parse(data));
    });
    source.addEventListener("error", () => {
      this.link(false);
      if (source.readyState === EventSource.CLOSED) this.refused();
    });
  }

  close() {
    this.closed = true;
    this.source.close();
  }

  link(up) {
    if (up === this.up) return;
    this.up = up;
    this.tell({ kind: "link", up });
  }

  end(why) {
    this.close();
    this.state = EMPTY();
    this.ended = why;
    this.tell({ kind: "end", ...why });
  }

  // The server has refused the stream: there is no session, or the server is busy and the stream is retried.
  async refused() {
    if (this.closed) return;
    const answer = await fetch("/data/whoami").catch(() => null);
    if (answer?.status === 401) this.end({ why: "session", text: (await answer.json()).error.message });
    else setTimeout(() => this.open(), AGAIN);
  }
}
