// The edges that a picture shows, and the caption that says which.

import { count, grouped, number, percent } from "./texts.js";
import { ranked, rowEdges, strengthOf } from "./readings.js";

const STEPS = [0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

/** The most edges that a picture draws as lines. */
export const MOST_LINES = 2000;

/**
 * Choose the edges that a picture shows, and say by what rule: {edges, rule, limit}.
 *
 * Of more than can be drawn as lines, the strongest are: `limit` says so, {most, among, isTied}.
 */
export function choose(head, { threshold, top, weight, isDense = false }) {
  if (isDense && threshold === null && !top) return { edges: every(head.key.length, () => true), rule: "" };
  const { edges, rule } = threshold === null && !top ? readable(head) : ruled(head, threshold, top, weight);
  if (isDense || edges.length <= MOST_LINES) return { edges, rule };
  const { passes, isTied } = strongest(Float32Array.from(edges, strengthOf(head, weight)), MOST_LINES);
  const some = edges.filter((_, n) => passes(n));
  const [most, among] = [some, edges].map((all) => all.filter((e) => head.key[e] !== head.sinkKey).length);
  return { edges: some, rule, limit: { most, among, isTied } };
}

/** Say that only the strongest edges are shown. */
export const limitText = ({ most, among, isTied }) => `the ${grouped(most)} strongest of ${count(among, "edge")}${isTied ? ", ties by chance" : ""}`;

/** Tell which sizes are the strongest, to be asked by place; of those tied for the last places, chance chooses some. */
export function strongest(sizes, most) {
  if (sizes.length <= most || !most) return { passes: () => most > 0, isTied: false };
  const sorted = sizes.slice().sort();
  const least = sorted[sorted.length - most];
  const [first, last] = [sorted.indexOf(least), sorted.lastIndexOf(least)];
  const left = most - (sorted.length - 1 - last);
  const isTied = last - first + 1 > left;
  const lots = new Uint32Array(last - first + 1);
  let tied = 0;
  sizes.forEach((size, n) => size === least && (lots[tied++] = lot(n)));
  const bound = isTied ? lots.sort()[left] : Infinity;
  return { passes: (n) => sizes[n] > least || (sizes[n] === least && lot(n) < bound), isTied };
}

/** Draw a lot for a place, another one for each and the same each time: any order, such as every k-th, draws a pattern that is not there. */
function lot(place) {
  let bits = place + 0x9e3779b9;
  bits = Math.imul(bits ^ (bits >>> 16), 0x85ebca6b);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35);
  return (bits ^ (bits >>> 16)) >>> 0;
}

function ruled(head, threshold, top, weight) {
  const { attention } = head.values;
  const least = threshold ?? 0;
  const passes = (e) => Math.abs(attention[e]) >= least && attention[e] !== 0;
  const rules = least ? [`${whatOf(head)} ≥ ${number(least)}`] : [];
  if (!top) return { edges: every(head.key.length, passes), rule: rules.join("") };
  const chosen = [];
  const strength = strengthOf(head, weight);
  for (let row = 0; row + 1 < head.start.length; row++) {
    const edges = [];
    for (let e = head.start[row]; e < head.start[row + 1]; e++) if (passes(e)) edges.push(e);
    chosen.push(...ranked(edges, strength).slice(0, top));
  }
  rules.push(`the ${top > 1 ? `${top} ` : ""}strongest per query by ${weight}`);
  return { edges: Uint32Array.from(chosen.sort((a, b) => a - b)), rule: rules.join(", ") };
}

/** List the numbers below `size` that pass, in order. */
function every(size, passes) {
  let found = 0;
  for (let e = 0; e < size; e++) if (passes(e)) found++;
  const edges = new Uint32Array(found);
  for (let e = 0, at = 0; at < found; e++) if (passes(e)) edges[at++] = e;
  return edges;
}

/** Choose as many edges as stay readable as lines, at least one per query, and some of the strongest of nearly uniform queries. */
function readable(head) {
  const { attention } = head.values;
  const nodes = head.keys.length + (head.rowNode ? 0 : head.queries.length);
  const limit = Math.max(40 + 2 * nodes, 150);
  const sizes = attention.map((a) => Math.abs(a) || 0);
  const least = readableFrom(sizes, limit, attention.length <= 40 + 2 * nodes ? 0 : 1);
  const chosen = Uint8Array.from(sizes, (a) => (a >= least && a > 0 ? 1 : 0));
  let rules = least ? [`${whatOf(head)} ≥ ${least}`] : attention.includes(0) ? [`nonzero ${whatOf(head)}`] : [];
  const even = evenRows(head, sizes, chosen);
  for (const row of even) chosen.fill(0, head.start[row], head.start[row + 1]);
  if (!chosen.includes(1)) rules = [];
  const each = even.length ? chooseOfEach(head, sizes, chosen, even, limit) : 0;
  const few = !each ? "" : rules.length ? `where a query reads evenly, ${each} of its strongest edges` : `${each} of the strongest edges of each query`;
  if (addStrongest(head, sizes, chosen)) rules.push("the strongest edge of each query");
  return { edges: every(head.key.length, (e) => chosen[e]), rule: [rules.join(" or "), few].filter(Boolean).join("; ") };
}

/** Find the smallest round number that leaves at most so many edges, or half of the attention with up to four times as many. */
function readableFrom(sizes, limit, first) {
  const [counts, masses] = [new Float64Array(STEPS.length), new Float64Array(STEPS.length)];
  for (const size of sizes)
    for (let i = 0; i < STEPS.length && size >= STEPS[i]; i++) {
      counts[i]++;
      masses[i] += size;
    }
  let place = counts.findIndex((found, i) => i >= first && found <= limit);
  if (place < 0) place = STEPS.length - 1;
  while (place && counts[place - 1] <= 4 * limit && masses[place] < masses[0] / 2) place--;
  return STEPS[place];
}

/** List the queries with nearly uniform attention, if some of them would show less than half of it. */
function evenRows(head, sizes, chosen) {
  const found = [];
  let isHidden = false;
  for (let row = 0; row + 1 < head.start.length; row++) {
    let [top, mass, squares, shown] = [0, 0, 0, 0];
    for (let e = head.start[row]; e < head.start[row + 1]; e++) {
      top = Math.max(top, sizes[e]);
      mass += sizes[e];
      squares += sizes[e] ** 2;
      shown += sizes[e] * chosen[e];
    }
    if (!mass || top * mass > 1.5 * squares || mass < 5 * top) continue;
    found.push(row);
    isHidden ||= shown < mass / 2;
  }
  return isHidden ? found : [];
}

/** Choose some of the strongest edges of each of some queries, and say how many; of nearly equal ones any. */
function chooseOfEach(head, sizes, chosen, rows, limit) {
  const half = rows.reduce((sum, row) => sum + head.start[row + 1] - head.start[row], 0) / 2;
  const each = Math.ceil((half <= 4 * limit ? half : limit) / rows.length);
  for (const row of rows) {
    const edges = rowEdges(head, row);
    const top = edges.reduce((most, e) => Math.max(most, sizes[e]), 0);
    const level = (e) => Math.round((100 * sizes[e]) / top);
    edges.sort((a, b) => level(b) - level(a) || lot(a) - lot(b));
    for (const e of edges.slice(0, each)) chosen[e] = sizes[e] > 0 ? 1 : 0;
  }
  return each;
}

function addStrongest(head, sizes, chosen) {
  let added = 0;
  for (let row = 0; row + 1 < head.start.length; row++) {
    let best = -1;
    for (let e = head.start[row]; e < head.start[row + 1]; e++) {
      if (chosen[e]) {
        best = -1;
        break;
      }
      if (sizes[e] > (best < 0 ? 0 : sizes[best])) best = e;
    }
    if (best >= 0) added += chosen[best] = 1;
  }
  return added;
}

const whatOf = (head) => (head.isChange ? "change" : "attention");

/** Say which edges are shown, and how much of the attention they hold. */
export function caption(head, { edges: chosen, rule, limit }) {
  const isToken = (e) => head.key[e] !== head.sinkKey;
  const { attention } = head.values;
  const shown = chosen.filter(isToken);
  const total = head.sinkKey < 0 ? head.key.length : head.key.filter((k) => k !== head.sinkKey).length;
  const mass = shown.reduce((sum, e) => sum + (Math.abs(attention[e]) || 0), 0);
  const all = head.mass.reduce((sum, m) => sum + m, 0);
  const inAll = limit && limit.among < total ? ` (${grouped(total)} in all)` : "";
  const edges = limit ? limitText(limit) + inAll : shown.length === total ? `all ${count(total, "edge")}` : `${grouped(shown.length)} of ${count(total, "edge")}`;
  const share = all ? `, ${percent(mass, all)} of the ${head.isChange ? (head.isPart ? "known change" : "change") : "attention"}` : "";
  const unknown = head.isChange ? attention.reduce((sum, change) => sum + Number.isNaN(change), 0) : 0;
  const alone = unknown ? `; ${count(unknown, "edge")} kept in only one run` : "";
  const fromSink = head.sinkKey < 0 ? "" : `; ${count(chosen.length - shown.length, "edge")} from the sink`;
  return `${rule ? `${rule}: ` : ""}${edges}${share}${alone}${fromSink}`;
}
