// Looks up a token in a head: where it is, what it reads, and what reads it.

import { number } from "./texts.js";

/** Find the node that is a token or contains it, by the token's index; -1 if there is none. */
export function nodeOf(nodes, index) {
  return nodes.findIndex((node) => node.index === index || (node.index < index && index <= node.last));
}

/** Find a key and a query of a head by the indices of their tokens; null if there is neither. */
export function placeIn(head, key, row) {
  const place = { key: nodeOf(head.keys, key ?? NaN), row: nodeOf(head.queries, row ?? NaN) };
  return place.key < 0 && place.row < 0 ? null : place;
}

const indices = new WeakMap();

/** Index a head once: the edges of each key, the row of each edge, the row of each node. */
export function indexOf(head) {
  if (indices.has(head)) return indices.get(head);
  const rows = head.start.length - 1;
  const row = new Uint32Array(head.key.length);
  for (let i = 0; i < rows; i++) row.fill(i, head.start[i], head.start[i + 1]);
  const start = new Uint32Array(head.keys.length + 1);
  for (const k of head.key) start[k + 1]++;
  for (let k = 0; k < head.keys.length; k++) start[k + 1] += start[k];
  const next = start.slice();
  const edge = new Uint32Array(head.key.length);
  head.key.forEach((k, e) => (edge[next[k]++] = e));
  const index = { row, start, edge, rowOf: rowsOf(head) };
  indices.set(head, index);
  return index;
}

/** Measure how strong an edge is: by its size, or by its score, which has no natural zero. */
export function strengthOf(head, weight) {
  const values = head.values[weight];
  const isSize = weight !== "score" || head.isChange;
  return (e) => (Number.isNaN(values[e]) ? -Infinity : isSize ? Math.abs(values[e]) : values[e]);
}

/** Sort edges, the strongest first; ties keep their order. */
export const ranked = (edges, strength) => edges.sort((a, b) => (strength(b) > strength(a)) - (strength(b) < strength(a)) || a - b);

export const rowEdges = ({ start }, row) => Array.from({ length: row < 0 ? 0 : start[row + 1] - start[row] }, (_, n) => start[row] + n);

/**
 * List what the focus reads and what reads it, the strongest first: {e, row, key, token, value, isClear}.
 *
 * An edge with value 0 does not count, unless the value is a score. The strongest eight are clear if they are at
 * least a fifth of the strongest; for scores, their attention is compared.
 */
export function readingsOf(head, focus, weight) {
  const { row, start, edge } = indexOf(head);
  const [value, strength] = [head.values[weight], strengthOf(head, weight)];
  const isScore = weight === "score" && !head.isChange;
  const isListed = (e) => (Number.isNaN(value[e]) ? head.key[e] !== head.sinkKey : isScore || value[e] !== 0);
  const size = (e) => Math.abs(isScore ? head.values.attention[e] : value[e]);
  const list = (edges, token) => {
    const listed = ranked(edges.filter(isListed), strength);
    const isClear = (e, n) => n < 8 && size(e) >= Math.max(size(listed[0]) / 5, 1e-6);
    return listed.map((e, n) => ({ e, row: row[e], key: head.key[e], token: token(e), value: value[e], isClear: isClear(e, n) }));
  };
  return {
    reads: list(rowEdges(head, focus.row), (e) => head.keys[head.key[e]]),
    readBy: list(focus.key < 0 ? [] : Array.from(edge.subarray(start[focus.key], start[focus.key + 1])), (e) => head.queries[row[e]]),
  };
}

/** Write a value of a head; for a change, say why it is missing: only one run has the edge. */
export const valueText = (value, { isChange, isPart }) => (isChange && Number.isNaN(value) ? (isPart ? "not kept" : "no edge") : number(value));

/** Give the row of each node as a query, or -1. */
export function rowsOf(head) {
  const rows = new Int32Array(head.keys.length).fill(-1);
  head.rowNode?.forEach((node, row) => node >= 0 && (rows[node] = row));
  return rows;
}
