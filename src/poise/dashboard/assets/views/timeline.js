// Timeline: attempts by node and device. The server sends a window three times as wide and high as the visible part, with
// slices below a pixel merged. It is drawn once into a bitmap; panning and scrolling copy a part of that.

import { Table, by, clock, duration, el, filter, jobOf, jobPath, link } from "../dom.js";
import { colourOf } from "./now.js";

export const title = "Timeline";
export const path = "/timeline";

const ROW = 18;
const AXIS = 22;
const LEVELS = 36;
const HEAD = AXIS + LEVELS;
const LABEL = 116;
const MARGIN = 1; // extra windows on each side of the visible one
const SETTLED = 80; // milliseconds without movement before a window is requested
const LEAST = 0.01; // minimum visible seconds
const SPANS = [["1 minute", 60], ["15 minutes", 900], ["1 hour", 3600], ["6 hours", 21600], ["1 day", 86400], ["7 days", 604800]];
const LISTED = 200;
const FAILED = new Set(["failed", "killed", "signal", "oom", "hung", "timeout", "lost", "unstartable"]);
const TICKS = [0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 604800];

export function show(element, state, api) {
  let left = false;
  let loaded = null;
  let asking = false;
  let again = false;
  let settling = 0;
  let drawing = false;
  let hovered = null;
  let seen = { until: present(), span: 900, follow: api.at() === null };
  api.onLeave(() => { left = true; clearInterval(following); watching.disconnect(); });

  const canvas = el("canvas", { role: "img", "aria-label": "Timeline of attempts" });
  const space = el("div");
  const box = el("div", { class: "gantt", tabindex: "0", role: "region", "aria-label": "Timeline. Arrow keys move, plus and minus zoom" }, canvas, space);
  const about = el("p", { class: "hovered quiet" }, "Point at a bar to see its attempt; click to open its job.");
  const note = el("p", { class: "quiet", role: "status" });
  const chosen = filter("Only this job (name or id)", () => settle());
  const span = el("select", { onchange: () => { seen.span = Number(span.value); settle(); } }, SPANS.map(([name, seconds]) => el("option", { value: seconds, selected: seconds === 900 }, name)));
  const follow = el("input", { type: "checkbox", checked: seen.follow, onchange: () => { seen.follow = follow.checked; settle(); } });
  const trace = el("a", { href: "/data/trace", download: "poise-trace.json" }, "Export for Perfetto");
  const tool = (name, sign, act) => el("button", { type: "button", "aria-label": name, onclick: act }, sign);
  const table = new Table({
    caption: `Attempts in the picture, the latest first (at most ${LISTED})`,
    key: (one) => `${one.row}:${one.task}:${one.epoch}:${one.phase}:${one.since}`,
    empty: "Nothing ran or waited in this time",
    columns: [
      { title: "Row", text: (one) => one.row },
      { title: "Task", text: (one) => one.task || (one.count > 1 ? `${one.count} attempts` : "work of another tenant"), node: (one) => (one.task ? link(jobPath(jobOf(one.task)), one.task) : one.count > 1 ? `${one.count} attempts` : "work of another tenant") },
      { title: "Attempt", number: true, text: (one) => one.epoch || "-" },
      { title: "Phase", text: (one) => one.phase },
      { title: "Outcome", text: (one) => one.outcome || "-" },
      { title: "Begins", text: (one) => clock(one.since) },
      { title: "Lasts", number: true, text: (one) => duration(one.until - one.since) },
    ],
  });
  element.append(
    el("h1", {}, "Timeline"),
    el("div", { class: "controls" }, el("label", {}, "Window", span), chosen.element, el("label", {}, "Follow now", follow),
      tool("Earlier", "◀", () => pan(-0.5)), tool("Later", "▶", () => pan(0.5)), tool("Zoom in", "+", () => zoom(0.5, 0.5)), tool("Zoom out", "−", () => zoom(2, 0.5)), trace),
    box, about,
    el("ul", { class: "legend" }, [["running", "●", "running, coloured by job"], ["starting", "…", "starting"], ["stopping", "■", "stopping"], ["waiting", "○", "waiting"], ["failed", "✕", "failed"]].map(([kind, sign, words]) => el("li", {}, el("span", { class: kind }, sign), words))),
    note, table.element, by("poise timeline", "poise timeline --trace FILE"));

  // --- the visible window ---

  function present() { return api.at() ?? Date.now() / 1000; }
  const width = () => Math.max(100, box.clientWidth - LABEL);
  const pixels = () => seen.span / width();

  function pan(windows) {
    seen = { ...seen, until: seen.until + windows * seen.span, follow: false };
    follow.checked = false;
    settle();
  }

  function zoom(factor, place) {
    const span_ = Math.max(LEAST, Math.min(31536000, seen.span * factor));
    const instant = seen.until - seen.span * (1 - place);
    if (!seen.follow) seen.until = instant + span_ * (1 - place);
    seen.span = span_;
    settle();
  }

  function settle() {
    draw();
    clearTimeout(settling);
    settling = setTimeout(load, SETTLED);
  }

  async function load() {
    if (asking || left) { again = true; return; }
    asking = true;
    again = false;
    if (seen.follow) seen.until = present();
    const high = Math.max(1, Math.ceil(box.clientHeight / ROW));
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - high);
    const wide = seen.span * MARGIN;
    const [since, until] = [seen.until - seen.span - wide, seen.until + wide];
    try {
      const job = chosen.value();
      const told = await api.data("timeline", { since, until, pixels: Math.round(width() * (1 + 2 * MARGIN)), first, count: 3 * high, ...(job ? { job } : {}) });
      if (left) return;
      if (!loaded && until - told.begins < seen.span) { // the log is younger than the window
        span.value = "";
        seen.span = Math.max(10, (until - wide - told.begins) * 1.05);
        again = true;
      }
      loaded = made(told);
      note.textContent = Object.entries(told.left_out).map(([what, count]) => `${count} ${what} have no row. `).join("");
      trace.href = `/data/trace?${new URLSearchParams({ since: seen.until - seen.span, until: seen.until, ...(job ? { job } : {}) })}`;
      size();
      list();
      draw();
    } catch (error) {
      note.textContent = error.message;
      again ||= error.code === "E205";
    } finally {
      asking = false;
      if (again && !left) setTimeout(load, 500);
    }
  }

  // Convert bars to times in seconds, and draw them into the bitmap.
  function made(told) {
    const rows = told.rows.map(([node, name, beside, bars]) => ({
      label: `${node || "queue"} ${name}${beside && name.startsWith("device") ? ` (${beside + 1})` : ""}`,
      bars: bars.map(([since, until, phase, task, epoch, outcome, count]) => ({
        since: told.begins + since / 1e6, until: told.begins + until / 1e6, phase: told.texts[phase], task: told.texts[task], epoch, outcome: told.texts[outcome], count,
      })),
    }));
    const found = { ...told, rows, since: told.begins, until: told.begins + told.length / 1e6, levels: told.levels.map(([at, waiting, active]) => [told.begins + at / 1e6, waiting, active]) };
    return Object.assign(found, { bitmap: drawn(found) });
  }

  function size() {
    const high = HEAD + Math.max(1, loaded.total) * ROW;
    const box_ = Math.min(high, Math.max(240, Math.round(innerHeight * 0.6)));
    box.style.height = `${box_ + 2}px`;
    canvas.style.height = `${box_}px`;
    space.style.height = `${high - box_}px`;
  }

  function list() {
    const [since, until] = [seen.until - seen.span, seen.until];
    const bars = loaded.rows.flatMap(({ label, bars: all }) => all.filter((one) => one.until > since && one.since < until).map((one) => ({ row: label, ...one })));
    bars.sort((one, other) => other.since - one.since);
    table.draw(bars.slice(0, LISTED));
    canvas.setAttribute("aria-label", `${loaded.total} rows, ${bars.length} bars from ${clock(since)} to ${clock(until)}; the table below has them`);
  }

  // --- drawing ---

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return (name) => style.getPropertyValue(`--${name}`).trim();
  }

  function drawn({ rows, since, until }) {
    const scale = Math.min(2, devicePixelRatio || 1);
    const bitmap = document.createElement("canvas");
    const wide = Math.min(8000, Math.max(1, (until - since) / pixels()));
    bitmap.width = wide * scale;
    bitmap.height = Math.max(1, rows.length * ROW * scale);
    const context = bitmap.getContext("2d");
    const colour = colours();
    const [free, held, closed, failed, quiet] = ["free", "held", "closed", "failed", "quiet"].map(colour);
    context.scale(scale, scale);
    context.textBaseline = "middle";
    context.font = "11px system-ui, sans-serif";
    rows.forEach(({ bars }, at) => {
      const y = at * ROW + 1;
      for (const one of bars) {
        const x = ((one.since - since) / (until - since)) * wide;
        const w = Math.max(1, ((one.until - one.since) / (until - since)) * wide);
        const own = one.task ? colourOf(jobOf(one.task)) : one.count > 1 ? held : closed;
        if (one.phase === "waiting" || one.phase === "queued") {
          context.fillStyle = free;
          context.fillRect(x, y, w, ROW - 2);
          context.strokeStyle = quiet;
          context.setLineDash([3, 2]);
          if (w > 3) context.strokeRect(x + 0.5, y + 0.5, w - 1, ROW - 3);
        } else {
          context.globalAlpha = one.phase === "starting" ? 0.45 : 1;
          context.fillStyle = own;
          context.fillRect(x, y, w, ROW - 2);
          context.globalAlpha = 1;
          if (one.phase === "stopping") { context.fillStyle = closed; context.fillRect(x, y + ROW / 2, w, ROW / 2 - 2); }
        }
        const bad = FAILED.has(one.outcome);
        if (bad) { context.fillStyle = failed; context.fillRect(x, y + ROW - 6, w, 4); }
        if (w < 24) continue;
        const sign = { starting: "… ", stopping: "■ ", waiting: "○ ", queued: "○ " }[one.phase] ?? "";
        context.fillStyle = one.phase === "waiting" || one.phase === "queued" ? colour("text") : "#10161d";
        context.save();
        context.beginPath();
        context.rect(x, y, w - 2, ROW);
        context.clip();
        context.fillText(`${bad ? "✕ " : sign}${one.task || (one.count > 1 ? `${one.count}×` : "")}`, x + 3, y + ROW / 2 - 1);
        context.restore();
      }
    });
    return bitmap;
  }

  function draw() {
    if (drawing || left) return;
    drawing = true;
    requestAnimationFrame(() => { drawing = false; if (!left) frame(); });
  }

  function frame() {
    const [wide, high] = [box.clientWidth, canvas.clientHeight];
    if (!wide || !high) return;
    const scale = devicePixelRatio || 1;
    if (canvas.width !== Math.round(wide * scale) || canvas.height !== Math.round(high * scale)) { canvas.width = Math.round(wide * scale); canvas.height = Math.round(high * scale); }
    const context = canvas.getContext("2d");
    const colour = colours();
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.fillStyle = colour("back");
    context.fillRect(0, 0, wide, high);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const since = seen.until - seen.span;
    const x = (instant) => LABEL + ((instant - since) / seen.span) * width();
    if (loaded) {
      const top = HEAD + loaded.first * ROW - box.scrollTop;
      context.save();
      context.beginPath();
      context.rect(LABEL, HEAD, wide - LABEL, high - HEAD);
      context.clip();
      context.drawImage(loaded.bitmap, x(loaded.since), top, ((loaded.until - loaded.since) / seen.span) * width(), loaded.rows.length * ROW);
      if (hovered) { context.strokeStyle = colour("lit"); context.lineWidth = 2; context.strokeRect(x(hovered.bar.since), top + hovered.at * ROW + 1, Math.max(2, x(hovered.bar.until) - x(hovered.bar.since)), ROW - 2); }
      context.restore();
      context.save();
      context.beginPath();
      context.rect(0, HEAD, LABEL, high - HEAD);
      context.clip();
      context.fillStyle = colour("text");
      loaded.rows.forEach(({ label }, at) => context.fillText(label, 4, top + at * ROW + ROW / 2, LABEL - 8));
      context.restore();
      level(context, colour, x, wide);
    }
    axis(context, colour, x, since, wide, high);
  }

  function axis(context, colour, x, since, wide, high) {
    const step = TICKS.find((one) => (one / seen.span) * width() > 90) ?? TICKS.at(-1);
    context.fillStyle = colour("quiet");
    context.strokeStyle = colour("line");
    context.setLineDash([]);
    context.lineWidth = 1;
    for (let at = Math.ceil(since / step) * step; at < seen.until; at += step) {
      const place = Math.round(x(at)) + 0.5;
      context.beginPath();
      context.moveTo(place, AXIS);
      context.lineTo(place, high);
      context.stroke();
      const moment = new Date(at * 1000);
      const text = step >= 86400 ? moment.toLocaleDateString() : step < 1 ? `${moment.toLocaleTimeString()}.${String(moment.getMilliseconds()).padStart(3, "0")}` : moment.toLocaleTimeString();
      if (place + 60 < wide) context.fillText(text, place + 2, AXIS / 2);
    }
  }

  // The numbers of waiting units (line) and of active ones (filled).
  function level(context, colour, x, wide) {
    const most = Math.max(1, ...loaded.levels.map(([, waiting, active]) => Math.max(waiting, active)));
    const y = (count) => AXIS + LEVELS - 3 - ((LEVELS - 6) * count) / most;
    const end = Math.min(wide, x(Math.min(loaded.until, present())));
    context.save();
    context.beginPath();
    context.rect(LABEL, AXIS, wide - LABEL, LEVELS);
    context.clip();
    loaded.levels.forEach(([at, , active], number) => {
      const to = number + 1 < loaded.levels.length ? x(loaded.levels[number + 1][0]) : end;
      context.fillStyle = colour("held");
      context.fillRect(x(at), y(active), to - x(at), AXIS + LEVELS - 3 - y(active));
    });
    context.strokeStyle = colour("text");
    context.setLineDash([]);
    context.beginPath();
    loaded.levels.forEach(([at, waiting], number) => {
      const to = number + 1 < loaded.levels.length ? x(loaded.levels[number + 1][0]) : end;
      context.lineTo(x(at), y(waiting));
      context.lineTo(to, y(waiting));
    });
    context.stroke();
    context.restore();
    context.fillStyle = colour("text");
    if (loaded.levels.length) context.fillText(`units, at most ${most}`, 4, AXIS + LEVELS / 2, LABEL - 8);
  }

  // --- panning and zooming ---

  function at(event) {
    const { left: x0, top: y0 } = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - x0 - LABEL, event.clientY - y0 - HEAD];
    if (!loaded || x < 0 || y < 0) return null;
    const row = Math.floor((y + box.scrollTop) / ROW) - loaded.first;
    const instant = seen.until - seen.span + (x / width()) * seen.span;
    const slack = 2 * pixels();
    const bar = loaded.rows[row]?.bars.findLast((one) => one.since <= instant + slack && one.until >= instant - slack);
    return bar ? { bar, at: row, label: loaded.rows[row].label } : null;
  }

  let dragged = null;
  canvas.addEventListener("pointerdown", (event) => { dragged = { x: event.clientX, until: seen.until, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) {
      const by_ = dragged.x - event.clientX;
      if (Math.abs(by_) > 3) dragged.moved = true;
      if (dragged.moved) { seen = { ...seen, until: dragged.until + by_ * pixels(), follow: false }; follow.checked = false; settle(); }
      return;
    }
    hovered = at(event);
    const bar = hovered?.bar;
    about.textContent = bar ? `${hovered.label}: ${bar.task || (bar.count > 1 ? `${bar.count} attempts` : "work of another tenant")}${bar.epoch ? `, attempt ${bar.epoch}` : ""}, ${bar.phase}${bar.outcome ? `, ${bar.outcome}` : ""}, ${duration(bar.until - bar.since)} from ${clock(bar.since)}` : "Point at a bar to see its attempt; click to open its job.";
    draw();
  });
  canvas.addEventListener("pointerup", (event) => {
    const was = dragged;
    dragged = null;
    const found = was && !was.moved ? at(event) : null;
    if (found?.bar.task) api.go(jobPath(jobOf(found.bar.task)));
  });
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY / 300), Math.min(1, Math.max(0, (event.offsetX - LABEL) / width())));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(((event.deltaX || event.deltaY) / width()));
    else return;
    event.preventDefault();
  }, { passive: false });
  box.addEventListener("scroll", settle);
  box.addEventListener("keydown", (event) => {
    const act = { ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1), "+": () => zoom(0.5, 0.5), "-": () => zoom(2, 0.5) }[event.key];
    if (act && event.target === box) { act(); event.preventDefault(); }
  });

  const watching = new ResizeObserver(settle);
  watching.observe(box);
  const following = setInterval(() => {
    if (!seen.follow || document.hidden) return;
    seen.until = present();
    draw();
    if (!loaded || present() - loaded.asked > Math.max(1, pixels())) { loaded && (loaded.asked = present()); load(); }
  }, 250);
  settle();

  return (now, changed) => {
    state = now;
    if (changed.has("theme") && loaded) { loaded.bitmap = drawn(loaded); draw(); }
    if (changed.has("jobs") && api.at() !== null) { seen = { ...seen, until: api.at(), follow: false }; follow.checked = false; settle(); }
  };
}
