// The parts of a head's queries and keys, and the pairs of them that a score is a sum of.

import { number } from "../heads/texts.js";
import { planes } from "../heads/decoding.js";

const MIDDLE = 32767;

/** Decode a block: functions from a part's and a token's place to its vector, of queries and of keys; and what the model adds to scores. */
export function decodeParts(bytes, { parts, queries, keys, dim, added }) {
  const take = planes(bytes);
  const floats = (size) => new Float32Array(take(size, 4).buffer);
  const side = (tokens) => {
    const steps = floats(parts.length * tokens.length);
    const codes = take(steps.length * dim, 2);
    return (part, token) => {
      const n = part * tokens.length + token;
      return Float32Array.from(codes.subarray(n * dim, (n + 1) * dim), (code) => (code - MIDDLE) * steps[n]);
    };
  };
  return { queries: side(queries), keys: side(keys), added: added ? floats(queries.length * keys.length) : null };
}

const product = (one, other) => one.reduce((sum, x, n) => sum + x * other[n], 0);

/** List the pairs whose sum is the score of an edge, the largest first: {rows: [{query, key, score}], total}. */
export function pairsOf(entry, decoded, query, key) {
  const [i, j] = [entry.queries.indexOf(query), entry.keys.indexOf(key)];
  const [ofQuery, ofKey] = [entry.parts.map((_, part) => decoded.queries(part, i)), entry.parts.map((_, part) => decoded.keys(part, j))];
  const rows = entry.parts.flatMap((one, a) => entry.parts.map((other, b) => ({ query: one, key: other, score: product(ofQuery[a], ofKey[b]) })));
  return withAdded(entry, decoded, rows, i, j);
}

/** List the products of elements of query and key whose sum is the score of an edge, the largest first, as `pairsOf` does; and the `elements` in order. */
export function elementsOf(entry, decoded, query, key) {
  const [i, j] = [entry.queries.indexOf(query), entry.keys.indexOf(key)];
  const whole = (side, at) => Array.from({ length: entry.dim }, (_, d) => entry.parts.reduce((sum, __, part) => sum + side(part, at)[d], 0));
  const [ofQuery, ofKey] = [whole(decoded.queries, i), whole(decoded.keys, j)];
  const rows = ofQuery.map((x, d) => ({ query: `element ${d}`, key: `${number(x)} × ${number(ofKey[d])}`, score: x * ofKey[d] }));
  return { ...withAdded(entry, decoded, rows, i, j), elements: { query: ofQuery, key: ofKey } };
}

/** Add what a cap takes off a score and what the model adds, and sort. */
function withAdded(entry, decoded, rows, i, j) {
  const sum = () => rows.reduce((all, { score }) => all + score, 0);
  const raw = sum();
  const { softcap } = entry;
  if (softcap) rows.push({ query: "soft cap", key: "soft cap", score: softcap * Math.tanh(raw / softcap) - raw });
  if (decoded.added) rows.push({ query: "added", key: "added", score: decoded.added[i * entry.keys.length + j] });
  const total = sum();
  return { rows: rows.sort((a, b) => Math.abs(b.score) - Math.abs(a.score)), total };
}
