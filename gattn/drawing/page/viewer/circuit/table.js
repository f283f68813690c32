// The tables of a circuit: its edges, and what is kept as a whole.

import { count, grouped, isolated } from "../heads/texts.js";
import { graphOf } from "../heads/state.js";
import { $, element, tokenElement } from "../page/elements.js";
import { named } from "../scenes/marks.js";
import { edgeName, lossText, shareText, tokensOn } from "./edges.js";

const MOST_UNITS = 200;

const header = (...names) => element("thead", {}, element("tr", {}, ...names.map((name, n) => (name ? element("th", { scope: "col", class: ["", "value", "value"][n] }, name) : element("td", { class: "bar" })))));

function barCell(value, most) {
  if (value === null) return element("td", { class: "bar", "aria-hidden": "true" });
  const bar = element("i", value < 0 ? { class: "minus" } : {});
  bar.style.width = `${(100 * Math.abs(value)) / (most || 1)}%`;
  return element("td", { class: "bar", "aria-hidden": "true" }, bar);
}

const valueCell = (text, more = "") => element("td", { class: `value${more}` }, text);

const lossCell = (loss) => valueCell(lossText(loss, shareText), loss === null ? " missing" : "");

/** Go to the head of an edge, and to the edge's query. */
function goTo(page, { stack, layer, head, query }) {
  page.most = 8;
  page.update({ view: "arcs", stack, layer, head, token: query, side: "query", keys: null, queries: null });
  $("view").focus({ preventScroll: true });
}

/**
 * List the edges of the circuit; a button leads to the head of its edge.
 *
 * `point` is told which edge a button in focus is of, and `refill` that more are to be listed.
 */
export function circuitTables(page, point, refill) {
  const { circuit, most } = page;
  const losses = circuit.edges.map(({ loss }) => Math.abs(loss ?? 0));
  const largest = losses.reduce((a, b) => Math.max(a, b), 0);
  const rows = circuit.edges.slice(0, most).map((edge, n) => {
    const { head, key, query } = edgeName(page.shownCircuit, edge);
    const button = element("button", { type: "button", "aria-describedby": "pair" }, `${head}: `, ...tokenElement(key), " → ", ...tokenElement(query));
    button.title = `${head}: ${isolated(named(key))} → ${isolated(named(query))}`;
    button.addEventListener("focus", () => point(n));
    button.disabled = !graphOf(page.traces[0], edge);
    button.addEventListener("click", () => goTo(page, edge));
    return element("tr", {}, element("td", {}, button), valueCell(shareText(edge.attention)), lossCell(edge.loss), barCell(edge.loss, largest));
  });
  const left = circuit.edges.length - most;
  if (left > 0) rows.push(element("tr", {}, element("td", {}, moreButton(page, left, refill)), element("td"), element("td"), element("td")));
  const title = element("caption", {}, `${count(circuit.edges.length, "edge")} of the circuit`);
  const found = [element("table", { class: "edges" }, title, header("head: key → query", "attention", circuit.lost, ""), element("tbody", {}, ...rows))];
  return circuit.units ? [...found, unitsTable(page)] : found;
}

function moreButton(page, left, refill) {
  const more = element("button", { type: "button" }, element("small", {}, `and ${grouped(left)} more`));
  more.addEventListener("click", () => {
    const at = page.most;
    page.most += 100;
    refill();
    $("numbers").querySelectorAll("table.edges button")[at].focus();
  });
  return more;
}

/** List the units of a circuit and what it loses without each. */
function unitsTable({ circuit, traces: [{ stacks }] }) {
  const { units } = circuit;
  const partsOf = ({ stack, layer, head, query, key }) => {
    if (units.kind === "heads") return [`${layer}.${head}`];
    const [keys, queries] = [true, false].map((isKey) => tokensOn(stacks, stack, isKey));
    const from = tokenElement(keys[key]);
    return query === undefined ? from : [...from, " → ", ...tokenElement(queries[query])];
  };
  const largest = units.rows.reduce((most, { loss }) => Math.max(most, Math.abs(loss ?? 0)), 0);
  const rows = units.rows.slice(0, MOST_UNITS).map((unit) => {
    const name = element("td", {}, circuit.isSeveral ? `${unit.stack} ` : "", ...partsOf(unit));
    return element("tr", {}, name, valueCell(grouped(unit.edges)), lossCell(unit.loss), barCell(unit.loss, largest));
  });
  const left = units.rows.length - MOST_UNITS;
  if (left > 0) rows.push(element("tr", {}, element("td", {}, element("small", {}, `and ${grouped(left)} more`))));
  const title = element("caption", {}, `${count(units.rows.length, units.kind.slice(0, -1))} of the circuit`);
  return element("table", { class: "units" }, title, header(units.kind.slice(0, -1), "edges", "lost without", ""), element("tbody", {}, ...rows));
}
