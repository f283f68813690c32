import { deflateRawSync } from "node:zlib";
import { readFileSync } from "node:fs";
import { lookOf, tokensOf, withTokens } from "./viewer.mjs";

const stops = readFileSync(new URL("../../gattn/drawing/canvas/colours.py", import.meta.url), "utf8").match(/#[0-9a-f]{6}/g);
const [light, dark] = [0, 14].map((at) => ({ unsigned: stops.slice(at, at + 7), signed: stops.slice(at + 7, at + 14) }));

/** The looks of the page, with the colours of all pictures of gattn. */
export const LOOKS = { light: lookOf("light", { light }), dark: lookOf("dark", { dark }) };

/** Write numbers as byte planes. */
export function planes(numbers, width) {
  const bytes = Buffer.alloc(numbers.length * width);
  numbers.forEach((value, i) => {
    for (let plane = 0; plane < width; plane++) bytes[plane * numbers.length + i] = Math.floor(value / 256 ** plane) % 256;
  });
  return bytes;
}

export const floats = (values) => planes([...new Uint32Array(Float32Array.from(values).buffer)], 4);

export const base64 = (...parts) => deflateRawSync(Buffer.concat(parts)).toString("base64");

/** Make the tokens of a stack. */
export function tokens(texts, { words = null, special = [], generatedFrom = null } = {}) {
  return tokensOf({ tokens: texts, positions: texts.map((_, i) => i), words, special }, generatedFrom);
}

/** Make a head from a matrix; null is no edge, and a last column beyond the tokens is a sink. */
export function headOf(matrix, keys, { queries = null, offset = 0, more = {} } = {}) {
  const start = new Uint32Array(matrix.length + 1);
  const [key, attention] = [[], []];
  matrix.forEach((row, i) => {
    row.forEach((value, j) => {
      if (value === null) return;
      key.push(j);
      attention.push(value);
    });
    start[i + 1] = key.length;
  });
  const sinkKey = matrix[0].length > keys.length ? keys.length : -1;
  const mass = Float32Array.from(matrix, (row) => row.slice(0, keys.length).reduce((sum, value) => sum + Math.abs(value ?? 0), 0));
  const values = { attention: Float32Array.from(attention) };
  for (const [name, make] of Object.entries(more)) values[name] = Float32Array.from(attention, make);
  return withTokens({ start, key: Uint32Array.from(key), values, mass, sinkKey }, keys, queries, offset);
}

/** Make a causal head of n tokens. */
export function causal(n, value, options) {
  const matrix = Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j) => (j > i ? null : value(i, j))));
  return headOf(matrix, tokens(Array.from({ length: n }, (_, i) => `t${i}`), options));
}

/** Write a head as a matrix again. */
export function dense(head, name = "attention") {
  return head.queries.map((_, i) => {
    const row = head.keys.map(() => null);
    for (let e = head.start[i]; e < head.start[i + 1]; e++) row[head.key[e]] = Number(head.values[name][e].toFixed(4));
    return row;
  });
}
