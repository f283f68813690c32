// The mean over heads of a layer, and paths through layers.

import { number } from "./texts.js";
import { ranked, rowsOf } from "./readings.js";
import { strongest } from "./edges.js";

/** Average the heads of a layer: edges sorted by query, and each query's attention including what was dropped; `pause` may wait. */
export async function meanOf(heads, pause = () => {}) {
  const nodes = heads[0].keys.filter((token) => !token.virtual).length;
  const most = heads.reduce((sum, head) => sum + head.key.length, 0);
  const [key, query, mean] = [new Uint32Array(most), new Uint32Array(most), new Float32Array(most)];
  const mass = new Float64Array(nodes);
  const sums = new Float64Array(nodes + 1);
  const rows = heads.map(rowsOf);
  let used = 0;
  for (let node = 0; node < nodes; node++) {
    await pause();
    const touched = [];
    for (const [n, head] of heads.entries()) {
      const row = rows[n][node];
      if (row < 0) continue;
      mass[node] += head.mass[row] / heads.length;
      for (let e = head.start[row]; e < head.start[row + 1]; e++) {
        const [k, attention] = [head.key[e], head.values.attention[e]];
        if (k === head.sinkKey || !attention) continue;
        if (!sums[k]) touched.push(k);
        sums[k] += attention;
      }
    }
    for (const k of touched) {
      if (!sums[k]) continue;
      [key[used], query[used], mean[used++]] = [k, node, sums[k] / heads.length];
      sums[k] = 0;
    }
  }
  const kept = mean.slice(0, used);
  const [isChange, isPart] = [heads[0].isChange, heads.some((head) => head.isPart)];
  return { key: key.slice(0, used), query: query.slice(0, used), mean: kept, mass, isChange, isPart, isSigned: isChange || kept.some((m) => m < 0) };
}

/** A layer of which no head is chosen: it passes tokens on as they are. */
export const passedOn = (nodes, isChange) => ({ key: new Uint32Array(0), query: new Uint32Array(0), mean: new Float32Array(0), mass: new Float64Array(nodes), isChange, isPart: false, isSigned: isChange });

/** Say which edges of layers pass a threshold and are among the strongest of their query: {passes, rule}; null without either. */
export function ruleOf(layers, { threshold, top }, what) {
  if (threshold === null && !top) return null;
  const least = threshold ?? 0;
  const passed = layers.map(({ mean }) => Uint8Array.from(mean, (m) => (m !== 0 && Math.abs(m) >= least ? 1 : 0)));
  if (top) layers.forEach((layer, l) => keepTop(layer, passed[l], top));
  const rules = [...(least ? [`${what} ≥ ${number(least)}`] : []), ...(top ? [`the ${top > 1 ? `${top} ` : ""}strongest per query and layer`] : [])];
  return { passes: (l, e) => passed[l][e] === 1, rule: rules.join(", ") };
}

/** Keep the strongest edges of each query, among those that passed; edges are sorted by query. */
function keepTop({ query, mean }, passed, top) {
  for (let from = 0, to = 0; from < query.length; from = to) {
    while (to < query.length && query[to] === query[from]) to++;
    const row = Array.from({ length: to - from }, (_, n) => from + n).filter((e) => passed[e]);
    for (const e of ranked(row, (one) => Math.abs(mean[one])).slice(top)) passed[e] = 0;
  }
}

/** List the strongest edges of layers that pass, the weakest first, at most `most` of them; a histogram finds them. */
export function strongestOf(values, most, isIn, isShown = () => true) {
  const bins = new Uint32Array(2001);
  const bin = (size) => Math.min(2000, Math.floor(2000 * Math.sqrt(size)));
  const each = (visit) =>
    values.forEach((some, l) => {
      for (let e = 0; e < some.length; e++) if (some[e] && isIn(l, e)) visit(Math.abs(some[e]), l, e);
    });
  const eachPassing = (visit) => each((size, l, e) => isShown(l, e) && visit(size, l, e));
  let [all, passing, total] = [0, 0, 0];
  each((size) => {
    all++;
    total += size;
  });
  eachPassing((size) => {
    bins[bin(size)]++;
    passing++;
  });
  let [least, above] = [2000, 0];
  for (; least > 0 && above + bins[least] <= most; least--) above += bins[least];
  const sizes = new Float64Array(bins[least]);
  let n = 0;
  eachPassing((size) => bin(size) === least && (sizes[n++] = size));
  const { passes, isTied } = strongest(sizes, most - above);
  const edges = [];
  n = 0;
  eachPassing((size, l, e) => (bin(size) === least ? passes(n++) : bin(size) > least) && edges.push({ l, e, size }));
  return { edges: edges.sort((a, b) => a.size - b.size), all, passing, total, isTied };
}

/** The share of a token that stays in the residual stream of a layer. */
export const staying = (layer, i) => 1 / (1 + layer.mass[i]);

/**
 * Follow a token at a level to all levels below and above, by products of layers (rollout).
 *
 * A layer is its attention plus the residual stream, which counts as 1, divided by the sum of both; dropped
 * edges are missing, as in `gattn.analysis.rollout`. Level 0 is the input.
 * Returns `levels`, the share at the tokens of each level, and `flows`, the share over the edges of each layer.
 */
export function rollout(layers, level, token) {
  const size = layers[0].mass.length;
  const levels = Array.from({ length: layers.length + 1 }, () => new Float64Array(size));
  const flows = layers.map((layer) => new Float32Array(layer.key.length));
  levels[level][token] = 1;
  const walk = (l, from, to) => {
    const { key, query, mean } = layers[l];
    const [source, target] = to < from ? [query, key] : [key, query];
    const [here, there] = [levels[from], levels[to]];
    here.forEach((share, i) => (there[i] += share * staying(layers[l], i)));
    for (let e = 0; e < key.length; e++)
      if (here[source[e]]) there[target[e]] += flows[l][e] = here[source[e]] * mean[e] * staying(layers[l], query[e]);
  };
  for (let l = level - 1; l >= 0; l--) walk(l, l + 1, l);
  for (let l = level; l < layers.length; l++) walk(l, l, l + 1);
  return { levels, flows };
}
