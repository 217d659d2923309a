// Energy and cost of a period: of the fleet, and by node, tenant and job; and wasted resources by cause.

import { follow, said } from "../asking.js";
import { Table, by, clock, el, figures, jobPath, link, nodePath } from "../dom.js";

export const title = "Energy and cost";
export const path = "/energy";

const EVERY = 60_000;
const PERIODS = { "15m": "15 minutes", "1h": "one hour", "24h": "24 hours", "7d": "7 days", "30d": "30 days" };

const HOUR = 3600e9;
export const kilowattHours = (joules) => `${(joules / 3.6e6).toFixed(joules < 3.6e6 ? 4 : 2)} kWh`;
export const kilograms = (amount = 0) => `${amount.toFixed(3)} kg`;
export const dollars = (amount) => `$${amount.toFixed(amount < 1 ? 4 : 2)}`;
const hours = (amount) => (amount / HOUR).toFixed(2);
const watts = (joules, length) => `${Math.round(joules / Math.max(1e-9, length / 1e9)).toLocaleString("en")} W`;

const amounts = [
  { title: "Energy", number: true, text: (one) => kilowattHours(one.energy) },
  { title: "CO2e", number: true, text: (one) => kilograms(one.co2) },
  { title: "Price", number: true, text: (one) => dollars(one.price) },
];

export function show(element, state, api) {
  let length = 1;
  const period = el("select", { onchange: () => asking.again() }, Object.entries(PERIODS).map(([value, text]) => el("option", { value, selected: value === "1h" }, text)));
  const intensity = el("input", { type: "number", min: 0, max: 10, step: "any", placeholder: "0.473", onchange: () => asking.again() });
  const note = el("p", { class: "quiet", role: "status" }, "The report is being made.");
  const head = el("div");
  const foot = el("div");
  const nodes = new Table({
    caption: "Nodes, those with the highest energy first",
    key: (one) => one.node,
    empty: "No node with a device whose power or price is known",
    columns: [
      { title: "Node", text: (one) => one.node, node: (one) => link(nodePath(one.node), one.node) },
      { title: "Energy", number: true, text: ({ bill }) => kilowattHours(bill.energy) },
      { title: "Mean power", number: true, text: ({ bill }) => watts(bill.energy, length) },
      { title: "CO2e", number: true, text: ({ bill }) => kilograms(bill.co2) },
      { title: "Price", number: true, text: ({ bill }) => dollars(bill.price) },
      { title: "Price of held devices", number: true, text: ({ bill }) => dollars(bill.paid) },
    ],
  });
  const tenants = new Table({
    caption: "Tenants: of the devices that they held, without idle power",
    key: (one) => one.tenant,
    empty: "No tenant had work in this period",
    columns: [
      { title: "Tenant", text: (one) => one.tenant }, ...amounts,
      { title: "Device hours", number: true, text: (one) => hours(one.devices) }, { title: "In vain", number: true, text: (one) => hours(one.vain_devices) },
      { title: "Core hours", number: true, text: (one) => hours(one.cpu) }, { title: "In vain", number: true, text: (one) => hours(one.vain_cpu) },
    ],
  });
  const jobs = new Table({
    caption: "Jobs, those with the highest energy first: of the devices that they held",
    key: (one) => one.id,
    empty: "No job in this period",
    page: 20,
    columns: [
      { title: "Job", text: (one) => one.id, node: (one) => link(jobPath(one.id), one.id) },
      { title: "Name", text: (one) => one.name || "-" }, { title: "Tenant", text: (one) => one.tenant ?? "" }, { title: "Status", text: (one) => one.status },
      { title: "Energy", number: true, text: (one) => kilowattHours(one.energy ?? 0) }, { title: "CO2e", number: true, text: (one) => kilograms(one.co2) }, { title: "Price", number: true, text: (one) => dollars(one.price ?? 0) },
    ],
  });
  const waste = new Table({
    caption: "Room that produced no result, by cause",
    key: (one) => one.cause,
    empty: "None, or this token sees one tenant only",
    columns: [
      { title: "Cause", text: (one) => one.cause },
      { title: "Device hours", number: true, text: (one) => hours(one.devices) }, { title: "Core hours", number: true, text: (one) => hours(one.cpu) },
    ],
  });
  const amount = (one, value) => (one.unit === "dollars" ? dollars(value) : `${value.toFixed(2)} device hours`);
  const budgets = new Table({
    caption: "Budgets, in their current period",
    key: (one) => one.name,
    empty: "No budgets, or a time in the past",
    columns: [
      { title: "Budget", text: (one) => one.name },
      { title: "Spent", number: true, text: (one) => amount(one, one.spent) }, { title: "Of", number: true, text: (one) => amount(one, one.amount) },
      { title: "Share", number: true, text: (one) => `${Math.round(100 * one.share)} %` },
      { title: "Runs out", text: (one) => clock(one.runs_out) }, { title: "Renews", text: (one) => clock(one.ends) },
      { title: "Jobs on hold", number: true, text: (one) => String(one.holding) },
    ],
  });
  element.append(el("h1", {}, title),
    el("div", { class: "controls" }, el("label", {}, "Period", period), el("label", {}, "CO2e of a kWh in kg, without a value by hour", intensity)),
    note, head, nodes.element, tenants.element, budgets.element, jobs.element, waste.element, foot);

  const parameters = () => ({ period: period.value, ...(intensity.value ? { co2: intensity.value } : {}) });
  const asking = follow(api, EVERY, async () => [await api.data("spent", parameters()), await api.data("budgets").catch(() => null)], ([told, limits]) => {
    length = told.length;
    const { bill } = told;
    note.textContent = `From ${clock(told.begins)} to ${clock(told.begins + told.length / 1e9)}. Energy is by the power model, for devices with a known power limit. ${told.basis}.`;
    head.replaceChildren(figures(bill ? [
      ["Energy", kilowattHours(bill.energy), "energy"], ["Mean power", watts(bill.energy, length), "power"], ["CO2e", kilograms(bill.co2), "co2"],
      ...(bill.electricity ? [["Price of electricity", dollars(bill.electricity), "electricity"]] : []),
      ["Price", dollars(bill.price), "price"], ["Price of held devices", dollars(bill.paid), "paid"],
      ["Devices with known power", `${bill.powered}/${bill.devices}`, "powered"], ["Devices with known price", `${bill.priced}/${bill.devices}`, "priced"],
    ] : told.tenants.flatMap((one) => [["Energy of held devices", kilowattHours(one.energy), "energy"], ["Price of held devices", dollars(one.price), "price"]])));
    nodes.draw(told.nodes);
    tenants.draw(told.tenants);
    budgets.draw(limits ?? []);
    jobs.draw(told.jobs);
    waste.draw(told.waste);
    foot.replaceChildren(by(`poise report ${told.flags}`));
  }, (error) => { note.textContent = said(error); });
  return asking.moved;
}
