// SVG drawings. Each has a label that describes it, and a table with the same figures beside it.

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const WIDE = 640;
const HIGH = 160;
const LEFT = 80;
const FOOT = 20;

// A line chart of points [x, y], with the ends of both scales labelled.
export function chart(label, points, x = String, y = String) {
  const known = points.filter((one) => one.every(Number.isFinite));
  if (known.length < 2) return null;
  const range = (at) => { const values = known.map((one) => one[at]); return [Math.min(...values), Math.max(...values)]; };
  const [[x0, x1], [y0, y1]] = [range(0), range(1)];
  const across = (value) => LEFT + ((value - x0) / (x1 - x0 || 1)) * (WIDE - LEFT - 4);
  const up = (value) => HIGH - FOOT - 4 - ((value - y0) / (y1 - y0 || 1)) * (HIGH - FOOT - 12);
  const line = known.map(([one, other]) => `${across(one).toFixed(1)},${up(other).toFixed(1)}`).join(" ");
  const text = (at, to, anchor, what) => svg("text", { x: at, y: to, "text-anchor": anchor }, what);
  return svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "chart", role: "img", "aria-label": label },
    svg("polyline", { points: `${LEFT},8 ${LEFT},${HIGH - FOOT} ${WIDE - 4},${HIGH - FOOT}`, class: "axis" }),
    text(LEFT - 4, 14, "end", y(y1)), text(LEFT - 4, HIGH - FOOT, "end", y(y0)),
    text(LEFT, HIGH - 4, "start", x(x0)), text(WIDE - 4, HIGH - 4, "end", x(x1)),
    svg("polyline", { points: line, class: "line" }));
}

const BOX = [150, 30];
const GAP = [40, 12];

// A graph of boxes {name, text, needs, critical} from left to right, each after the boxes that it needs.
export function graph(label, boxes) {
  const named = new Map(boxes.map((one) => [one.name, one]));
  const columns = new Map();
  const columnOf = (name, seen = new Set()) => {
    if (columns.has(name)) return columns.get(name);
    seen.add(name);
    const before = named.get(name).needs.filter((one) => named.has(one) && !seen.has(one));
    const column = before.length ? 1 + Math.max(...before.map((one) => columnOf(one, seen))) : 0;
    columns.set(name, column);
    return column;
  };
  const rows = [];
  const places = new Map(boxes.map((one) => {
    const column = columnOf(one.name);
    const row = rows[column] ?? 0;
    rows[column] = row + 1;
    return [one.name, [2 + column * (BOX[0] + GAP[0]), 2 + row * (BOX[1] + GAP[1])]];
  }));
  const wide = rows.length * (BOX[0] + GAP[0]) - GAP[0] + 4;
  const high = Math.max(...rows) * (BOX[1] + GAP[1]) - GAP[1] + 4;
  const lines = boxes.flatMap((one) => one.needs.filter((other) => places.has(other)).map((other) => {
    const [[x0, y0], [x1, y1]] = [places.get(other), places.get(one.name)];
    const on = one.critical && named.get(other).critical;
    return svg("line", { x1: x0 + BOX[0], y1: y0 + BOX[1] / 2, x2: x1, y2: y1 + BOX[1] / 2, class: on ? "critical" : "axis" });
  }));
  const drawn = boxes.map((one) => {
    const [x, y] = places.get(one.name);
    return svg("g", {}, svg("rect", { x, y, width: BOX[0], height: BOX[1], rx: 4, class: one.critical ? "critical" : "axis" }),
      svg("text", { x: x + 8, y: y + 20 }, one.text.length > 20 ? `${one.text.slice(0, 19)}…` : one.text), svg("title", {}, one.text));
  });
  return svg("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, class: "graph", role: "img", "aria-label": label }, ...lines, ...drawn);
}
