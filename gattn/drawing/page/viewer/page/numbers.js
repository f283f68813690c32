// Writes the numbers below a view: tables of a token, all values of an edge, and a sentence for screen readers.

import { grouped, isolated, percent, several } from "../heads/texts.js";
import { placeIn, readingsOf, rowEdges, valueText } from "../heads/readings.js";
import { Scale } from "../scenes/colours.js";
import { named } from "../scenes/marks.js";
import { edgeText, lossText, ofHead } from "../circuit/edges.js";
import { circuitTables } from "../circuit/table.js";
import { askButton, fillWhy } from "../why/table.js";
import { predictionTables } from "../tokens/predictions.js";
import { $, element, tokenElement } from "./elements.js";

const noToken = (noun) => `Point at a ${noun}, or click it, to list what it reads and what reads it.`;
const NO_EDGE = "Point at a curve, click it, or go from edge to edge with the arrow keys, to read its numbers.";
const NO_ROLLOUT = "There is no rollout here: it needs a single run and consecutive layers of non-negative attention.";

/** List the circuit, and say all of the edge that is pointed at. */
function fillCircuit(page, repaint) {
  const point = (edge) => {
    page.hover = { edge };
    repaint(page);
    $("pair").textContent = edgeText(page.shownCircuit, page.circuit.edges[edge]);
  };
  $("numbers").replaceChildren(...circuitTables(page, point, () => fillCircuit(page, repaint)));
  $("pair").textContent = page.edge === null ? NO_EDGE : edgeText(page.shownCircuit, page.circuit.edges[page.edge]);
}

/** Write what is below the view; `repaint` draws the view anew. */
export function fillNumbers(page, repaint) {
  $("view-option").textContent = sentenceOf(page);
  fillWhy(page);
  if (page.state.view === "circuit") {
    $("pair").hidden = false;
    $("view-option").setAttribute("aria-selected", String(page.state.edge !== null));
    return fillCircuit(page, repaint);
  }
  const tables = page.panels.flatMap((panel, i) => tablesOf(page, panel, i));
  $("numbers").replaceChildren(...tables);
  if (!tables.length) $("numbers").append(element("p", { class: "note" }, page.heads.some((head) => page.lookedAt(head)) ? NO_ROLLOUT : noToken(page.stack.noun)));
  $("numbers").append(...predictionTables(page));
  $("pair").textContent = page.hover?.isPair ? pairText(page, page.hover) : "";
  $("pair").hidden = page.state.view === "layered";
  const option = $("view-option");
  option.setAttribute("aria-selected", String(page.state.token !== null));
}

function tablesOf(page, { part, name, isChosen }, i) {
  const head = page.heads[i];
  const focus = page.lookedAt(head);
  if (!focus) return [];
  const suffix = name ? ` (${name})` : "";
  const isAsked = page.canAsk && isChosen;
  if (page.state.view === "layered") return layeredTables(page, i, focus, suffix);
  const { reads, readBy } = readingsOf(head, focus, page.state.weight);
  const found = [];
  if (focus.row >= 0) {
    const mass = head.mass[focus.row];
    const kept = rowEdges(head, focus.row).reduce((sum, e) => sum + (head.key[e] === head.sinkKey ? 0 : Math.abs(head.values.attention[e])), 0);
    const isPart = part !== "difference" && mass > 0 && kept < 0.9995 * mass;
    const lost = isPart ? `; ${percent(kept, mass)} of its attention shown` : "";
    found.push(tableOf(page, head.queries[focus.row], `reads${suffix}${lost}`, reads.map(({ token, value }) => [token, value, "key"]), page.scales[i], head, isAsked));
  }
  if (focus.key >= 0) found.push(tableOf(page, head.keys[focus.key], `is read by${suffix}`, readBy.map(({ token, value }) => [token, value, "query"]), page.scales[i], head, isAsked));
  return found;
}

function layeredTables(page, i, { key }, suffix) {
  const traced = page.traced[i];
  if (!traced) return [];
  const { keys } = page.heads[i];
  const shares = (level) => Array.from(traced.levels[level], (share, n) => [keys[n], share, "key"]).filter((one) => one[1] > 1e-4).sort((a, b) => b[1] - a[1]);
  const { level } = page;
  const scale = new Scale("share", 0, 1, true);
  const start = page.stack.layers[0] ? `the ${several(page.stack.noun)} before layer ${page.stack.layers[0]}` : "the input";
  const found = level > 0 ? [tableOf(page, keys[key], `at level ${level}: what it may have read of ${start} (rollout)${suffix}`, shares(0), scale)] : [];
  if (level < page.layers[i].length) found.push(tableOf(page, keys[key], `at level ${level}: what may have read it, at the top (rollout)${suffix}`, shares(page.layers[i].length), scale));
  return found;
}

function tableOf(page, token, what, rows, scale, head = {}, isAsked = false) {
  const title = element("caption", {}, ...tokenElement(token), ` ${what}`);
  const { most } = page;
  const inTable = (value) => (!scale.isRoot || !Number.isFinite(value) ? valueText(value, head) : value && Math.abs(value) < 0.0005 ? "< 0.001" : value.toFixed(3).replace("-", "−"));
  const lines = rows.slice(0, most).map(([other, value, side]) => {
    const button = element("button", { type: "button", "aria-describedby": "pair" }, ...tokenElement(other));
    const pair = side === "key" ? { row: token, key: other } : { row: other, key: token };
    button.addEventListener("focus", () => ($("pair").textContent = pairText(page, pair)));
    if (!other.virtual)
      button.addEventListener("click", () => {
        page.chooseToken({ token: other.index, side });
        $("view").focus({ preventScroll: true }); // this button disappears
      });
    const bar = element("i", value < 0 && scale.isSigned ? { class: "minus" } : {});
    bar.style.width = `${100 * scale.share(value)}%`;
    bar.hidden = Number.isNaN(value);
    return element("tr", {}, element("td", {}, button), element("td", { class: "value" }, inTable(value)), element("td", { class: "bar", "aria-hidden": "true" }, bar), ...(isAsked ? [element("td", { class: "ask" }, ...(page.pairOf(pair.row, pair.key) ? [askButton(page, pair)] : []))] : []));
  });
  const rest = rows.slice(most);
  const more = element("button", { type: "button" }, element("small", {}, `and ${grouped(rest.length)} more`));
  more.addEventListener("click", () => {
    const at = [...$("numbers").children].indexOf(more.closest("table"));
    page.most += 100;
    fillNumbers(page);
    $("numbers").children[at].querySelectorAll("button")[most].focus();
  });
  const sum = rest.reduce((all, [, value]) => all + (value || 0), 0);
  if (rest.length) lines.push(element("tr", {}, element("td", {}, more), element("td", { class: "value" }, scale.isRoot ? element("small", {}, `Σ ${inTable(sum)}`) : ""), element("td")));
  if (!rows.length) lines.push(element("tr", {}, element("td", {}, element("small", {}, "nothing"))));
  return element("table", {}, title, element("tbody", {}, ...lines));
}

/** Write all values of an edge, in all parts of a comparison, and what the circuit loses without it. */
function pairText(page, { row, key }) {
  const inCircuit = ofHead(page.circuit, page.state).find((edge) => edge.query === row.index && edge.key === key.index);
  const lost = inCircuit ? `; in the circuit, ${page.circuit.lost} ${lossText(inCircuit.loss)}` : "";
  const parts = page.panels
    .map(({ name }, i) => {
      const head = page.heads[i];
      const place = placeIn(head, key.index, row.index) ?? { row: -1 };
      const e = rowEdges(head, place.row).find((edge) => head.key[edge] === place.key);
      const said = e === undefined ? "no edge" : Object.keys(head.values).map((name) => `${name} ${valueText(head.values[name][e], head)}`).join(", ");
      return `${name ? `${name}: ` : ""}${isolated(named(row))} reads ${isolated(named(key))}: ${said}`;
    });
  return parts.join(" · ") + lost;
}

function edgeSentence({ state: { edge }, circuit, shownCircuit }) {
  if (edge === null) return "no edge chosen";
  return `edge ${edge + 1} of ${circuit.edges.length}: ${edgeText(shownCircuit, circuit.edges[edge])}`;
}

/** Describe what the chosen token reads most in a sentence. */
function sentenceOf(page) {
  if (page.state.view === "circuit") return edgeSentence(page);
  const head = page.heads?.[0];
  const focus = head && page.focusIn(head);
  if (!focus) return `no ${page.stack.noun} chosen`;
  const { reads, readBy } = readingsOf(head, focus, page.state.weight);
  const list = (readings) => readings.slice(0, 3).map(({ token, value }) => `${named(token)}: ${valueText(value, head)}`).join(", ") || "nothing";
  const name = focus.row >= 0 ? head.queries[focus.row] : head.keys[focus.key];
  const parts = [named(name) + (name.generated ? ", generated," : "")];
  if (focus.row >= 0) parts.push(`reads ${list(reads)}`);
  if (focus.key >= 0) parts.push(`${focus.row >= 0 ? "and " : ""}is read by ${list(readBy)}`);
  return parts.join(" ");
}

export function speak(page) {
  const said = `${$("head-title").textContent}. ${sentenceOf(page)}`;
  if ($("live").textContent !== said) $("live").textContent = said;
}
