// Decodes the blocks of a page into heads and their tokens.

import { signsHeldBy } from "./signs.js";
import { visible } from "./texts.js";

/** Undo base64. */
export function bytesOf(text) {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Undo raw deflate. */
export async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Make a function that reads the next numbers, stored as byte planes. */
export function planes(bytes) {
  let at = 0;
  return (size, width) => {
    if (at + size * width > bytes.length) throw new Error("the block of its numbers is too short");
    const found = width === 2 ? new Uint16Array(size) : new Uint32Array(size);
    for (let plane = 0; plane < width; plane++, at += size)
      for (let i = 0; i < size; i++) found[i] |= bytes[at + i] << (8 * plane);
    return found;
  };
}

function patternRows(graph, queries, keys, offset) {
  const start = new Uint32Array(queries + 1);
  for (let i = 0; i < queries; i++)
    start[i + 1] = start[i] + (graph.pattern === "complete" ? keys : Math.min(i + offset + 1, keys));
  const key = new Uint32Array(start[queries]);
  for (let i = 0; i < queries; i++) for (let e = start[i], j = 0; e < start[i + 1]; e++) key[e] = j++;
  return { start, key };
}

function explicitRows(take, graph, queries) {
  const start = new Uint32Array(queries + 1);
  const degrees = take(queries, 4);
  for (let i = 0; i < queries; i++) start[i + 1] = start[i] + degrees[i];
  const key = take(graph.edges, 4);
  for (let i = 0; i < queries; i++) for (let e = start[i] + 1; e < start[i + 1]; e++) key[e] += key[e - 1];
  return { start, key };
}

/**
 * Decode a block into a head: edges sorted by row, then key; `start[row]` is the first edge of a row.
 *
 * A sink outside the text becomes one more key, the last, with an edge in each row.
 */
export function decodeHead(bytes, graph, { queries, keys, offset, levels = 65534 }) {
  const take = planes(bytes);
  const { start, key } =
    graph.pattern === "explicit" ? explicitRows(take, graph, queries) : patternRows(graph, queries, keys, offset);
  const decode = (size, [low, high]) => {
    const codes = take(size, 2);
    const step = (high - low) / levels;
    const found = new Float32Array(size);
    for (let e = 0; e < size; e++) found[e] = codes[e] === 65535 ? NaN : low + codes[e] * step;
    return found;
  };
  const values = {};
  for (const [name, limits] of Object.entries(graph.values)) values[name] = decode(key.length, limits);
  const mass = new Float32Array(take(queries, 4).buffer);
  const head = { start, key, values, mass, sinkKey: -1, isPart: graph.edges < graph.totalEdges };
  return graph.sink ? withSink(head, decode(queries, graph.sink), keys) : head;
}

function withSink(head, sink, keys) {
  const rows = sink.length;
  const size = head.key.length + rows;
  const start = head.start.map((first, row) => first + row);
  const key = new Uint32Array(size);
  const values = Object.fromEntries(Object.keys(head.values).map((name) => [name, new Float32Array(size).fill(NaN)]));
  for (let row = 0; row < rows; row++) {
    const [from, to] = [head.start[row], head.start[row + 1]];
    key.set(head.key.subarray(from, to), start[row]);
    for (const name in values) values[name].set(head.values[name].subarray(from, to), start[row]);
    key[start[row + 1] - 1] = keys;
    values.attention[start[row + 1] - 1] = sink[row];
  }
  return { ...head, start, key, values, sinkKey: keys };
}

/** List the tokens of one side of a stack; they are numbered where names repeat, as they are shown. */
export function tokensOf(side, generatedFrom = null) {
  const special = new Set(side.special);
  const isNumbered = new Set(side.tokens.map((text) => visible(text))).size < side.tokens.length;
  const tokens = side.tokens.map((text, index) => ({
    text,
    index,
    position: side.positions[index],
    isNumbered,
    word: side.words?.[index] ?? null,
    at: side.places?.at[index] ?? null,
    special: special.has(index),
    generated: generatedFrom !== null && index >= generatedFrom,
    virtual: false,
  }));
  signsHeldBy(tokens).forEach((partOf, index) => (tokens[index].partOf = partOf));
  return tokens;
}

export const SINK = { text: "<sink>", index: -1, position: -1, isNumbered: false, partOf: "", word: null, at: null, special: false, generated: false, virtual: true };

/** Give a decoded head its tokens; in self-attention, `rowNode` says which key each query is. */
export function withTokens(head, keys, queries, offset) {
  const all = head.sinkKey < 0 ? keys : [...keys, SINK];
  const rows = head.start.length - 1;
  const rowNode = queries ? null : Int32Array.from({ length: rows }, (_, row) => row + offset);
  return { ...head, keys: all, queries: queries ?? Array.from(rowNode, (node) => keys[node]), rowNode };
}
