// The parts of a head's queries and keys, and the pairs of them that a score is a sum of.

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
  const sum = () => rows.reduce((all, { score }) => all + score, 0);
  const raw = sum();
  const { softcap } = entry;
  if (softcap) rows.push({ query: "soft cap", key: "soft cap", score: softcap * Math.tanh(raw / softcap) - raw });
  if (decoded.added) rows.push({ query: "added", key: "added", score: decoded.added[i * entry.keys.length + j] });
  const total = sum();
  return { rows: rows.sort((a, b) => Math.abs(b.score) - Math.abs(a.score)), total };
}
