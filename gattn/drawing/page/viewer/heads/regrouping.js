// Makes heads from heads: the difference of two, words instead of tokens, fewer tokens.

import { joined } from "./signs.js";

/** The values that are 0 for an edge that does not exist. */
export const AMOUNTS = ["attention", "contribution"];

/**
 * Subtract a head from another one on the same tokens, edge by edge.
 *
 * An edge that only one of them has counts as 0 attention in the other. If the other dropped edges, or for
 * scores, the change is unknown: NaN.
 */
export function difference(before, after) {
  const sinkKey = Math.max(before.sinkKey, after.sinkKey);
  const missing = ({ isPart }, name, at) => (AMOUNTS.includes(name) && (!isPart || at === sinkKey) ? 0 : NaN);
  const rows = before.start.length - 1;
  const names = Object.keys(before.values).filter((name) => name in after.values);
  const start = new Uint32Array(rows + 1);
  const key = [];
  const found = names.map(() => []);
  const mass = new Float32Array(rows);
  for (let row = 0; row < rows; row++) {
    let [a, b] = [before.start[row], after.start[row]];
    const [lastA, lastB] = [before.start[row + 1], after.start[row + 1]];
    while (a < lastA || b < lastB) {
      const keyA = a < lastA ? before.key[a] : Infinity;
      const keyB = b < lastB ? after.key[b] : Infinity;
      const at = Math.min(keyA, keyB);
      names.forEach((name, n) =>
        found[n].push((keyB === at ? after.values[name][b] : missing(after, name, at)) - (keyA === at ? before.values[name][a] : missing(before, name, at))),
      );
      if (at !== sinkKey) mass[row] += Math.abs(found[0].at(-1)) || 0;
      key.push(at);
      a += keyA === at;
      b += keyB === at;
    }
    start[row + 1] = key.length;
  }
  const values = Object.fromEntries(names.map((name, n) => [name, Float32Array.from(found[n])]));
  return { start, key: Uint32Array.from(key), values, mass, sinkKey, isChange: true, isPart: before.isPart || after.isPart };
}

const merged = (parts) => ({ ...parts[0], text: joined(parts.map((part) => part.text)), partOf: "", last: parts.at(-1).index });

/** Say which node each token becomes: -1 if hidden, one node per word if words merge. */
export function groupsOf(tokens, { merge = false, hidden = new Set(), from = 0, to = Infinity } = {}) {
  const group = new Int32Array(tokens.length).fill(-1);
  const members = [];
  tokens.forEach((token, i) => {
    const isOutside = !token.virtual && (token.index < from || token.index >= to);
    if (hidden.has(i) || isOutside) return;
    const before = tokens[i - 1];
    const continues = merge && i && group[i - 1] >= 0 && token.word !== null && token.word === before.word;
    if (!continues) members.push([]);
    members.at(-1).push(token);
    group[i] = members.length - 1;
  });
  const nodes = members.map((parts) => (parts.length === 1 ? parts[0] : merged(parts)));
  return { group, nodes };
}

/**
 * Make a head on other nodes: those of `groupsOf` for keys and, in cross-attention, for queries.
 *
 * Attention to a word is the sum over its tokens, attention of a word the mean; other values do not merge.
 */
export function regroup(head, onKeys, onQueries = null) {
  const { group, nodes } = onKeys;
  const rowGroup = onQueries?.group ?? head.rowNode.map((node) => (node < 0 ? -1 : group[node]));
  const order = [...new Set(rowGroup)].filter((g) => g >= 0).sort((a, b) => a - b);
  const members = new Map(order.map((g) => [g, []]));
  rowGroup.forEach((g, row) => g >= 0 && members.get(g).push(row));
  const isMerged = nodes.length < group.filter((g) => g >= 0).length || order.some((g) => members.get(g).length > 1);
  const names = isMerged ? ["attention"] : Object.keys(head.values);
  const size = head.key.length;
  const start = new Uint32Array(order.length + 1);
  const key = new Uint32Array(size);
  const values = Object.fromEntries(names.map((name) => [name, new Float32Array(size)]));
  const mass = new Float32Array(order.length);
  const place = new Int32Array(nodes.length).fill(-1);
  let used = 0;
  order.forEach((g, row) => {
    const rows = members.get(g);
    const touched = [];
    const sums = names.map(() => []);
    for (const old of rows) {
      mass[row] += head.mass[old] / rows.length;
      for (let e = head.start[old]; e < head.start[old + 1]; e++) {
        const k = group[head.key[e]];
        if (k < 0) continue;
        if (place[k] < 0) {
          place[k] = touched.push(k) - 1;
          for (const sum of sums) sum.push(0);
        }
        names.forEach((name, n) => (sums[n][place[k]] += head.values[name][e] / rows.length));
      }
    }
    const sorted = rows.length > 1 ? [...touched].sort((a, b) => a - b) : touched;
    for (const k of sorted) {
      key[used] = k;
      names.forEach((name, n) => (values[name][used] = sums[n][place[k]]));
      used++;
    }
    for (const k of touched) place[k] = -1;
    start[row + 1] = used;
  });
  return {
    ...head,
    start,
    key: key.slice(0, used),
    values: Object.fromEntries(names.map((name) => [name, values[name].slice(0, used)])),
    mass,
    sinkKey: head.sinkKey < 0 ? -1 : group[head.sinkKey],
    keys: nodes,
    queries: onQueries ? onQueries.nodes : order.map((g) => nodes[g]),
    rowNode: onQueries ? null : Int32Array.from(order),
  };
}

/** Restrict a head to ranges of keys and queries. */
export function windowed(head, keys, queries) {
  if (!keys && !queries) return head;
  const on = (tokens, limits) => groupsOf(tokens, limits ? { from: limits[0], to: limits[1] } : {});
  const part = regroup(head, on(head.keys, keys), on(head.queries, queries));
  if (!head.rowNode) return part;
  return { ...part, rowNode: Int32Array.from(part.queries, (query) => part.keys.indexOf(query)) };
}

/** Restrict a head to what some queries read of some keys; its nodes are the tokens of both ranges. */
export function blockOf(head, keys, queries) {
  const isWithin = ([from, to]) => ({ index, virtual }) => virtual || (index >= from && index < to);
  const [isKey, isQuery] = [isWithin(keys), isWithin(queries)];
  const start = new Uint32Array(head.start.length);
  const edges = [];
  head.queries.forEach((query, row) => {
    for (let e = head.start[row]; isQuery(query) && e < head.start[row + 1]; e++) if (isKey(head.keys[head.key[e]])) edges.push(e);
    start[row + 1] = edges.length;
  });
  const values = Object.fromEntries(Object.entries(head.values).map(([name, some]) => [name, Float32Array.from(edges, (e) => some[e])]));
  const block = { ...head, start, key: Uint32Array.from(edges, (e) => head.key[e]), values };
  const hidden = new Set(head.keys.flatMap((token, k) => (isKey(token) || isQuery(token) ? [] : [k])));
  const part = regroup(block, groupsOf(head.keys, { hidden }), groupsOf(head.queries, { from: queries[0], to: queries[1] }));
  return { ...part, rowNode: Int32Array.from(part.queries, (query) => part.keys.indexOf(query)), numKeys: head.keys.filter(isKey).length };
}

/** Find the keys that receive more than 0.3 of the attention on average, and the virtual one. */
export function sinksOf(head) {
  const received = new Float64Array(head.keys.length);
  head.key.forEach((k, e) => (received[k] += Math.abs(head.values.attention[e])));
  const rows = head.queries.length;
  return new Set(head.keys.flatMap((token, k) => (token.virtual || (rows > 3 && received[k] > 0.3 * rows) ? [k] : [])));
}
