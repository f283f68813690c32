// The edges that a picture shows, and the caption that says which.

import { count, grouped, number, percent } from "./texts.js";
import { ranked, strengthOf } from "./readings.js";

const STEPS = [0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

const MOST_LINES = 2000;

/** Choose the edges that a picture shows, and say by what rule: {edges, rule}. */
export function choose(head, { threshold, top, weight, isDense = false }) {
  if (isDense && threshold === null && !top) return { edges: every(head.key.length, () => true), rule: "" };
  const { edges, rule } = threshold === null && !top ? readable(head) : ruled(head, threshold, top, weight);
  if (isDense || edges.length <= MOST_LINES) return { edges, rule };
  const { passes, stride } = strongest(Float32Array.from(edges, strengthOf(head, weight)), MOST_LINES, head.keys.length);
  const some = edges.filter((_, n) => passes(n));
  const strongestOnes = `the ${grouped(some.length)} strongest`;
  return { edges: some, rule: `${rule ? `${rule}, ${strongestOnes} of these` : strongestOnes}${spreadOf(stride)}` };
}

export const spreadOf = (stride) => (stride > 1 ? `, one in ${stride} of equally strong ones` : "");

/** Say which of some sizes are the strongest, to be asked in order: of those equal to the least of them one in `stride`. */
export function strongest(sizes, most, columns) {
  if (sizes.length <= most || !most) return { passes: () => most > 0, stride: 1 };
  const sorted = sizes.slice().sort();
  const least = sorted[sorted.length - most];
  const [first, last] = [sorted.indexOf(least), sorted.lastIndexOf(least)];
  const stride = strideOf(last - first + 1, most - (sorted.length - 1 - last), columns);
  let tied = 0;
  return { passes: (n) => sizes[n] > least || (sizes[n] === least && tied++ % stride === 0), stride };
}

/** Choose one in how many leaves at most some of them, and not the same few keys in each row. */
function strideOf(size, most, columns) {
  let stride = Math.max(1, Math.ceil(size / most));
  while (stride > 1 && divisor(stride, columns) > 1) stride++;
  return stride;
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
  rules.push(`the ${top} strongest of each query by ${weight}`);
  return { edges: Uint32Array.from(chosen.sort((a, b) => a - b)), rule: rules.join(", ") };
}

/** List the numbers below a size that pass, in order. */
function every(size, passes) {
  let found = 0;
  for (let e = 0; e < size; e++) if (passes(e)) found++;
  const edges = new Uint32Array(found);
  for (let e = 0, at = 0; at < found; e++) if (passes(e)) edges[at++] = e;
  return edges;
}

/** As many edges as lines stay readable, and at least one per query; nearly uniform queries show one in k. */
function readable(head) {
  const { attention } = head.values;
  const nodes = head.keys.length + (head.rowNode ? 0 : head.queries.length);
  const limit = Math.max(40 + 2 * nodes, 150);
  const sizes = attention.map(Math.abs);
  const [counts, masses] = [new Float64Array(STEPS.length), new Float64Array(STEPS.length)];
  for (const size of sizes)
    for (let i = 0; i < STEPS.length && size >= STEPS[i]; i++) {
      counts[i]++;
      masses[i] += size;
    }
  const steps = attention.length <= 40 + 2 * nodes ? 0 : 1;
  let place = counts.findIndex((found, i) => i >= steps && found <= limit);
  if (place < 0) place = STEPS.length - 1;
  while (place && counts[place - 1] <= 4 * limit && masses[place] < masses[0] / 2) place--;
  const chosen = Uint8Array.from(sizes, (a) => (a >= STEPS[place] && a > 0 ? 1 : 0));
  const rules = STEPS[place] ? [`${whatOf(head)} ≥ ${STEPS[place]}`] : sizes.includes(0) ? [`${whatOf(head)} other than 0`] : [];
  const even = evenEdges(head, sizes, chosen);
  const stride = strideOf(even.length, limit, head.keys.length);
  even.forEach((e, n) => n % stride || (chosen[e] = 1));
  if (even.length) rules.push(`${stride > 1 ? `one edge in ${stride}` : "all edges"} of nearly uniform queries`);
  if (addStrongest(head, sizes, chosen)) rules.push("the strongest edge of each query");
  return { edges: every(head.key.length, (e) => chosen[e]), rule: rules.join(" or ") };
}

const divisor = (a, b) => (b ? divisor(b, a % b) : a);

function evenEdges(head, sizes, chosen) {
  const found = [];
  for (let row = 0; row + 1 < head.start.length; row++) {
    let [top, mass, squares, shown] = [0, 0, 0, 0];
    for (let e = head.start[row]; e < head.start[row + 1]; e++) {
      top = Math.max(top, sizes[e]);
      mass += sizes[e];
      squares += sizes[e] ** 2;
      shown += sizes[e] * chosen[e];
    }
    if (top * mass > 1.5 * squares || mass < 5 * top || shown >= mass / 2) continue;
    for (let e = head.start[row]; e < head.start[row + 1]; e++) if (sizes[e] >= top / 4 && !chosen[e]) found.push(e);
  }
  return found;
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
export function caption(head, { edges: chosen, rule }) {
  const isToken = (e) => head.key[e] !== head.sinkKey;
  const { attention } = head.values;
  const shown = chosen.filter(isToken);
  const total = head.sinkKey < 0 ? head.key.length : head.key.filter((k) => k !== head.sinkKey).length;
  const mass = shown.reduce((sum, e) => sum + (Math.abs(attention[e]) || 0), 0);
  const all = head.mass.reduce((sum, m) => sum + m, 0);
  const edges = shown.length === total ? `all ${count(total, "edge")}` : `${grouped(shown.length)} of ${count(total, "edge")}`;
  const share = all ? `, ${percent(mass, all)} of the ${head.isChange ? (head.isPart ? "known change" : "change") : "attention"}` : "";
  const unknown = head.isChange ? attention.reduce((sum, change) => sum + Number.isNaN(change), 0) : 0;
  const alone = unknown ? `; ${count(unknown, "edge")} kept in one run alone` : "";
  const fromSink = head.sinkKey < 0 ? "" : `; ${count(chosen.length - shown.length, "edge")} from the sink`;
  return `${rule ? `${rule}: ` : ""}${edges}${share}${alone}${fromSink}`;
}
