/**
 * The page of gattn: looks at attention graphs without network, framework or build.
 *
 * numbers and texts -> decoding -> heads -> edges to show -> colours -> scenes -> renderers -> page
 *
 * A scene is a picture as data: {width, height, marks, hit}. One renderer draws it on a canvas, one
 * writes it as SVG. Everything above "The page" is pure and runs without a document.
 */

// ---------------------------------------------------------------- Numbers and texts

/** Write a number with at most three significant digits. */
export function number(value) {
  if (!Number.isFinite(value)) return "none";
  const size = Math.abs(value);
  const text =
    size && size < 1e-4 ? size.toExponential(1)
    : size >= 1000 ? Math.round(size).toLocaleString("en")
    : String(Number(size.toPrecision(3)));
  return value < 0 && Number(size.toPrecision(3)) ? `−${text}` : text;
}

const count = (size, name) => `${size.toLocaleString("en")} ${name}${size === 1 ? "" : "s"}`;

const NAMED = new Map([["\n", "↵"], ["\t", "\\t"], ["\r", "\\r"]]);

function piece(character) {
  if (NAMED.has(character)) return NAMED.get(character);
  const code = character.codePointAt(0);
  if (/\p{Cc}/u.test(character)) return `\\x${code.toString(16).padStart(2, "0")}`;
  const isHidden = /\p{C}/u.test(character) || (/\p{Z}/u.test(character) && character !== " ");
  return isHidden ? `U+${code.toString(16).toUpperCase().padStart(4, "0")}` : character;
}

/** Write a token so that nothing of it is invisible or acts on the text around it. */
export function visible(token, limit = 16) {
  if (!token) return '""';
  const stripped = token.replace(/^ +| +$/g, "");
  let text = /^\p{M}/u.test(stripped) ? "◌" : "";
  let before = "";
  for (const character of stripped || "␣".repeat(token.length)) {
    const shown = piece(character);
    const isApart = before && (shown.length > 4 || before.length > 4);
    if (text && text.length + shown.length > limit) return `${text}…`;
    text += isApart ? ` ${shown}` : shown;
    before = shown;
  }
  return text;
}

/** Keep what a token's letters do to the direction of a line within the token. */
const isolated = (text) => `\u2068${text}\u2069`;

/** Estimate the width of a line of text. */
export function textWidth(text, size) {
  let width = 0;
  for (const character of text) {
    const code = character.codePointAt(0);
    if ((code >= 0x1100 && code < 0x1160) || (code >= 0x2e80 && code < 0xfe00) || code > 0x1f000) width += 1;
    else if ("ijlI.,:;'|!()[]- ".includes(character)) width += 0.36;
    else if ("mwMW…%@<>=+~".includes(character)) width += 0.88;
    else width += /\p{M}/u.test(character) ? 0 : /\p{Lu}|\d/u.test(character) ? 0.68 : 0.6;
  }
  return width * size;
}

/** Choose about four round numbers from low to high. */
export function ticks(low, high) {
  if (!(high > low)) return [low];
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(Number((k * step).toPrecision(3)));
  return found;
}

// ---------------------------------------------------------------- The state, and the fragment

export const VIEWS = ["arcs", "columns", "matrix", "layered", "text"];
export const SHOWN = ["before", "after", "difference", "all three"];

const oneOf = (names) => (text) => (names.includes(text) ? text : undefined);
const asWhole = (text) => (/^\d{1,9}$/.test(text) ? Number(text) : undefined);
const asFlag = (text) => text === "1" || undefined;
const asWords = (text) => (text && text.length <= 200 ? text : undefined);
const asShare = (text) => (/^\d*\.?\d+(e-?\d+)?$/.test(text) ? Number(text) : undefined);
const asRange = (text) => {
  const [from, to] = /^\d{1,9}-\d{1,9}$/.test(text) ? text.split("-").map(Number) : [0, 0];
  return from < to ? [from, to] : undefined;
};

/** What can be said of the view: how each part is read from text, and what it is by default. */
const FIELDS = {
  view: [oneOf(VIEWS), "arcs"],
  stack: [asWords, ""],
  layer: [asWhole, null],
  head: [asWhole, null],
  token: [asWhole, null],
  side: [oneOf(["key", "query"]), "key"],
  level: [asWhole, null],
  weight: [asWords, "attention"],
  threshold: [asShare, null],
  top: [asWhole, 0],
  words: [asFlag, false],
  special: [asFlag, false],
  sinks: [asFlag, false],
  search: [asWords, ""],
  sort: [asWords, ""],
  show: [oneOf(SHOWN), "difference"],
  keys: [asRange, null],
  queries: [asRange, null],
  theme: [oneOf(["light", "dark"]), ""],
};

export const DEFAULTS = Object.fromEntries(Object.entries(FIELDS).map(([name, [, usual]]) => [name, usual]));

/** Write what differs from the default as a URL fragment. */
export function toFragment(state) {
  const parts = new URLSearchParams();
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = state[name];
    if (value === usual || value == null) continue;
    parts.set(name, value === true ? "1" : Array.isArray(value) ? value.join("-") : String(value));
  }
  return parts.toString();
}

/** Read a URL fragment; what it does not say, or says wrongly, is the default. */
export function fromFragment(text) {
  const parts = new URLSearchParams(text.replace(/^#/, ""));
  return Object.fromEntries(
    Object.entries(FIELDS).map(([name, [read, usual]]) => [name, read(parts.get(name) ?? "") ?? usual]),
  );
}

// ---------------------------------------------------------------- Decoding

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

/** Give a function that takes numbers, stored as byte planes, from the front of bytes. */
function planes(bytes) {
  let at = 0;
  return (size, width) => {
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
 * Decode a block to a head: edges sorted by row, then key; `start[row]` is a row's first edge.
 *
 * A sink outside the sequence becomes one more key, the last one, with an edge in each row.
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

/** List the tokens of one side of a stack. */
export function tokensOf(side, generatedFrom = null) {
  const special = new Set(side.special);
  return side.tokens.map((text, index) => ({
    text,
    index,
    position: side.positions[index],
    word: side.words?.[index] ?? null,
    special: special.has(index),
    generated: generatedFrom !== null && index >= generatedFrom,
    virtual: false,
  }));
}

export const SINK = { text: "<sink>", index: -1, position: -1, word: null, special: false, generated: false, virtual: true };

/** Give a decoded head its tokens; in self-attention `rowNode` says which key each query is. */
export function withTokens(head, keys, queries, offset) {
  const all = head.sinkKey < 0 ? keys : [...keys, SINK];
  const rows = head.start.length - 1;
  const rowNode = queries ? null : Int32Array.from({ length: rows }, (_, row) => row + offset);
  return { ...head, keys: all, queries: queries ?? Array.from(rowNode, (node) => keys[node]), rowNode };
}

// ---------------------------------------------------------------- Heads

/** The kinds of values of which an edge that is not there has 0. */
const AMOUNTS = ["attention", "contribution"];

/**
 * Subtract a head from another one on the same tokens, edge by edge.
 *
 * An edge of one of them alone has an attention of 0 in the other; where that one did not keep all of
 * its edges, or of a score, the change is not known: NaN.
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

/** Join the texts of the tokens of a word: the marks of continued pieces go. */
export function joined(texts) {
  return texts.map((text, i) => (i && text.startsWith("##") ? text.slice(2) : text)).join("");
}

const merged = (parts) => ({ ...parts[0], text: joined(parts.map((part) => part.text)), last: parts.at(-1).index });

/** Say which node each token becomes: -1 where hidden, one node for each word where words merge. */
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
 * Make a head on other nodes: those that `groupsOf` gives for keys and, in cross-attention, queries.
 *
 * Attention to a word is the sum over its tokens, that of a word the mean; other values do not merge.
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

/** Find the node that a token is, or is part of, by the token's index; -1 where it is not there. */
export function nodeOf(nodes, index) {
  return nodes.findIndex((node) => node.index === index || (node.index < index && index <= node.last));
}

/** Find a key and a query of a head by the indices of their tokens; null where neither is there. */
export function placeIn(head, key, row) {
  const place = { key: nodeOf(head.keys, key ?? NaN), row: nodeOf(head.queries, row ?? NaN) };
  return place.key < 0 && place.row < 0 ? null : place;
}

/** Look at ranges of the keys and the queries alone. */
export function windowed(head, keys, queries) {
  if (!keys && !queries) return head;
  const on = (tokens, limits) => groupsOf(tokens, limits ? { from: limits[0], to: limits[1] } : {});
  const part = regroup(head, on(head.keys, keys), on(head.queries, queries));
  if (!head.rowNode) return part;
  return { ...part, rowNode: Int32Array.from(part.queries, (query) => part.keys.indexOf(query)) };
}

/** Find the keys that take more than 0.3 of the attention of the queries, on average, and the virtual one. */
export function sinksOf(head) {
  const received = new Float64Array(head.keys.length);
  head.key.forEach((k, e) => (received[k] += Math.abs(head.values.attention[e])));
  const rows = head.queries.length;
  return new Set(head.keys.flatMap((token, k) => (token.virtual || (rows > 3 && received[k] > 0.3 * rows) ? [k] : [])));
}

const indices = new WeakMap();

/** Index a head by its keys and rows, once: its columns, the row of each edge, the row of each node. */
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

/** Give how strong an edge is: its size, but for scores, which have no natural zero, the score itself. */
function strengthOf(head, weight) {
  const values = head.values[weight];
  const isSize = weight !== "score" || head.isChange;
  return (e) => (Number.isNaN(values[e]) ? -Infinity : isSize ? Math.abs(values[e]) : values[e]);
}

/** Order edges from the strongest on; ties stay in their order. */
const ranked = (edges, strength) => edges.sort((a, b) => (strength(b) > strength(a)) - (strength(b) < strength(a)) || a - b);

const rowEdges = ({ start }, row) => Array.from({ length: row < 0 ? 0 : start[row + 1] - start[row] }, (_, n) => start[row] + n);

/**
 * List what a focus reads and what reads it, the strongest first: {e, row, key, token, value, isClear}.
 *
 * An edge of value 0 is none, but for scores. Clear are the strongest eight, as far as they, or of scores
 * their attention, are a fifth of the strongest.
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

// ---------------------------------------------------------------- The edges to show

const STEPS = [0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

const MOST_LINES = 2000;

/** Choose the edges that a picture shows, and say by what rule: {edges, rule}. */
export function choose(head, { threshold, top, weight, isDense = false }) {
  if (isDense && threshold === null && !top) return { edges: every(head.key.length, () => true), rule: "" };
  const { edges, rule } = threshold === null && !top ? readable(head) : ruled(head, threshold, top, weight);
  if (isDense || edges.length <= MOST_LINES) return { edges, rule };
  const { passes, stride } = strongest(Float32Array.from(edges, strengthOf(head, weight)), MOST_LINES, head.keys.length);
  const some = edges.filter((_, n) => passes(n));
  const strongestOnes = `the ${some.length.toLocaleString("en")} strongest`;
  return { edges: some, rule: `${rule ? `${rule}, ${strongestOnes} of these` : strongestOnes}${spreadOf(stride)}` };
}

const spreadOf = (stride) => (stride > 1 ? `, one in ${stride} of equally strong ones` : "");

/** Say which of some sizes are the strongest, to be asked in order: of those equal to the least of them one in `stride`. */
function strongest(sizes, most, columns) {
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

/** As many edges as lines stay readable, and at least one a query; nearly uniform queries show one in k. */
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

/** Say which edges are shown, and how much of the mass they are. */
export function caption(head, { edges: chosen, rule }) {
  const isToken = (e) => head.key[e] !== head.sinkKey;
  const { attention } = head.values;
  const shown = chosen.filter(isToken);
  const total = head.sinkKey < 0 ? head.key.length : head.key.filter((k) => k !== head.sinkKey).length;
  const mass = shown.reduce((sum, e) => sum + (Math.abs(attention[e]) || 0), 0);
  const all = head.mass.reduce((sum, m) => sum + m, 0);
  const edges = shown.length === total ? `all ${count(total, "edge")}` : `${shown.length.toLocaleString("en")} of ${count(total, "edge")}`;
  const percent = all ? `, ${Number(((100 * mass) / all).toPrecision(3))} % of the ${head.isChange ? (head.isPart ? "known change" : "change") : "mass"}` : "";
  const unknown = head.isChange ? attention.reduce((sum, change) => sum + Number.isNaN(change), 0) : 0;
  const alone = unknown ? `; ${count(unknown, "edge")} kept in one run alone` : "";
  const fromSink = head.sinkKey < 0 ? "" : `; ${count(chosen.length - shown.length, "edge")} from the sink`;
  return `${rule ? `${rule}: ` : ""}${edges}${percent}${alone}${fromSink}`;
}

// ---------------------------------------------------------------- Layers

/** Write a value of a head, or why there is none: of a change, because of an edge of one run alone. */
export const valueText = (value, { isChange, isPart }) => (isChange && Number.isNaN(value) ? (isPart ? "not kept" : "no edge") : number(value));

/** Say which row each node is as a query, or -1. */
function rowsOf(head) {
  const rows = new Int32Array(head.keys.length).fill(-1);
  head.rowNode?.forEach((node, row) => node >= 0 && (rows[node] = row));
  return rows;
}

/** Average the heads of a layer: edges sorted by query, and the mass of each query, what was dropped included; `pause` may wait. */
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

/** List the strongest edges of some layers of so many tokens, the weakest first: at most some, found by a histogram. */
export function strongestOf(values, most, isIn, tokens) {
  const bins = new Uint32Array(2001);
  const bin = (size) => Math.min(2000, Math.floor(2000 * Math.sqrt(size)));
  const each = (visit) =>
    values.forEach((some, l) => {
      for (let e = 0; e < some.length; e++) if (some[e] && isIn(l, e)) visit(Math.abs(some[e]), l, e);
    });
  let [all, total] = [0, 0];
  each((size) => {
    bins[bin(size)]++;
    all++;
    total += size;
  });
  let [least, above] = [2000, 0];
  for (; least > 0 && above + bins[least] <= most; least--) above += bins[least];
  const sizes = new Float64Array(bins[least]);
  let n = 0;
  each((size) => bin(size) === least && (sizes[n++] = size));
  const { passes, stride } = strongest(sizes, most - above, tokens);
  const edges = [];
  n = 0;
  each((size, l, e) => (bin(size) === least ? passes(n++) : bin(size) > least) && edges.push({ l, e, size }));
  return { edges: edges.sort((a, b) => a.size - b.size), all, total, stride };
}

/** The share of a token that stays in the residual stream of a layer. */
const staying = (layer, i) => 1 / (1 + layer.mass[i]);

/**
 * Follow a token of a level to all levels below and above, by products of layers (rollout).
 *
 * A layer is attention and the residual stream, as much as a mass of 1, divided by both masses: what was
 * dropped of them lacks, as in `gattn.analysis.rollout`. Level 0 is the input.
 * Returns `levels`, the share at each level's tokens, and `flows`, the share over each layer's edges.
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

// ---------------------------------------------------------------- Colours

/** The colours of everything that is not a value. */
const LOOKS = {
  light: { name: "light", paper: "#ffffff", ink: "#1c2230", muted: "#5b6475", faint: "#dfe3ea", ground: "#f6f7f9", accent: "#b4460f", soft: "#fdf0e6" },
  dark: { name: "dark", paper: "#12151d", ink: "#e8ebf2", muted: "#9ba5b7", faint: "#2c3342", ground: "#0c0e14", accent: "#ffb066", soft: "#3a2a1a" },
};

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function ramp(stops) {
  const colours = stops.map(rgb);
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (colours.length - 1);
    const left = Math.min(Math.floor(at), colours.length - 2);
    return colours[left].map((part, c) => Math.round(part + (colours[left + 1][c] - part) * (at - left)));
  });
}

/** Put a look and the colours of attention on it together: 256 of each kind, from stops. */
export const lookOf = (name, ramps) => ({ ...LOOKS[name], unsigned: ramp(ramps[name].unsigned), signed: ramp(ramps[name].signed) });

/** Name the colours that the style sheet uses; bars are as strong attention. */
export function cssOf({ paper, ink, muted, faint, ground, accent, unsigned, signed }) {
  return { paper, ink, muted, faint, ground, accent, bar: `rgb(${unsigned[170]})`, minus: `rgb(${signed[42]})` };
}

const signedRoot = (x) => Math.sign(x) * Math.sqrt(Math.abs(x));

/**
 * The scale of a weight: attention on a square-root scale from 0 to 1, or from -1 where it is signed;
 * other values on a linear one from the least to the largest; changes on either side of 0.
 */
export class Scale {
  constructor(label, low, high, isRoot, tokens = 5, isSigned = isRoot && low < 0) {
    this.label = label;
    this.isSigned = isSigned;
    this.isRoot = isRoot;
    this.high = this.isSigned ? Math.max(-low, high) : high;
    this.low = this.isSigned ? -this.high : low;
    this.pen = 8.7 / Math.max(tokens, 5) ** 0.25;
  }

  /** The scale that heads on the same tokens share: both runs of a comparison, or one change. */
  static of(heads, weight) {
    const [{ isChange, keys }] = heads;
    let [low, high] = [Infinity, -Infinity];
    for (const head of heads) for (const value of head.values[weight]) if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (!(high >= low)) [low, high] = [0, 1];
    const label = isChange ? `change of ${weight}` : weight;
    const nodes = keys.length;
    if (isChange) {
      const top = weight === "attention" ? Math.max(1, -low, high) : Math.max(-low, high) || 1;
      return new Scale(label, -top, top, weight === "attention", nodes, true);
    }
    if (weight === "attention") return new Scale(label, low < -1e-6 ? Math.min(low, -1) : 0, high > 1.0001 ? high : 1, true, nodes);
    return new Scale(label, low, high > low ? high : low + 1, false, nodes);
  }

  /** The same scale with wider lines, for the few edges of a focus. */
  forFew() {
    return Object.assign(Object.create(Scale.prototype), this, { pen: Math.max(this.pen, 4) });
  }

  /** Where a value is on the scale, from 0 to 1. */
  at(value) {
    const bend = this.isRoot ? signedRoot : (x) => x;
    const [low, high] = [bend(this.low), bend(this.high)];
    return Math.min(1, Math.max(0, (bend(value) - low) / (high - low))) || 0;
  }

  rgb(value, look, isLine = false) {
    const start = isLine && !this.isSigned ? 0.16 : 0;
    return look[this.isSigned ? "signed" : "unsigned"][Math.round(255 * (start + (1 - start) * this.at(value)))];
  }

  colour(value, look, isLine = false) {
    return `rgb(${this.rgb(value, look, isLine).join(",")})`;
  }

  /** The share of the largest value; without a natural zero it counts from the least. */
  share(value) {
    const isFromZero = this.isSigned || this.low >= 0;
    return Math.min(1, isFromZero ? Math.abs(value) / this.high : this.at(value)) || 0;
  }

  /** The width of a line in pixels. */
  width(value) {
    return this.pen * (0.14 + 0.86 * this.share(value));
  }

  get ticks() {
    if (!this.isRoot) return ticks(this.low, this.high);
    const above = [0.05, 0.25, 0.5, 1].map((share) => Number((this.high * share).toPrecision(2)));
    return this.isSigned ? [-above[3], -above[1], 0, above[1], above[3]] : above;
  }
}

/** Give the luminance of a colour, as ratios of contrast take it. */
const luminance = (parts) => {
  const [red, green, blue] = parts.map((part) => (part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};

/** Choose the ink, black or white, that has the larger contrast on a colour. */
export const inkOn = (colour) => ((luminance(colour) + 0.05) ** 2 > 1.05 * 0.05 ? "#000000" : "#ffffff");

// ---------------------------------------------------------------- Scenes

const lineMark = (x1, y1, x2, y2, stroke, width = 1, more = {}) => ({ mark: "line", x1, y1, x2, y2, stroke, width, ...more });
const curvesMark = (paths, stroke, width, more = {}) => ({ mark: "curves", paths, stroke, width, ...more });
const rectMark = (x, y, w, h, more) => ({ mark: "rect", x, y, w, h, ...more });
const textMark = (x, y, text, fill, more = {}) => ({ mark: "text", x, y, text, fill, size: 12, anchor: "start", ...more });

const noteMark = (look, x, y, text, anchor = "start") => textMark(x, y, text, look.muted, { size: 11, anchor });

/** Write a note in as many lines as the width asks for. */
const noteMarks = (look, y, width, text) => wrapped(text, width - 20, 11).map((line, n) => noteMark(look, 8, y + 14 * n, line));

const THIN = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000];
const SIZE = 12;

const labelsOf = new WeakMap();
const widest = (labels) => labels.reduce((most, label) => Math.max(most, label && textWidth(label, SIZE)), 0);

/**
 * Fit labels to the distance between neighbours: turned, then with numbers and thinned out.
 *
 * @returns {{texts: string[], angle: number, size: number, extent: number, stride: number}}
 */
export function fitLabels(tokens, pitch, angles) {
  if (!labelsOf.has(tokens)) {
    const all = tokens.map((token) => (token.virtual ? token.text : visible(token.text)));
    labelsOf.set(tokens, { all, wide: widest(all) });
  }
  const { all, wide } = labelsOf.get(tokens);
  const texts = [...all];
  const room = { 0: wide + 8, 45: 1.5 * SIZE, 90: 1.2 * SIZE };
  let angle = angles.find((a) => pitch >= room[a]);
  let size = SIZE;
  let stride = 1;
  if (angle === undefined) {
    angle = angles.at(-1);
    size = Math.min(SIZE, Math.max(9, pitch / 1.2));
    stride = THIN.find((k) => k * pitch >= 1.2 * size) ?? THIN.at(-1);
    if (stride > 1) tokens.forEach((t, i) => (texts[i] = i % stride && !t.virtual ? "" : t.virtual ? t.text : `${t.position} ${texts[i]}`));
  }
  const most = (stride > 1 ? widest(texts) : wide) * (size / SIZE);
  const extent = { 0: size + 6, 45: 0.72 * most + size, 90: most + 6 }[angle];
  return { texts, angle, size, extent, stride, wide: most };
}

/** Label a token in full where it is the focus. */
const named = (token) => (token.virtual ? token.text : `${visible(token.text, 24)} (${token.position})`);

/** Draw a scale: its colours, for lines their widths, and round values. */
function scaleMarks({ scale, look }, x, y, isLine) {
  const [length, steps] = [168, 56];
  const marks = [textMark(x, y, scale.label, look.muted, { size: 11 })];
  const value = (at) => {
    if (!scale.isRoot) return scale.low + at * (scale.high - scale.low);
    const low = signedRoot(scale.low);
    const bent = low + at * (signedRoot(scale.high) - low);
    return Math.sign(bent) * bent * bent;
  };
  for (let i = 0; i < steps; i++) {
    const here = value((i + 0.5) / steps);
    const tall = isLine ? Math.max(1, scale.width(here)) : 9;
    marks.push(rectMark(x + (i * length) / steps, y + 14 - tall / 2, length / steps + 0.5, tall, { fill: scale.colour(here, look, isLine) }));
  }
  for (const tick of scale.ticks) {
    const at = x + scale.at(tick) * length;
    marks.push(lineMark(at, y + 19, at, y + 22, look.muted), textMark(at, y + 30, number(tick), look.muted, { size: 10.5, anchor: "middle" }));
  }
  return marks;
}

const KEY_HEIGHT = 44;

/** Tell how a label is written, from what its token has to do with the focus and the search. */
function labelStyle({ look, focus, matches }, token, isFocus, isLinked) {
  if (isFocus) return { fill: look.accent, bold: true, ground: { fill: look.paper } };
  if (matches.has(token)) return { fill: look.accent, ground: { fill: look.soft, stroke: look.accent, radius: 3 } };
  return { fill: focus && !isLinked ? look.muted : look.ink, bold: Boolean(focus && isLinked) };
}

/**
 * Write a row of labels: those on a ground of their own come last, on top of the others.
 *
 * A token whose label is thinned out is named where it is the focus, and gets a sign where it is searched.
 */
function labelRow(picture, tokens, labels, { place, anchor, isFocus, isLinked, sign = "●", angle = labels.angle }) {
  const shown = tokens.flatMap((token, i) => {
    const isSign = !labels.texts[i] && !isFocus(i) && picture.matches.has(token);
    const style = isSign ? { fill: picture.look.accent } : labelStyle(picture, token, isFocus(i), isLinked(i));
    const text = isSign ? sign : labels.texts[i] || (isFocus(i) ? named(token) : "");
    return text ? [{ token, text, style, place: place(i) }] : [];
  });
  const ordered = [...shown.filter(({ style }) => !style.ground), ...shown.filter(({ style }) => style.ground)];
  return ordered.flatMap((label) => labelMarks(label, { angle, anchor, size: labels.size }));
}

/** Write a label, on its ground; generated tokens are underlined. */
function labelMarks({ token, text, style, place: [x, y] }, { angle, anchor, size }) {
  const wide = (style.bold ? 1.06 : 1) * textWidth(text, size) + 6;
  const left = { start: x - 3, middle: x - wide / 2, end: x - wide + 3 }[anchor];
  const turn = angle ? { angle: -angle, cx: x, cy: y } : {};
  const ground = style.ground && rectMark(left, y - size * 0.72, wide, size * 1.44, { ...style.ground, ...turn });
  const under = y + size * 0.62;
  const underline = token.generated && lineMark(left + 3, under, left + wide - 3, under, style.fill, 1, { dash: [2, 2], ...turn });
  return [ground, textMark(x, y, text, style.fill, { anchor, size, bold: style.bold, ...turn }), underline].filter(Boolean);
}

const MOST_OWN = 30;

/** List the edges to draw, the weakest first: those chosen, and with a focus its own strongest ones, too. */
function linesOf({ head, chosen, focus, weight, threshold }) {
  const { row } = indexOf(head);
  const value = head.values[weight];
  const as = (e, kind) => ({ row: row[e], key: head.key[e], value: value[e], kind });
  if (!focus) return ranked([...chosen.edges], strengthOf(head, weight)).reverse().map((e) => as(e, "plain"));
  const { reads, readBy } = readingsOf(head, focus, weight);
  const isChosen = new Set(chosen.edges);
  const passes = ({ e }, n) => isChosen.has(e) || (n < MOST_OWN && Math.abs(head.values.attention[e]) >= (threshold ?? 0));
  const mine = (readings, kind) => readings.filter(passes).reverse().map((reading) => ({ ...reading, kind, isAdded: !isChosen.has(reading.e) }));
  const others = [...chosen.edges].filter((e) => row[e] !== focus.row && head.key[e] !== focus.key);
  return [...others.map((e) => as(e, "faint")), ...mine(readBy.filter((reading) => reading.row !== focus.row), "readBy"), ...mine(reads, "reads")];
}

const added = (lines) => lines.filter(({ isAdded }) => isAdded).length;

/** Draw lines as curves: those aside from a focus are one mark, all others have their colour and width. */
function lineMarks({ scale, look, weight }, lines, pointsOf) {
  const faint = lines.filter(({ kind }) => kind === "faint").map(pointsOf);
  const clear = lines.filter(({ kind }) => kind !== "faint");
  const marks = faint.length ? [curvesMark(faint, look.faint, 0.8)] : [];
  for (const line of clear) {
    const shown = Number.isFinite(line.value) ? line.value : scale.low;
    const dash = line.kind === "readBy" ? { dash: [5, 3] } : {};
    marks.push(curvesMark([pointsOf(line)], scale.colour(shown, look, true), Math.max(0.7, scale.width(shown)), { ...dash, title: `${weight} ${number(line.value)}` }));
  }
  return marks;
}

/** What has clearly to do with the focus: keys that it reads, rows that read it. */
function linked(lines) {
  const clear = lines.filter(({ isClear }) => isClear);
  return {
    keys: new Set(clear.filter(({ kind }) => kind === "reads").map(({ key }) => key)),
    rows: new Set(clear.filter(({ kind }) => kind === "readBy").map(({ row }) => row)),
  };
}

const directions = (focus) => (focus ? "solid: what it reads; dashed: what reads it" : "key → query");
const firstGenerated = (tokens) => tokens.findIndex((token) => token.generated);

/** The nodes of a head: in self-attention its keys, else keys before queries; `place` says which key and row one is. */
function nodesOf(head) {
  const keys = head.keys.length;
  if (head.rowNode) return { tokens: head.keys, ofRow: (row) => head.rowNode[row], place: (node) => ({ key: node, row: indexOf(head).rowOf[node] }) };
  const place = (node) => (node < keys ? { key: node, row: -1 } : { key: -1, row: node - keys });
  return { tokens: [...head.keys, ...head.queries], ofRow: (row) => keys + row, place };
}

/** How far slanted labels reach out on the left of the first token's place. */
function overhang({ texts, angle }, pitch) {
  const reach = texts.slice(0, 8).map((label, i) => 0.72 * textWidth(label, SIZE) - (i + 0.5) * pitch - 12);
  return angle === 45 ? Math.max(0, ...reach) : 0;
}

/** Where arcs lie: `at(node)` along the line, `rise` of an arc to its span, `base` and `bottom` of the labels. */
function arcPlaces({ head, width, height }, { tokens, ofRow }, lines) {
  const slots = tokens.map((token, i) => (token.virtual ? -2 : i + (i >= head.keys.length ? 1 : 0)));
  const first = Math.min(...slots, 0);
  const slotCount = Math.max(...slots, 0) - first + 1;
  const isTwoSided = Boolean(head.rowNode) && lines.some(({ key, row }) => key > ofRow(row) && key !== head.sinkKey);
  const angles = isTwoSided ? [0, 90] : [0, 45, 90];
  const margin = 26;
  const loose = fitLabels(tokens, (width - 2 * margin) / slotCount, angles);
  const left = margin + overhang(loose, (width - 2 * margin) / slotCount);
  const pitch = (width - margin - left) / slotCount;
  const labels = fitLabels(tokens, pitch, angles);
  const span = lines.reduce((most, { key, row }) => Math.max(most, Math.abs(slots[key] - slots[ofRow(row)])), 2) * pitch;
  const room = (height - labels.extent - KEY_HEIGHT - 40) / (isTwoSided ? 2 : 1);
  const tall = Math.min(span / 2, Math.max(isTwoSided ? 90 : 130, room - 22));
  const base = tall + 42;
  const band = isTwoSided ? labels.extent + 12 : 0;
  const bottom = isTwoSided ? base + band + tall + 22 : base + labels.extent + 12;
  return { at: (node) => left + (slots[node] - first + 0.5) * pitch, pitch, labels, isTwoSided, rise: tall / span, base, band, bottom };
}

function arcPoints(from, to, y, side, { rise, pitch }) {
  const high = (Math.abs(to - from) * rise * 4) / 3;
  if (from !== to) return [from, y, from, y - side * high, to, y - side * high, to, y];
  const [out, up] = [Math.min(0.92 * pitch, 28), 2.6 * Math.min(0.42 * pitch + 4, 13)];
  return [from, y, from - out, y - up, to + out, y - up, to, y];
}

/** Tokens on one line; edges to the right run above it, edges to the left below. */
export function arcs(picture) {
  const { head, look, width, focus } = picture;
  const nodes = nodesOf(head);
  const lines = linesOf(picture);
  const places = arcPlaces(picture, nodes, lines);
  const { at, labels, isTwoSided, base, band, bottom } = places;
  const marks = lineMarks(picture, lines, (line) => {
    const [from, to] = [at(line.key), at(nodes.ofRow(line.row))];
    const isBelow = isTwoSided && from > to && line.key !== head.sinkKey;
    return arcPoints(from, to, isBelow ? base + band : base, isBelow ? -1 : 1, places);
  });
  const near = linked(lines);
  const y = isTwoSided ? base + band / 2 : base + 8 + (labels.angle ? 0 : labels.size / 2);
  const row = {
    place: (node) => [at(node), y],
    anchor: labels.angle && !isTwoSided ? "end" : "middle",
    isFocus: (node) => Boolean(focus) && isSame(nodes.place(node), focus),
    isLinked: (node) => near.keys.has(nodes.place(node).key) || near.rows.has(nodes.place(node).row),
    sign: "▲",
  };
  marks.push(...labelRow(picture, nodes.tokens, labels, row));
  marks.push(noteMark(look, 13, 12, isTwoSided ? `above: ${directions(focus)}` : directions(focus)));
  if (isTwoSided) marks.push(noteMark(look, 13, bottom - 4, focus ? "below: the same, from right to left" : "query ← key"));
  if (!head.rowNode) marks.push(noteMark(look, at(0) - 12, bottom + 2, "keys"), noteMark(look, at(head.keys.length) - 12, bottom + 2, "queries"));
  const born = firstGenerated(nodes.tokens);
  const border = born > 0 && (at(born - 1) + at(born)) / 2;
  if (born > 0) marks.push(lineMark(border, 24, border, bottom, look.muted, 1, { dash: [3, 3] }), noteMark(look, border + 5, 26, "generated"));
  const keyTop = bottom + (isTwoSided ? 20 : head.rowNode ? 10 : 22);
  marks.push(...scaleMarks(picture, 13, keyTop, true));
  const hit = (px, py) => {
    if (py < 0 || py > bottom + 10 || !nodes.tokens.length) return null;
    return nodes.place(nodes.tokens.reduce((best, _, node) => (Math.abs(at(node) - px) < Math.abs(at(best) - px) ? node : best), 0));
  };
  return { width, height: keyTop + KEY_HEIGHT, marks, hit, added: added(lines) };
}

const isSame = (place, focus) => (place.key >= 0 && place.key === focus.key) || (place.row >= 0 && place.row === focus.row);

/** Where columns lie: the height of each key and row, and the ends of the lines. */
function columnPlaces({ head, width, height }) {
  const size = Math.max(head.keys.length, head.queries.length, 1);
  const pitch = Math.min(26, Math.max(17, (height - 90) / size), 1400 / size);
  const [onKeys, onRows] = [fitLabels(head.keys, pitch, [90]), fitLabels(head.queries, pitch, [90])];
  const [left, right] = [Math.min(onKeys.wide + 24, width * 0.3), width - Math.min(onRows.wide + 24, width * 0.3)];
  const spare = Math.max(0, right - left - 620) / 2;
  const shift = head.rowNode ? 0 : (head.keys.length - head.queries.length) / 2;
  const rowSlot = (row) => (head.rowNode?.[row] >= 0 ? head.rowNode[row] : row + Math.max(0, shift));
  const y = (slot) => 42 + (slot + 0.5) * pitch;
  const slotAt = (py) => Math.floor((py - 42) / pitch);
  return { onKeys, onRows, x0: left + spare, x1: right - spare, ofKey: (key) => y(key - Math.min(0, shift)), ofRow: (row) => y(rowSlot(row)), slotAt, bottom: 42 + size * pitch };
}

/** Keys in a left column and queries in a right one; a token of self-attention at the same height. */
export function columns(picture) {
  const { head, look, width, focus } = picture;
  const { onKeys, onRows, x0, x1, ofKey, ofRow, slotAt, bottom } = columnPlaces(picture);
  const lines = linesOf(picture);
  const middle = (x0 + x1) / 2;
  const marks = lineMarks(picture, lines, ({ key, row }) => [x0, ofKey(key), middle, ofKey(key), middle, ofRow(row), x1, ofRow(row)]);
  const near = linked(lines);
  const onLeft = { place: (k) => [x0 - 8, ofKey(k)], anchor: "end", angle: 0, isFocus: (k) => focus?.key === k, isLinked: (k) => near.keys.has(k) };
  const onRight = { place: (r) => [x1 + 8, ofRow(r)], anchor: "start", angle: 0, isFocus: (r) => focus?.row === r, isLinked: (r) => near.rows.has(r) };
  marks.push(...labelRow(picture, head.keys, onKeys, onLeft), ...labelRow(picture, head.queries, onRows, onRight));
  marks.push(noteMark(look, x0, 30, "keys", "end"), noteMark(look, x1, 30, "queries"), noteMark(look, middle, 10, directions(focus), "middle"));
  const born = firstGenerated(head.queries);
  if (born > 0) {
    const border = (ofRow(born - 1) + ofRow(born)) / 2;
    marks.push(lineMark(head.rowNode ? 8 : x1, border, width - 8, border, look.muted, 1, { dash: [3, 3] }), noteMark(look, width - 8, border + 8, "generated", "end"));
  }
  marks.push(...scaleMarks(picture, 13, bottom + 14, true));
  const hit = (px, py) => {
    if (py < 42 || py > bottom) return null;
    const [tokens, of] = px > middle ? [head.queries, ofRow] : [head.keys, ofKey];
    const found = tokens.findIndex((_, i) => slotAt(of(i)) === slotAt(py));
    if (found < 0) return null;
    if (px > middle) return { row: found, key: head.rowNode ? head.rowNode[found] : -1 };
    return { key: found, row: head.rowNode ? indexOf(head).rowOf[found] : -1 };
  };
  return { width, height: bottom + 14 + KEY_HEIGHT, marks, hit, added: added(lines) };
}

/** Take the largest value of each block of rows and keys: {values, rows, columns, block}. */
export function blocksOf(head, chosen, weight, across) {
  const block = Math.max(1, Math.ceil(Math.max(head.keys.length, head.queries.length) / across));
  const [rows, columns] = [head.queries, head.keys].map((tokens) => Math.ceil(tokens.length / block));
  const values = new Float32Array(rows * columns).fill(NaN);
  const most = new Float32Array(rows * columns).fill(-Infinity);
  const strength = strengthOf(head, weight);
  const { row } = indexOf(head);
  for (const e of chosen.edges) {
    const at = Math.floor(row[e] / block) * columns + Math.floor(head.key[e] / block);
    if (strength(e) > most[at]) [most[at], values[at]] = [strength(e), head.values[weight][e]];
  }
  return { values, rows, columns, block };
}

const coloured = new WeakMap();

/** Colour the cells of a matrix, once for each choice of edges. */
function cellsOf({ head, chosen, weight, scale, look }) {
  const key = `${weight} ${look.name} ${scale.low} ${scale.high}`;
  if (coloured.get(chosen)?.key !== key) {
    const blocks = blocksOf(head, chosen, weight, 560);
    const pixels = new Uint8ClampedArray(4 * blocks.values.length);
    blocks.values.forEach((value, at) => {
      if (!Number.isNaN(value)) pixels.set([...scale.rgb(value, look), 255], 4 * at);
    });
    coloured.set(chosen, { ...blocks, pixels, key });
  }
  return coloured.get(chosen);
}

/** Where a matrix lies: its corner, the size of a cell, and of a token, and the labels that fit. */
function matrixPlaces({ head, width, height }, { rows, columns, block }) {
  const left = Math.min(fitLabels(head.queries, 400 / Math.max(rows, 1), [90]).wide + 38, width * 0.32);
  const room = Math.min(width - left - 16, Math.max(height - 60, 320)) / Math.max(rows, columns, 1);
  const cell = room >= 3 ? Math.min(44, Math.floor(room)) : room;
  const step = cell / block;
  const [onRows, onKeys] = [fitLabels(head.queries, step, [90]), fitLabels(head.keys, step, [0, 45, 90])];
  return { left, top: Math.min(onKeys.extent, 150) + 34, cell, step, onRows, onKeys, wide: cell * columns, tall: cell * rows };
}

/** Write the value of each cell in it. */
function cellNumbers({ scale, look }, { values, columns }, { left, top, cell }) {
  return Array.from(values, (value, at) => {
    if (Number.isNaN(value)) return null;
    const fixed = value.toFixed(2).replace("-", "−").replace(".00", "").replace(/^(−?)0\./, "$1.");
    const [x, y] = [left + ((at % columns) + 0.5) * cell, top + (Math.floor(at / columns) + 0.5) * cell];
    const label = Math.abs(value) >= 0.005 || value === 0 ? fixed : "<.01";
    return textMark(x, y, label, inkOn(scale.rgb(value, look)), { size: 10.5, anchor: "middle" });
  }).filter(Boolean);
}

/** Frame the row and the column of the focus, and where generated tokens begin. */
function matrixLines({ head, look, focus }, { left, top, step, wide, tall }) {
  const marks = [];
  const [row, key] = [firstGenerated(head.queries), firstGenerated(head.keys)];
  const [y, x] = [top + row * step, left + key * step];
  if (row > 0) marks.push(lineMark(left - 30, y, left + wide, y, look.accent, 1, { dash: [3, 3] }), noteMark(look, left + wide, y - 7, "generated below", "end"));
  if (key > 0) marks.push(lineMark(x, top - 20, x, top + tall, look.accent, 1, { dash: [3, 3] }));
  const thick = Math.max(step, 1.5);
  const frame = (x, y, w, h, more) => {
    marks.push(rectMark(x, y, w, h, { fill: "none", stroke: look.paper, width: 4 })); // else cells can be as dark as the frame
    marks.push(rectMark(x, y, w, h, { fill: "none", stroke: look.accent, width: 2, ...more }));
  };
  if (focus?.row >= 0) frame(left, top + focus.row * step, wide, thick);
  if (focus?.key >= 0) frame(left + focus.key * step, top, thick, tall, { dash: [4, 3] });
  return marks;
}

/** Rows are queries, columns are keys; where a cell holds several edges it is the largest of them. */
export function matrix(picture) {
  const { head, look, width, focus, weight } = picture;
  const cells = cellsOf(picture);
  const places = matrixPlaces(picture, cells);
  const { left, top, cell, step, onRows, onKeys, wide, tall } = places;
  const { rows, columns, pixels, block } = cells;
  const marks = [rectMark(left, top, wide, tall, { fill: "none", stroke: look.faint }), { mark: "cells", x: left, y: top, w: wide, h: tall, rows, columns, pixels }];
  if (cell >= 34) marks.push(...cellNumbers(picture, cells, places));
  marks.push(...matrixLines(picture, places));
  const { reads, readBy } = readingsOf(head, focus ?? { key: -1, row: -1 }, weight);
  const read = new Set(reads.flatMap(({ key, isClear }) => (isClear ? [key] : [])));
  const readers = new Set(readBy.flatMap(({ row, isClear }) => (isClear ? [row] : [])));
  const onLeft = { place: (i) => [left - 6, top + (i + 0.5) * step], anchor: "end", angle: 0, isFocus: (i) => focus?.row === i, isLinked: (i) => readers.has(i) };
  const above = onKeys.angle ? top - 5 : top - 11;
  const onTop = { place: (j) => [left + (j + 0.5) * step, above], anchor: onKeys.angle ? "start" : "middle", isFocus: (j) => focus?.key === j, isLinked: (j) => read.has(j) };
  marks.push(...labelRow(picture, head.queries, onRows, onLeft), ...labelRow(picture, head.keys, onKeys, onTop));
  const keyTop = top + tall + 18;
  marks.push(noteMark(look, 4, 12, "rows: queries ↓   columns: keys →"), ...scaleMarks(picture, left, keyTop, false));
  if (block > 1) marks.push(noteMark(look, left + 190, keyTop + 14, `a cell is the largest of ${block} × ${block}`));
  const hit = (x, y) => {
    const [row, key] = [Math.floor((y - top) / step), Math.floor((x - left) / step)];
    const isRow = row >= 0 && row < head.queries.length;
    const isKey = key >= 0 && key < head.keys.length;
    if ((!isRow && !isKey) || x < 0 || y < 0 || (!isRow && y > top) || (!isKey && x > left)) return null;
    return { row: isRow ? row : -1, key: isKey ? key : -1, isPair: isRow && isKey };
  };
  const place = (x, y) => [Math.min(1, Math.max(0, (x - left) / wide)), Math.min(1, Math.max(0, (y - top) / tall))];
  return { width, height: keyTop + KEY_HEIGHT, marks, hit, place };
}

/** Shade the nodes of a head: by what the focus reads, by what reads it, or by what they receive on average. */
function shadesOf({ head, focus, weight }, nodes) {
  const shades = new Float64Array(nodes.tokens.length).fill(NaN);
  if (!focus) {
    const value = head.values[weight];
    const isAmount = AMOUNTS.includes(weight);
    const counts = new Uint32Array(head.keys.length).fill(isAmount ? head.queries.length : 0);
    shades.fill(0, 0, head.keys.length);
    head.key.forEach((key, e) => {
      const isThere = !Number.isNaN(value[e]);
      if (isThere) shades[key] += value[e];
      if (isThere !== isAmount) counts[key] += isAmount ? -1 : 1;
    });
    counts.forEach((edges, key) => (shades[key] = edges ? shades[key] / edges : NaN));
    return { shades, what: `shaded by the mean ${weight} ${isAmount ? "that a query gives each token" : "of the edges from each token"}` };
  }
  const isReading = focus.row >= 0;
  const { reads, readBy } = readingsOf(head, focus, weight);
  for (const { row, key, value } of isReading ? reads : readBy) shades[isReading ? key : nodes.ofRow(row)] = value;
  const whose = isolated(named(isReading ? head.queries[focus.row] : head.keys[focus.key]));
  return { shades, what: isReading ? `shaded by what ${whose} reads` : `shaded by what reads ${whose}` };
}

/** Set tokens as lines of boxes; queries of cross-attention begin a line of their own. */
function boxesOf(tokens, width, top, isBreak) {
  let [x, y] = [8, top];
  return tokens.map((token, n) => {
    const label = token.virtual ? token.text : visible(token.text, 40);
    const wide = 1.06 * textWidth(label, 14) + 12;
    if (x + wide > width - 8 || isBreak(n)) [x, y] = [8, y + 30 + (isBreak(n) ? 20 : 0)];
    x += wide + 3;
    return { x: x - wide - 3, y, wide, tall: 25, label };
  });
}

const MOST_WORDS = 1200;

/** The text itself, shaded by what the focus reads; without one by what each token receives. */
export function textView(picture) {
  const { head, look, width, focus, scale, matches } = picture;
  const nodes = nodesOf(head);
  const { shades, what } = shadesOf(picture, nodes);
  const chosen = focus ? nodes.tokens.findIndex((_, node) => isSame(nodes.place(node), focus)) : -1;
  const from = Math.max(0, Math.min(nodes.tokens.length - MOST_WORDS, chosen - MOST_WORDS / 2));
  const shown = nodes.tokens.slice(from, from + MOST_WORDS);
  const part = shown.length < nodes.tokens.length ? `; ${shown.length} tokens from position ${shown[0].position} on` : "";
  const marks = noteMarks(look, 12, width, what + part + (firstGenerated(shown) >= 0 ? "; underlined: generated" : ""));
  const top = 20 + 14 * marks.length;
  const boxes = boxesOf(shown, width, top, (n) => !head.rowNode && n + from === head.keys.length);
  shown.forEach((token, n) => {
    const { x, y, wide, tall, label } = boxes[n];
    const colour = Number.isNaN(shades[n + from]) ? rgb(look.paper) : scale.rgb(shades[n + from], look);
    const isFocus = n + from === chosen;
    const border = isFocus ? { stroke: look.accent, width: 2.5 } : matches.has(token) ? { stroke: look.accent, width: 1.5, dash: [4, 2] } : { stroke: look.faint };
    marks.push(rectMark(x, y, wide, tall, { fill: `rgb(${colour.join(",")})`, radius: 4, ...border }));
    marks.push(textMark(x + 6, y + tall / 2, label, inkOn(colour), { size: 14, bold: isFocus }));
    if (token.generated) marks.push(lineMark(x + 5, y + tall - 4, x + wide - 5, y + tall - 4, inkOn(colour), 1, { dash: [2, 2] }));
  });
  const keyTop = (boxes.at(-1)?.y ?? top) + 46;
  marks.push(...scaleMarks(picture, 8, keyTop, false));
  const hit = (px, py) => {
    const at = boxes.findIndex(({ x, y, wide, tall }) => px >= x - 2 && px <= x + wide + 2 && py >= y && py <= y + tall + 5);
    return at < 0 ? null : nodes.place(at + from);
  };
  return { width, height: keyTop + KEY_HEIGHT, marks, hit };
}

/** Where layers lie: `x` of a token, `y` of a level, and the labels that fit. */
function layerPlaces({ layers, width, height, range: [first, end] }, tokens) {
  const [top, depth] = [40, layers.length];
  const loose = (width - 82) / Math.max(end - first, 1);
  const left = Math.max(62, overhang(fitLabels(tokens, loose, [0, 45, 90]), loose) + 12);
  const pitch = (width - left - 20) / Math.max(end - first, 1);
  const labels = fitLabels(tokens, pitch, [0, 45, 90]);
  const high = Math.max(34, Math.min(110, (height - labels.extent - 110) / Math.max(depth, 1)));
  const y = (level) => top + (depth - level) * high;
  const hit = (px, py) => {
    if (py > y(0) + labels.extent + 12 || py < top - high / 2 || px < left - 10) return null;
    const token = first + Math.min(end - first - 1, Math.max(0, Math.floor((px - left) / pitch)));
    const level = py > y(0) ? depth : Math.min(depth, Math.max(0, Math.round((y(0) - py) / high)));
    return { key: token, row: token, level };
  };
  return { x: (token) => left + (token - first + 0.5) * pitch, y, left, pitch, labels, hit, places: tokens.map((_, n) => n + first) };
}

/** Draw levels, the names of layers, and the stream of each token: its width where paths are traced. */
function layerGround({ layers, layerNames, look, width, level, token, traced, scale }, { x, y, left, pitch, places }) {
  const depth = layers.length;
  const levels = Array.from({ length: depth + 1 }, (_, l) => l);
  const marks = levels.map((l) => lineMark(left, y(l), width - 12, y(l), look.faint, 0.7));
  marks.push(...layerNames.map((name, l) => noteMark(look, 8, (y(l) + y(l + 1)) / 2, name)));
  if (pitch > 7) marks.push(...places.map((i) => lineMark(x(i), y(0), x(i), y(depth), look.faint)));
  for (let l = 0; traced && l < depth; l++)
    for (const i of places) {
      const stays = traced.levels[l < level ? l + 1 : l][i] * staying(layers[l], i);
      if (stays > 0.002) marks.push(lineMark(x(i), y(l), x(i), y(l + 1), look.muted, Math.max(0.8, scale.width(stays))));
    }
  const dot = (i, l, r, fill) => rectMark(x(i) - r, y(l) - r, 2 * r, 2 * r, { radius: r, fill });
  const dots = pitch > 3 ? levels.flatMap((l) => places.map((i) => dot(i, l, Math.min(3, pitch / 3), look.muted))) : [];
  if (token !== null && places.includes(token)) dots.push(dot(token, level, 5, look.accent));
  return { marks, dots };
}

/** Say how much the edges drawn are of all: of what flows, of the means that may cancel, or of the whole mass. */
function shareOf({ layers, traced, level, range }, kept, total) {
  const percent = (whole) => `${Number(((100 * kept) / (whole || 1)).toPrecision(3))} %`;
  if (traced) return `${percent(total)} of what flows in attention${lostOf(traced, level)}`;
  const alone = layers.some(({ isChange, isPart }) => isChange && isPart) ? "; edges kept in one run alone are left out" : "";
  if (layers.some(({ isSigned }) => isSigned)) return `${percent(total)} of the means${alone}`;
  return `${percent(layers.reduce((sum, { mass }) => mass.slice(...range).reduce((some, m) => some + m, sum), 0))} of the mass`;
}

/** Say how much of a token's way down ends at edges that are not there. */
function lostOf({ levels }, level) {
  const lost = level ? 1 - levels[0].reduce((sum, share) => sum + share, 0) : 0;
  return lost > 0.0005 ? `; ${number(100 * lost)} % of the way down is lost in edges not kept or hidden` : "";
}

/** Tokens side by side, layers one on the other: the strongest edges of the mean over heads. */
export function layered(picture) {
  const { layers, look, width, level, token, traced, scale, range: [first, end] } = picture;
  const tokens = picture.tokens.slice(first, end);
  const places = layerPlaces(picture, tokens);
  const { x, y, pitch, labels } = places;
  const isIn = (i) => i >= first && i < end;
  const isWhole = tokens.length === picture.tokens.length;
  const isInside = isWhole ? () => true : (l, e) => isIn(layers[l].key[e]) && isIn(layers[l].query[e]);
  const most = Math.max(traced ? 80 : 30 * layers.length, 3 * tokens.length);
  const { edges, all, total, stride } = strongestOf(traced ? traced.flows : layers.map(({ mean }) => mean), most, isInside, picture.tokens.length);
  const { marks, dots } = layerGround(picture, places);
  for (const { l, e, size } of edges) {
    const [from, to] = [x(layers[l].key[e]), x(layers[l].query[e])];
    const [value, middle] = [traced ? size : layers[l].mean[e], (y(l) + y(l + 1)) / 2];
    const bulge = from === to ? Math.min(0.45 * pitch, 12) : 0;
    marks.push(curvesMark([[from, y(l), from + bulge, middle, to + bulge, middle, to, y(l + 1)]], scale.colour(value, look, true), Math.max(0.6, scale.width(value))));
  }
  const row = {
    place: (n) => [x(n + first), y(0) + 8 + (labels.angle ? 0 : labels.size / 2)],
    anchor: labels.angle ? "end" : "middle",
    isFocus: (n) => n + first === token,
    isLinked: (n) => Boolean(traced) && traced.levels[0][n + first] >= 0.05,
    sign: "▲",
  };
  marks.push(...dots, ...labelRow({ ...picture, focus: traced }, tokens, labels, row));
  const paths = traced && `paths down from ${isolated(named(picture.tokens[token]))} at level ${level}${level < layers.length ? ", and up" : ""}`;
  marks.push(...noteMarks(look, 8, width, traced ? `${paths}: rollout with the residual stream` : "upwards: from key to query; mean over heads"));
  const keyTop = y(0) + labels.extent + 26;
  marks.push(...scaleMarks(picture, 8, keyTop, true));
  const kept = edges.reduce((sum, { size }) => sum + size, 0);
  const said = `the ${edges.length.toLocaleString("en")} strongest of ${count(all, "edge")}${spreadOf(stride)}, ${shareOf(picture, kept, total)}`;
  return { width, height: keyTop + KEY_HEIGHT, marks, hit: places.hit, caption: said };
}

/** Put scenes one below the other, or side by side, each with a heading. */
export function tiled(scenes, names, look, isBeside) {
  const marks = [];
  const places = [];
  let [x, y, wide, tall] = [0, 0, 0, 0];
  scenes.forEach((scene, i) => {
    marks.push({ mark: "group", x, y, marks: [textMark(12, 12, names[i], look.ink, { bold: true, size: 13 })] });
    marks.push({ mark: "group", x, y: y + 22, marks: scene.marks });
    places.push({ x, y: y + 22 });
    wide = Math.max(wide, x + scene.width);
    tall = Math.max(tall, y + 22 + scene.height);
    if (isBeside) x += scene.width;
    else y += 30 + scene.height;
  });
  const hit = (px, py) => {
    const i = scenes.findIndex((scene, n) => px >= places[n].x && px < places[n].x + scene.width && py >= places[n].y && py < places[n].y + scene.height);
    return i < 0 ? null : scenes[i].hit(px - places[i].x, py - places[i].y);
  };
  return { width: wide, height: tall, marks, hit };
}

function wrapped(text, width, size) {
  const lines = [];
  for (const word of text.split(" ")) {
    if (lines.length && textWidth(`${lines.at(-1)} ${word}`, size) < width) lines[lines.length - 1] += ` ${word}`;
    else lines.push(word);
  }
  return lines;
}

/** Put a title above a scene and a caption below it, as a saved picture needs them. */
export function framed(scene, title, said, look) {
  const [head, foot] = [wrapped(title, scene.width - 24, 16), wrapped(said, scene.width - 24, 11)];
  const top = 16 + 20 * head.length;
  const marks = [
    ...head.map((line, i) => textMark(12, 20 + 20 * i, line, look.ink, { size: 15, bold: true })),
    { mark: "group", x: 0, y: top, marks: scene.marks },
    ...foot.map((line, i) => textMark(12, top + scene.height + 10 + 15 * i, line, look.muted, { size: 11 })),
  ];
  return { width: scene.width, height: top + scene.height + 14 + 15 * foot.length, marks };
}

/** Name the layers and heads around a grid, and bracket the heads that share keys and values. */
function gridNames({ layerNames, headNames, brackets, look }, { left, top, side, step }) {
  const stride = Math.ceil(18 / step);
  const name = (x, y, value, anchor) => textMark(x, y, String(value), look.muted, { anchor, size: 10.5 });
  const marks = [];
  headNames.forEach((head, c) => c % stride || marks.push(name(left + c * step + side / 2, top - 9, head, "middle")));
  layerNames.forEach((layer, r) => r % stride || marks.push(name(left - 7, top + r * step + side / 2, layer, "end")));
  for (const { from, to, name: shared } of brackets) {
    const [a, b] = [left + from * step, left + to * step + side];
    marks.push(lineMark(a, 14, b, 14, look.muted), lineMark(a, 14, a, 18, look.muted), lineMark(b, 14, b, 18, look.muted));
    if (b - a > 14) marks.push(name((a + b) / 2, 7, b - a > 70 ? `key-value ${shared}` : shared, "middle"));
  }
  return marks;
}

/** Read a byte of a thumbnail: the strongest attention of a block, or its largest change. */
export function shadeOf(byte, isChange) {
  const root = isChange ? (byte - 128) / 127 : byte / 255;
  return Math.sign(root) * root * root;
}

/** All heads as small pictures: layers down and heads across, or in the order of a score from the head `first` on. */
export function headGrid(grid) {
  const { cells, layerNames, headNames, look, width, chosen, brackets, isSorted, first = 0 } = grid;
  const [left, top] = [isSorted ? 4 : 26, isSorted ? 4 : brackets.length ? 38 : 20];
  const across = isSorted ? Math.max(1, Math.floor((width - left) / 66)) : headNames.length;
  const gap = across > 16 ? 2 : 4;
  const side = Math.max(8, Math.min(96, (width - left - 2) / across - gap));
  const [step, down] = [side + gap, side + gap + (isSorted ? 26 : 0)];
  const marks = isSorted || cells.length === 1 ? [] : gridNames(grid, { left, top, side, step });
  const boxes = cells.map((cell, n) => {
    const [c, r] = isSorted ? [n % across, Math.floor(n / across)] : [headNames.indexOf(cell.head), layerNames.indexOf(cell.layer)];
    const [x, y] = [left + c * step, top + r * down];
    marks.push(rectMark(x - 0.5, y - 0.5, side + 1, side + 1, { fill: look.paper, stroke: look.faint }));
    marks.push({ mark: "cells", x, y, w: side, h: side, rows: cell.rows, columns: cell.columns, pixels: cell.pixels });
    const say = (dy, text, fill) => marks.push(textMark(x + side / 2, y + side + dy, text, fill, { anchor: "middle", size: 10.5 }));
    if (isSorted) say(9, `${cell.layer}.${cell.head}`, look.ink), say(21, cell.said, look.muted);
    return { x, y };
  });
  const box = boxes[chosen - first];
  if (box) marks.push(rectMark(box.x - 2, box.y - 2, side + 4, side + 4, { fill: "none", stroke: look.accent, width: 3, radius: 2 }));
  const bottom = boxes.reduce((most, { y }) => Math.max(most, y + down), top) + 12;
  marks.push(...scaleMarks(grid, left, bottom, false));
  const hit = (x, y) => {
    const n = boxes.findIndex((one) => x >= one.x - 2 && x < one.x + side + 2 && y >= one.y - 2 && y < one.y + down - 2);
    return n < 0 ? null : n + first;
  };
  return { width: Math.max(width, left + across * step), height: bottom + KEY_HEIGHT, marks, hit, across };
}

// ---------------------------------------------------------------- Renderers

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";
const images = new WeakMap();

function imageOf({ pixels, columns: wide, rows }) {
  if (!images.has(pixels)) {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [Math.max(wide, 1), Math.max(rows, 1)];
    if (pixels.length) canvas.getContext("2d").putImageData(new ImageData(pixels, wide, rows), 0, 0);
    images.set(pixels, canvas);
  }
  return images.get(pixels);
}

const PAINT = {
  line(context, m) {
    context.beginPath();
    context.moveTo(m.x1, m.y1);
    context.lineTo(m.x2, m.y2);
    context.stroke();
  },
  curves(context, m) {
    context.beginPath();
    for (const [x, y, ...rest] of m.paths) {
      context.moveTo(x, y);
      context.bezierCurveTo(...rest);
    }
    context.stroke();
  },
  rect(context, m) {
    context.beginPath();
    if (m.radius) context.roundRect(m.x, m.y, m.w, m.h, m.radius);
    else context.rect(m.x, m.y, m.w, m.h);
    if (m.fill && m.fill !== "none") context.fill();
    if (m.stroke) context.stroke();
  },
  text(context, m) {
    context.font = `${m.bold ? "600 " : ""}${m.size}px ${FONT}`;
    context.textAlign = { start: "left", middle: "center", end: "right" }[m.anchor];
    context.textBaseline = "alphabetic";
    context.direction = "ltr";
    context.fillText(m.text, m.x, m.y + 0.35 * m.size);
  },
  cells(context, m) {
    context.imageSmoothingEnabled = m.w * devicePixelRatio < m.columns;
    context.drawImage(imageOf(m), m.x, m.y, m.w, m.h);
  },
  group(context, m) {
    context.translate(m.x, m.y);
    for (const mark of m.marks) paint(context, mark);
  },
};

function paint(context, mark) {
  context.save();
  if (mark.angle) {
    const [x, y] = [mark.cx ?? mark.x, mark.cy ?? mark.y];
    context.translate(x, y);
    context.rotate((mark.angle * Math.PI) / 180);
    context.translate(-x, -y);
  }
  context.lineCap = mark.mark === "curves" && !mark.dash ? "round" : "butt";
  context.lineWidth = mark.width ?? 1;
  if (mark.dash) context.setLineDash(mark.dash);
  if (mark.stroke) context.strokeStyle = mark.stroke;
  if (mark.fill) context.fillStyle = mark.fill;
  PAINT[mark.mark](context, mark);
  context.restore();
}

/** Draw a scene on a canvas, sharp on the screen that shows it. */
export function draw(canvas, scene, look, density = devicePixelRatio) {
  const sharp = Math.min(density, 8192 / Math.max(scene.width, scene.height, 1));
  canvas.width = Math.max(1, Math.round(scene.width * sharp));
  canvas.height = Math.max(1, Math.round(scene.height * sharp));
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  context.fillStyle = look.paper;
  context.fillRect(0, 0, scene.width, scene.height);
  for (const mark of scene.marks) paint(context, mark);
}

/** Escape text for XML, whose text holds neither control characters nor lone surrogates. */
export function escaped(text) {
  const marks = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  // eslint-disable-next-line no-control-regex
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|\p{Cs}/gu, "\ufffd").replace(/[&<>"']/g, (c) => marks[c]);
}

const r2 = (value) => Number(value.toFixed(2));

function svgOf(mark, encode) {
  const attributes = (names) => Object.entries(names).filter(([, v]) => v !== undefined && v !== null).map(([k, v]) => ` ${k}="${escaped(String(v))}"`).join("");
  const turn = mark.angle ? `rotate(${mark.angle} ${r2(mark.cx ?? mark.x)} ${r2(mark.cy ?? mark.y)})` : undefined;
  const pen = { stroke: mark.stroke, "stroke-width": mark.stroke && r2(mark.width ?? 1), "stroke-dasharray": mark.dash?.join(" "), transform: turn };
  if (mark.mark === "line") return `<line${attributes({ x1: r2(mark.x1), y1: r2(mark.y1), x2: r2(mark.x2), y2: r2(mark.y2), ...pen })}/>`;
  if (mark.mark === "curves") {
    const d = mark.paths.map((points) => points.map(r2)).map(([x, y, ...rest]) => `M${x} ${y}C${rest.join(" ")}`);
    const title = mark.title ? `<title>${escaped(mark.title)}</title>` : "";
    return `<path${attributes({ d: d.join(""), fill: "none", ...pen, "stroke-linecap": mark.dash ? undefined : "round" })}>${title}</path>`;
  }
  if (mark.mark === "rect") return `<rect${attributes({ x: r2(mark.x), y: r2(mark.y), width: r2(mark.w), height: r2(mark.h), rx: mark.radius, fill: mark.fill ?? "none", ...pen })}/>`;
  if (mark.mark === "text") {
    const own = { x: r2(mark.x), y: r2(mark.y + 0.35 * mark.size), "font-size": mark.size, "font-weight": mark.bold ? 600 : undefined, "text-anchor": mark.anchor, fill: mark.fill, transform: turn };
    return `<text${attributes(own)}>${escaped(mark.text)}</text>`;
  }
  if (mark.mark === "group") return `<g transform="translate(${r2(mark.x)} ${r2(mark.y)})">${mark.marks.map((m) => svgOf(m, encode)).join("\n")}</g>`;
  return cellsSVG(mark, encode);
}

/** Write few cells as rectangles, many as an image. */
function cellsSVG(mark, encode) {
  if (mark.pixels.length / 4 > 4096) {
    const box = `x="${r2(mark.x)}" y="${r2(mark.y)}" width="${r2(mark.w)}" height="${r2(mark.h)}"`;
    return `<image ${box} preserveAspectRatio="none" style="image-rendering: pixelated" href="${encode(mark)}"/>`;
  }
  const [wide, tall] = [mark.w / mark.columns, mark.h / mark.rows];
  const parts = [];
  for (let at = 0; at < mark.pixels.length / 4; at++) {
    const [red, green, blue, alpha] = mark.pixels.subarray(4 * at, 4 * at + 4);
    if (!alpha) continue;
    const [x, y] = [mark.x + (at % mark.columns) * wide, mark.y + Math.floor(at / mark.columns) * tall];
    parts.push(`<rect x="${r2(x)}" y="${r2(y)}" width="${r2(wide)}" height="${r2(tall)}" fill="rgb(${red},${green},${blue})"/>`);
  }
  return `<g shape-rendering="crispEdges">${parts.join("")}</g>`;
}

/** Write a scene as SVG; `encode` gives large cells as the address of an image. */
export function toSVG(scene, look, encode) {
  const [wide, tall] = [Math.ceil(scene.width), Math.ceil(scene.height)];
  return `<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="${wide}" height="${tall}" viewBox="0 0 ${wide} ${tall}" font-family="${escaped(FONT)}">
<rect width="${wide}" height="${tall}" fill="${look.paper}"/>
${scene.marks.map((mark) => svgOf(mark, encode)).join("\n")}
</svg>
`;
}

// ---------------------------------------------------------------- The page

const FORMAT = 1;
const SCENES = { arcs, columns, matrix, text: textView };
const MOST_DECODED = 12_000_000;
const MOST_SORTED = 120;
const FEW = 8;
const NO_TOKEN = "Point at a token, or choose one, to see in numbers what it reads and what reads it.";
const NO_WORDS = "Not known here: the tokens came without words, from no tokenizer or from ids that no text encodes to";
const partsReason = (sides) => (sides.some(({ words }) => words) ? "Each word is one token here" : NO_WORDS);
const specialReason = (sides) => (sides.some(({ words }) => words) ? "There are no special tokens here" : NO_WORDS);
const NO_ROLLOUT = "There is no rollout here: it follows one run, through consecutive layers whose attention is not negative.";

/** Name the heads that a page opens with: the clearest induction head, else previous-token head, else the first. */
export function firstHead(graphs) {
  const best = (name) => graphs.reduce((most, graph) => ((graph.scores[name] ?? 0) > (most.scores[name] ?? 0) ? graph : most), graphs[0]);
  return ["induction", "previous_token"].map((name) => [best(name), name]).find(([graph, name]) => graph.scores[name] >= 0.2)?.[0] ?? graphs[0];
}

const stackOf = (trace, name) => trace.stacks.find((stack) => stack.name === name);
const graphOf = (trace, { stack, layer, head }) => stackOf(trace, stack).graphs.find((graph) => graph.layer === layer && graph.head === head);

/** List the kinds of values that a head has in all traces. */
export function weightsOf(traces, place) {
  const [first, ...others] = traces.map((trace) => graphOf(trace, place).values);
  return Object.keys(first).filter((name) => others.every((values) => Object.hasOwn(values, name)));
}

/** Cut a range to what there is; null where that is nothing or all. */
function within(range, size) {
  const [from, to] = range ? [range[0], Math.min(range[1], size)] : [0, size];
  return from < size && to - from < size ? [from, to] : null;
}

/** Fit a state to what there is: names and numbers that do not exist become the first, or the nearest. */
export function settled(state, traces) {
  const stack = stackOf(traces[0], state.stack) ?? traces[0].stacks.find(({ queries }) => !queries) ?? traces[0].stacks[0];
  const place = stack.graphs.find((graph) => graph.layer === state.layer && graph.head === state.head);
  const graph = place ?? stack.graphs.find((one) => one.layer === state.layer) ?? firstHead(stack.graphs);
  const size = (state.side === "query" && stack.queries ? stack.queries : stack.keys).tokens.length;
  return {
    ...state,
    stack: stack.name,
    layer: graph.layer,
    head: graph.head,
    side: stack.queries ? state.side : "key",
    view: stack.queries && state.view === "layered" ? "arcs" : state.view,
    token: state.token === null || state.token >= size ? null : state.token,
    keys: within(state.keys, stack.keys.tokens.length),
    queries: within(state.queries, (stack.queries ?? stack.keys).tokens.length),
    level: state.level === null ? null : Math.min(state.level, stack.layers.length),
    weight: !state.words && weightsOf(traces, { ...graph, stack: stack.name }).includes(state.weight) ? state.weight : "attention",
    sort: Object.hasOwn(graph.scores, state.sort) ? state.sort : "",
    show: traces.length > 1 ? state.show : "before",
  };
}

/** List what differs among some texts. */
const distinct = (texts) => [...new Set(texts)].filter(Boolean).map((text) => visible(text, 80)).join(" and ");

/** Find what is searched in a text, also across tokens: the tokens of each place, in order. */
export function searched(tokens, query) {
  const wanted = query.toLowerCase().trim();
  if (!wanted) return [];
  const places = new Map();
  for (const write of [(text) => visible(text, 1e6), (text) => text]) {
    const owners = [];
    let line = "";
    tokens.forEach((token, i) => {
      const isSameWord = i && token.word !== null && token.word === tokens[i - 1].word;
      const own = write(isSameWord ? joined(["", token.text]) : token.text).toLowerCase();
      if (i && !isSameWord) line += " ";
      line += own;
      while (owners.length < line.length) owners.push(i);
    });
    for (let at = line.indexOf(wanted); at >= 0; at = line.indexOf(wanted, at + 1)) {
      const [from, to] = [owners[at], owners[at + wanted.length - 1]];
      if (!places.has(from)) places.set(from, tokens.slice(from, to + 1));
    }
  }
  return [...places.keys()].sort((a, b) => a - b).map((from) => places.get(from));
}

const keepOf = ({ edges, totalEdges, keep }) => (edges === totalEdges ? "all edges kept" : keep === "All()" ? "some edges kept" : `edges kept: ${keep}`);

/** Say how many edges some graphs have, where they lack some. */
function keptText(graphs) {
  const [edges, all] = ["edges", "totalEdges"].map((name) => graphs.reduce((sum, graph) => sum + graph[name], 0));
  return edges < all ? `${distinct(graphs.map(keepOf))}, ${edges.toLocaleString("en")} of ${count(all, "edge")}` : "";
}

const $ = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Write a token of the text into an element of its own, so that its letters' direction stays inside. */
function tokenElement(token) {
  const name = element("bdi", { dir: "auto" });
  name.textContent = token.virtual ? token.text : visible(token.text, 48);
  const place = element("small");
  place.textContent = token.virtual ? "" : ` ${token.position}${token.generated ? " · generated" : ""}${token.special ? " · special" : ""}`;
  return [name, place];
}

function complain(problem) {
  $("problem").textContent = problem;
  $("problem").hidden = false;
}

class Page {
  constructor(header) {
    this.header = header;
    this.traces = this.header.traces;
    this.state = settled(fromFragment(location.hash), this.traces);
    this.hover = null;
    this.decoded = new Map();
    this.memory = new Map();
    this.run = 0;
    this.traced = [];
    this.most = FEW;
    this.looks = { light: lookOf("light", header.ramps), dark: lookOf("dark", header.ramps) };
    this.darkness = matchMedia("(prefers-color-scheme: dark)");
  }

  block(id) {
    return $(id).textContent;
  }

  /** Remember the last thing made for a slot, until its key changes. */
  once(slot, key, make) {
    const last = this.memory.get(slot);
    if (last?.key === key) return last.value;
    const value = make();
    this.memory.set(slot, { key, value });
    return value;
  }

  // What there is

  get stack() {
    return stackOf(this.traces[0], this.state.stack);
  }

  /** The stacks of the traces, with their tokens. */
  stackOf(trace) {
    const stack = stackOf(this.traces[trace], this.state.stack);
    return this.once(`tokens ${trace}`, stack.name, () => {
      const { keys, queries, generatedFrom } = stack;
      return {
        ...stack,
        keyTokens: tokensOf(keys, queries ? null : generatedFrom),
        queryTokens: queries && tokensOf(queries, generatedFrom),
      };
    });
  }

  graph(trace = 0, { layer, head } = this.state) {
    return graphOf(this.traces[trace], { stack: this.state.stack, layer, head });
  }

  get shownGraph() {
    return this.graph(this.shownTraces[0]);
  }

  get shownTraces() {
    return { before: [0], after: [1] }[this.state.show] ?? [0, 1];
  }

  /** The graphs of each shown trace that the view is of. */
  get shownGraphs() {
    const isLayered = this.state.view === "layered";
    return this.shownTraces.map((trace) => (isLayered ? this.stackOf(trace).graphs : [this.graph(trace)]));
  }

  get look() {
    const theme = this.state.theme || (this.darkness.matches ? "dark" : "light");
    return this.looks[theme];
  }

  /** Give the style sheet the colours of the look. */
  dress() {
    const { dataset, style } = document.documentElement;
    dataset.theme = this.look.name;
    for (const [name, colour] of Object.entries(cssOf(this.look))) style.setProperty(`--${name}`, colour);
  }

  get parts() {
    return this.state.show === "all three" ? ["before", "after", "difference"] : [this.state.show];
  }

  // Heads

  async raw(trace, graph) {
    const id = `gattn-block-${graph.block}`;
    if (!this.decoded.has(id)) {
      const { keyTokens, queryTokens, offset, numQueries } = this.stackOf(trace);
      const bytes = await inflate(bytesOf(this.block(id)));
      const head = decodeHead(bytes, graph, { queries: numQueries, keys: keyTokens.length, offset, levels: this.header.levels });
      this.decoded.set(id, withTokens(head, keyTokens, queryTokens, offset));
    }
    const head = this.decoded.get(id);
    this.decoded.delete(id);
    this.decoded.set(id, head);
    let size = [...this.decoded.values()].reduce((sum, one) => sum + one.key.length, 0);
    for (const [old, one] of this.decoded) {
      if (size <= MOST_DECODED || old === id || this.decoded.size <= 3) break;
      this.decoded.delete(old);
      size -= one.key.length;
    }
    return head;
  }

  async headOf(part, place) {
    if (part !== "difference") return this.raw(part === "after" ? 1 : 0, this.graph(part === "after" ? 1 : 0, place));
    const [before, after] = await Promise.all([this.headOf("before", place), this.headOf("after", place)]);
    const { keyTokens, queryTokens, offset } = this.stackOf(0);
    return withTokens(difference(before, after), keyTokens, queryTokens, offset);
  }

  /** Which nodes are hidden, by the first head: the same ones in all parts of a comparison. */
  hiddenOf(head, all) {
    const found = new Set(this.state.sinks ? [...sinksOf(head), ...all.map(({ sinkKey }) => sinkKey)] : []);
    found.delete(-1);
    if (this.state.special) head.keys.forEach((token, k) => token.special && found.add(k));
    return found;
  }

  prepared(head, hidden) {
    const merge = this.state.words;
    if (!merge && !hidden.size) return head;
    const keys = groupsOf(head.keys, { merge, hidden });
    if (head.rowNode) return regroup(head, keys);
    const special = new Set(head.queries.flatMap((token, i) => (this.state.special && token.special ? [i] : [])));
    return regroup(head, keys, groupsOf(head.queries, { merge, hidden: special }));
  }

  /** The ranges that a view looks at; where nodes are both keys and queries, one range for both. */
  limits(view = this.state.view) {
    const { keys, queries } = this.state;
    if (this.stack.queries || !keys || !queries || view === "matrix" || view === "columns") return this.stack.queries ? { keys, queries } : { keys: keys ?? queries, queries: queries ?? keys };
    const hull = [Math.min(keys[0], queries[0]), Math.max(keys[1], queries[1])];
    return { keys: hull, queries: hull };
  }

  /** The level that the layered view is looked at from, its input being 0. */
  get level() {
    return this.hover?.level ?? this.state.level ?? this.stack.layers.length;
  }

  /** Whether each layer follows on the one before: others do not compose. */
  get isConsecutive() {
    const { layers } = this.stack;
    return layers.every((layer, n) => layer === layers[0] + n);
  }

  /** Whether a view shows all edges where no threshold is set. */
  get isDense() {
    return ["matrix", "text"].includes(this.state.view);
  }

  // The state

  update(patch) {
    this.state = settled({ ...this.state, ...patch }, this.traces);
    this.hover = null;
    try {
      history.replaceState(null, "", `#${toFragment(this.saidState)}`);
    } catch {
      // A frame without an address, as in a notebook, keeps its state to itself.
    }
    this.render();
  }

  get saidState() {
    const said = { ...this.state };
    if (this.traces.length < 2) said.show = DEFAULTS.show;
    if (this.traces[0].stacks.length < 2) said.stack = "";
    return said;
  }

  async render() {
    const run = ++this.run;
    this.fillControls();
    this.describe();
    this.dress();
    this.drawGrid();
    $("view").setAttribute("aria-busy", "true");
    try {
      const parts = [...new Set([...SHOWN.slice(0, this.traces.length), ...this.parts])];
      const all = await Promise.all(parts.map((part) => this.headOf(part)));
      const reference = all[this.state.show === "after" ? 1 : 0];
      if (run !== this.run) return;
      const hidden = this.hiddenOf(reference, all);
      const prepared = all.map((head) => this.prepared(head, hidden));
      const of = (part) => prepared[parts.indexOf(part)];
      this.heads = this.parts.map(of);
      this.hiddenNames = [...hidden].map((k) => reference.keys[k] ?? SINK);
      const { keys, queries } = this.limits();
      this.windows = this.heads.map((head) => windowed(head, keys, queries));
      const layers = this.state.view === "layered" ? await this.averaged(run, hidden) : null;
      if (run !== this.run) return;
      this.layers = layers;
      this.choices = this.state.view === "layered" ? [] : this.windows.map((head) => choose(head, { ...this.state, ...(this.state.view === "text" && { threshold: null, top: 0 }), isDense: this.isDense }));
      const runs = prepared.filter((head) => !head.isChange);
      this.scales = this.heads.map((head) => Scale.of(head.isChange ? [head] : runs, this.state.weight));
      $("view").removeAttribute("aria-busy");
      this.drawView();
      this.speak();
      $("problem").hidden = true;
    } catch (problem) {
      if (run === this.run) this.complain(problem);
    }
  }

  complain(problem) {
    complain(`This could not be shown: ${problem.message}. Reset the page by removing what follows # in its address.`);
    $("view").removeAttribute("aria-busy");
  }

  /** Average all heads of each layer in small steps, until something else is asked for. */
  async averaged(run, hidden) {
    const { words: merge, special, show } = this.state;
    const key = [this.state.stack, show, merge, special, [...hidden].join()].join("|");
    if (this.memory.get("layers")?.key === key) return this.memory.get("layers").value;
    const found = [];
    let last = performance.now();
    const pause = async () => {
      if (performance.now() - last < 16) return;
      await new Promise((done) => setTimeout(done));
      last = performance.now();
    };
    for (const part of this.parts) {
      const layers = [];
      for (const layer of this.stack.layers) {
        $("caption").textContent = `averaging heads: layer ${layer} of ${this.stack.layers.at(-1)}`;
        const heads = [];
        for (const graph of this.stack.graphs.filter((one) => one.layer === layer)) {
          heads.push(this.prepared(await this.headOf(part, graph), hidden));
          await pause();
          if (run !== this.run) return null;
        }
        layers.push(await meanOf(heads, pause));
      }
      found.push(layers);
    }
    this.memory.set("layers", { key, value: found });
    return found;
  }

  // Drawing

  /** The chosen token in a head: its node as key and its row as query. */
  focusIn(head) {
    const { token, side } = this.state;
    const of = (name) => (head.rowNode || side === name ? token : null);
    return placeIn(head, of("key"), of("query"));
  }

  /** What is looked at in a head: what the pointer is on, else what was chosen. */
  lookedAt(head) {
    return this.hover ? placeIn(head, this.hover.key?.index, this.hover.row?.index) : this.focusIn(head);
  }

  /** The nodes of a head that hold something of what is searched. */
  matches(head) {
    const { keyTokens, queryTokens } = this.stackOf(0);
    const among = (nodes, tokens) => {
      const found = new Set(searched(tokens, this.state.search).flat().map(({ index }) => index));
      return nodes.filter((node) => !node.virtual && tokens.slice(node.index, (node.last ?? node.index) + 1).some(({ index }) => found.has(index)));
    };
    return [...among(head.keys, keyTokens), ...among(head.queries, queryTokens ?? keyTokens)];
  }

  sceneOf(i, width, height) {
    const head = this.windows[i];
    const { weight, threshold, view } = this.state;
    const matches = new Set(this.matches(head));
    const common = { weight, threshold, look: this.look, matches, width, height };
    if (view === "layered") return this.layeredScene(i, common);
    const focus = this.lookedAt(head);
    const scale = focus ? this.scales[i].forFew() : this.scales[i];
    const scene = SCENES[view]({ ...common, head, focus, scale, chosen: this.choices[i] });
    const own = scene.added ? `; and ${scene.added.toLocaleString("en")} more, the strongest of the token looked at` : "";
    return { ...scene, caption: caption(head, this.choices[i]) + own };
  }

  layeredScene(i, common) {
    const { isChange } = this.heads[i];
    const [layers, tokens] = [this.layers[i], this.heads[i].keys.filter((token) => !token.virtual)];
    const { keys } = this.limits();
    const inside = tokens.flatMap((token, n) => (!keys || (token.index >= keys[0] && token.index < keys[1]) ? [n] : []));
    const range = [inside[0] ?? 0, (inside.at(-1) ?? -1) + 1];
    const focus = this.lookedAt(this.heads[i]);
    const token = focus && focus.key >= 0 && focus.key < tokens.length ? focus.key : null;
    const { level } = this;
    const isSigned = layers.some((layer) => layer.isSigned);
    const key = `${token} ${level} ${this.memory.get("layers").key}`;
    const traced = token === null || isSigned || !this.isConsecutive ? null : this.once(`rollout ${i}`, key, () => rollout(layers, level, token));
    this.traced[i] = traced;
    const flows = traced?.flows.map((flow) => flow.reduce((most, x) => Math.max(most, x), 0));
    const label = traced ? "share (rollout)" : isChange ? "mean change of attention" : "mean attention";
    const scale = new Scale(label, isSigned ? -1 : 0, flows ? Math.max(...flows, 0.01) : 1, true, tokens.length);
    const layerNames = this.stack.graphs.length > 1 ? this.stack.layers.map((layer) => `layer ${layer}`) : [this.stack.graphs[0].name.split(" · ")[0]];
    return layered({ ...common, layers, layerNames, tokens, range, level, token, traced, scale });
  }

  wholeScene(width, height) {
    const isBeside = this.parts.length > 1 && width > 1000 && ["matrix", "columns"].includes(this.state.view);
    const scenes = this.parts.map((_, i) => this.sceneOf(i, isBeside ? Math.floor(width / this.parts.length) : width, height));
    if (scenes.length === 1) return scenes[0];
    const captions = scenes.map((scene, i) => `${this.parts[i]}: ${scene.caption}`);
    return { ...tiled(scenes, this.parts.map((part) => (part === "difference" ? "difference: after − before" : part)), this.look, isBeside), caption: captions.join(" · ") };
  }

  /** Whether something else was asked for than what is shown: then it is drawn as soon as it is there. */
  get isBusy() {
    return $("view").hasAttribute("aria-busy");
  }

  drawView() {
    if (this.isBusy) return;
    const width = Math.max(280, $("view").clientWidth);
    const around = this.state.view === "arcs" ? 430 : 330;
    const height = Math.min(760, Math.max(340, innerHeight - around));
    this.scene = this.wholeScene(width, height);
    const canvas = $("view").querySelector("canvas");
    [canvas.style.width, canvas.style.height] = [`${this.scene.width}px`, `${this.scene.height}px`];
    draw(canvas, this.scene, this.look);
    $("caption").textContent = this.captionText;
    this.fillNumbers();
  }

  get captionText() {
    const notes = [this.scene.caption, ...new Set(this.shownGraphs.map(keptText).filter(Boolean))];
    if (this.hiddenNames.length) {
      const some = this.hiddenNames.slice(0, 4).map((token) => isolated(named(token)));
      notes.push(`hidden: ${some.join(", ")}${this.hiddenNames.length > 4 ? ` and ${this.hiddenNames.length - 4} more` : ""}`);
    }
    const [shown, all] = [this.windows[0].queries.length, this.heads[0].queries.length];
    const [shownKeys, allKeys] = [this.windows[0].keys.length, this.heads[0].keys.length];
    if (shown < all || shownKeys < allKeys) notes.push(`${shown} of ${all} queries and ${shownKeys} of ${allKeys} keys are in view`);
    return notes.join("; ");
  }

  drawGrid() {
    const { stack, look, state } = this;
    const width = Math.max(200, $("grid").clientWidth);
    const graphs = stack.graphs;
    const order = this.once("order", `${stack.name}|${state.sort}`, () => {
      const numbered = graphs.map((_, n) => n);
      const score = (n) => graphs[n].scores[state.sort] ?? -Infinity;
      return state.sort ? numbered.sort((a, b) => score(b) - score(a) || a - b) : numbered;
    });
    const show = state.show === "all three" ? "difference" : state.show;
    const isChange = show === "difference";
    const isSigned = isChange || graphs.some((graph) => graph.values.attention[0] < 0);
    const scale = new Scale(isChange ? "change of attention" : isSigned ? "size of attention" : "attention", isChange ? -1 : 0, 1, true);
    const key = [stack.name, show, look.name, state.sort].join("|");
    const drawn = `${key} ${state.layer}.${state.head} ${width} ${devicePixelRatio}`;
    if (!this.thumbnails || this.drawn === drawn) return;
    this.drawn = drawn;
    const chosen = order.indexOf(graphs.indexOf(this.graph()));
    const first = state.sort ? Math.floor(chosen / MOST_SORTED) * MOST_SORTED : 0;
    const shown = state.sort ? order.slice(first, first + MOST_SORTED) : order;
    const cells = this.once("cells", `${key}|${first}`, () =>
      shown.map((n) => ({ ...this.thumbnail(n, show, scale), layer: graphs[n].layer, head: graphs[n].head, said: number(graphs[n].scores[state.sort]) })),
    );
    this.order = order;
    this.grid = headGrid({ cells, layerNames: stack.layers, headNames: stack.heads, look, width, scale, chosen, first, brackets: this.brackets(), isSorted: Boolean(state.sort) });
    this.pageOfHeads = shown.length < order.length ? ` · heads ${first + 1} to ${first + shown.length} of ${order.length.toLocaleString("en")}` : "";
    const canvas = $("grid").querySelector("canvas");
    [canvas.style.width, canvas.style.height] = [`${this.grid.width}px`, `${this.grid.height}px`];
    draw(canvas, this.grid, look);
    this.noteHead(chosen);
    const option = $("grid-option");
    option.textContent = this.headText(graphs[order[chosen]]);
    option.setAttribute("aria-posinset", String(chosen + 1));
    option.setAttribute("aria-setsize", String(order.length));
  }

  brackets() {
    const { graphs, heads, layers } = this.stack;
    const of = heads.map((head) => graphs.find((graph) => graph.layer === layers[0] && graph.head === head)?.keyValueHead ?? null);
    const found = [];
    of.forEach((name, at) => {
      if (name === null) return;
      if (found.at(-1)?.name === name && found.at(-1).to === at - 1) found.at(-1).to = at;
      else found.push({ name, from: at, to: at });
    });
    return found;
  }

  /** Find the thumbnails of all graphs: of each trace, and of what changed between two. */
  async decodeThumbnails() {
    const { block, size } = this.header.thumbnails;
    const bytes = await inflate(bytesOf(this.block(`gattn-block-${block}`)));
    let at = 0;
    const runs = this.traces.length > 1 ? [...this.traces, this.traces[0]] : this.traces;
    this.thumbnails = runs.map(({ stacks }) =>
      Object.fromEntries(
        stacks.map((stack) => {
          const queries = stack.numQueries;
          const [rows, columns] = [Math.min(size, queries), Math.min(size, stack.keys.tokens.length)];
          const shades = stack.graphs.map(() => bytes.subarray(at, (at += rows * columns)));
          return [stack.name, { rows, columns, queries, shades }];
        }),
      ),
    );
  }

  thumbnail(n, show, scale) {
    const { rows, columns, queries, shades } = this.thumbnails[["before", "after", "difference"].indexOf(show)][this.state.stack];
    const { keys, offset, graphs } = this.stackOf(show === "after" ? 1 : 0);
    const graph = graphs[n];
    const pixels = new Uint8ClampedArray(4 * rows * columns);
    for (let at = 0; at < rows * columns; at++) {
      const shade = shadeOf(shades[n][at], show === "difference");
      const lastQuery = Math.ceil(((Math.floor(at / columns) + 1) * queries) / rows) - 1;
      const firstKey = Math.floor(((at % columns) * keys.tokens.length) / columns);
      const isEdge = graph.pattern === "complete" || (graph.pattern === "causal" && firstKey <= lastQuery + offset);
      if (shade || isEdge) pixels.set([...scale.rgb(shade, this.look), 255], 4 * at);
    }
    return { rows, columns, pixels };
  }

  headText(graph) {
    const shared = graph.keyValueHead === null ? "" : ` · key-value head ${graph.keyValueHead}`;
    return `${graph.name}${shared}${graph.label ? `: ${graph.label.replace(/ \.(\d)/g, " 0.$1")}` : ""}`;
  }

  noteHead(n) {
    const graph = this.stack.graphs[this.order[n]];
    const { sort } = this.state;
    $("grid-note").textContent = graph ? `${this.headText(graph)}${sort ? ` · ${sort.replaceAll("_", " ")} ${number(graph.scores[sort])}${this.pageOfHeads}` : ""}` : "";
  }

  // Numbers

  fillNumbers() {
    const tables = this.parts.flatMap((part, i) => this.tablesOf(part, i));
    $("numbers").replaceChildren(...tables);
    if (!tables.length) $("numbers").append(element("p", { class: "note" }, this.heads.some((head) => this.lookedAt(head)) ? NO_ROLLOUT : NO_TOKEN));
    $("pair").textContent = this.hover?.isPair ? this.pairText(this.hover) : "";
    $("pair").hidden = this.state.view === "layered";
    const option = $("view-option");
    option.textContent = this.said();
    option.setAttribute("aria-selected", String(this.state.token !== null));
  }

  tablesOf(part, i) {
    const head = this.heads[i];
    const focus = this.lookedAt(head);
    if (!focus) return [];
    const suffix = this.parts.length > 1 ? ` (${part})` : "";
    if (this.state.view === "layered") return this.layeredTables(i, focus, suffix);
    const { reads, readBy } = readingsOf(head, focus, this.state.weight);
    const found = [];
    if (focus.row >= 0) {
      const mass = head.mass[focus.row];
      const kept = rowEdges(head, focus.row).reduce((sum, e) => sum + (head.key[e] === head.sinkKey ? 0 : Math.abs(head.values.attention[e])), 0);
      const isPart = part !== "difference" && mass > 0 && kept < 0.9995 * mass;
      const lost = isPart ? `; shown are ${number(kept)} of its mass of ${number(mass)}` : "";
      found.push(this.table(head.queries[focus.row], `reads${suffix}${lost}`, reads.map(({ token, value }) => [token, value, "key"]), this.scales[i], head));
    }
    if (focus.key >= 0) found.push(this.table(head.keys[focus.key], `is read by${suffix}`, readBy.map(({ token, value }) => [token, value, "query"]), this.scales[i], head));
    return found;
  }

  layeredTables(i, { key }, suffix) {
    const traced = this.traced[i];
    if (!traced) return [];
    const { keys } = this.heads[i];
    const shares = (level) => Array.from(traced.levels[level], (share, n) => [keys[n], share, "key"]).filter((one) => one[1] > 1e-4).sort((a, b) => b[1] - a[1]);
    const { level } = this;
    const scale = new Scale("share", 0, 1, true);
    const start = this.stack.layers[0] ? `the tokens before layer ${this.stack.layers[0]}` : "the input";
    const found = level > 0 ? [this.table(keys[key], `at level ${level}: what it can have read of ${start} (rollout)${suffix}`, shares(0), scale)] : [];
    if (level < this.layers[i].length) found.push(this.table(keys[key], `at level ${level}: what can have read it, at the top (rollout)${suffix}`, shares(this.layers[i].length), scale));
    return found;
  }

  table(token, what, rows, scale, head = {}) {
    const title = element("caption", {}, ...tokenElement(token), ` ${what}`);
    const { most } = this;
    const inTable = (value) => (!scale.isRoot || !Number.isFinite(value) ? valueText(value, head) : value && Math.abs(value) < 0.0005 ? "< 0.001" : value.toFixed(3).replace("-", "−"));
    const lines = rows.slice(0, most).map(([other, value, side]) => {
      const button = element("button", { type: "button", "aria-describedby": "pair" }, ...tokenElement(other));
      const pair = side === "key" ? { row: token, key: other } : { row: other, key: token };
      button.addEventListener("focus", () => ($("pair").textContent = this.pairText(pair)));
      if (!other.virtual)
        button.addEventListener("click", () => {
          this.choose({ token: other.index, side });
          $("view").focus({ preventScroll: true }); // this button goes
        });
      const bar = element("i", value < 0 && scale.isSigned ? { class: "minus" } : {});
      bar.style.width = `${100 * scale.share(value)}%`;
      bar.hidden = Number.isNaN(value);
      return element("tr", {}, element("td", {}, button), element("td", { class: "value" }, inTable(value)), element("td", { class: "bar", "aria-hidden": "true" }, bar));
    });
    const rest = rows.slice(most);
    const more = element("button", { type: "button" }, element("small", {}, `and ${rest.length.toLocaleString("en")} more`));
    more.addEventListener("click", () => {
      const at = [...$("numbers").children].indexOf(more.closest("table"));
      this.most += 100;
      this.fillNumbers();
      $("numbers").children[at].querySelectorAll("button")[most].focus();
    });
    const sum = rest.reduce((all, [, value]) => all + (value || 0), 0);
    if (rest.length) lines.push(element("tr", {}, element("td", {}, more), element("td", { class: "value" }, scale.isRoot ? element("small", {}, `Σ ${inTable(sum)}`) : ""), element("td")));
    if (!rows.length) lines.push(element("tr", {}, element("td", {}, element("small", {}, "nothing"))));
    return element("table", {}, title, element("tbody", {}, ...lines));
  }

  /** Say all numbers of an edge, in all parts of a comparison. */
  pairText({ row, key }) {
    return this.parts
      .map((part, i) => {
        const head = this.heads[i];
        const place = placeIn(head, key.index, row.index) ?? { row: -1 };
        const e = rowEdges(head, place.row).find((edge) => head.key[edge] === place.key);
        const said = e === undefined ? "no edge" : Object.keys(head.values).map((name) => `${name} ${valueText(head.values[name][e], head)}`).join(", ");
        return `${this.parts.length > 1 ? `${part}: ` : ""}${isolated(named(row))} reads ${isolated(named(key))}: ${said}`;
      })
      .join(" · ");
  }

  /** Say in a sentence what the chosen token reads most. */
  said() {
    const head = this.heads?.[0];
    const focus = head && this.focusIn(head);
    if (!focus) return "no token chosen";
    const { reads, readBy } = readingsOf(head, focus, this.state.weight);
    const list = (readings) => readings.slice(0, 3).map(({ token, value }) => `${named(token)} ${valueText(value, head)}`).join(", ") || "nothing";
    const name = focus.row >= 0 ? head.queries[focus.row] : head.keys[focus.key];
    const parts = [named(name) + (name.generated ? ", generated," : "")];
    if (focus.row >= 0) parts.push(`reads ${list(reads)}`);
    if (focus.key >= 0) parts.push(`${focus.row >= 0 ? "and " : ""}is read by ${list(readBy)}`);
    return parts.join(" ");
  }

  speak() {
    const said = `${$("head-title").textContent}. ${this.said()}`;
    if ($("live").textContent !== said) $("live").textContent = said;
  }

  // Controls

  fillControls() {
    const { state, stack } = this;
    const graph = this.shownGraph;
    $("head-title").textContent = state.view === "layered" ? `${stack.name}: all layers, mean over heads` : this.headText(graph);
    const options = (select, names, value) => {
      const labels = names.map(([name, label]) => `${name}=${label}`).join("|");
      if (select.dataset.names !== labels) {
        select.replaceChildren(...names.map(([name, label]) => element("option", { value: name }, label)));
        select.dataset.names = labels;
      }
      select.value = value;
    };
    const plain = (names) => names.map((name) => [name, name.replaceAll("_", " ")]);
    options($("stack"), plain(this.traces[0].stacks.map(({ name }) => name)), state.stack);
    options($("sort"), [["", "layer and head"], ...plain(Object.keys(graph.scores))], state.sort);
    options($("show"), plain(SHOWN), state.show);
    const weights = weightsOf(this.traces, state);
    options($("weight"), plain(state.words ? ["attention"] : weights), state.weight);
    $("stack-control").hidden = this.traces[0].stacks.length < 2;
    $("show-control").hidden = this.traces.length < 2;
    $("weight-control").hidden = weights.length < 2;
    for (const button of $("views").children) {
      const isChosen = button.value === state.view;
      button.setAttribute("aria-checked", String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
      button.disabled = button.value === "layered" && Boolean(stack.queries);
    }
    $("threshold-label").textContent = { difference: "change ≥", "all three": "attention, change ≥" }[state.show] ?? "attention ≥";
    $("threshold").value = String(Math.round(100 * Math.sqrt(state.threshold ?? 0)));
    $("threshold-text").textContent = state.threshold === null && !state.top && state.view !== "matrix" ? "auto" : number(state.threshold ?? 0);
    $("automatic").setAttribute("aria-pressed", String(state.threshold === null && !state.top));
    $("top").value = String(state.top);
    $("top-text").textContent = state.top ? String(state.top) : "all";
    for (const id of ["threshold", "top"]) $(id).setAttribute("aria-valuetext", $(`${id}-text`).textContent);
    for (const id of ["threshold", "automatic", "top"]) $(id).disabled = ["layered", "text"].includes(state.view);
    const sides = [stack.keys, stack.queries].filter(Boolean);
    const hasParts = sides.some(({ words: of }) => of?.some((word, i) => i && word !== null && word === of[i - 1]));
    $("words").checked = state.words;
    $("words").disabled = !hasParts;
    $("words").closest("label").title = hasParts ? "" : partsReason(sides);
    $("special").checked = state.special;
    $("special").disabled = !sides.some(({ special }) => special.length);
    $("special").closest("label").title = $("special").disabled ? specialReason(sides) : "";
    $("sinks").checked = state.sinks;
    if (document.activeElement !== $("search")) $("search").value = state.search;
    const found = this.found();
    const at = this.foundAt(found);
    $("found").textContent = state.search ? (found.length ? `${at < 0 ? "" : `${at + 1} of `}${found.length}` : "none") : "";
    $("all").hidden = !state.keys && !state.queries;
    $("theme").textContent = this.look.name === "dark" ? "Light" : "Dark";
  }

  /** The places that the search finds, in order. */
  found() {
    const { keyTokens, queryTokens } = this.stackOf(0);
    const isSeen = (first, before) => this.state.words && before && first.word !== null && first.word === before.word;
    const of = (tokens, side) =>
      searched(tokens, this.state.search)
        .map(([first]) => first)
        .filter((first, n, all) => !isSeen(first, all[n - 1]))
        .map(({ index }) => ({ token: index, side }));
    return [...of(keyTokens, "key"), ...of(queryTokens ?? [], "query")];
  }

  /** Which of the places found is the chosen token; where words merge, its word. */
  foundAt(found) {
    const { words, side, token } = this.state;
    const { keyTokens, queryTokens } = this.stackOf(0);
    const tokens = side === "query" && queryTokens ? queryTokens : keyTokens;
    const word = words ? (tokens[token]?.word ?? null) : null;
    return found.findIndex((one) => one.side === side && (one.token === token || (word !== null && tokens[one.token].word === word)));
  }

  step(by) {
    const found = this.found();
    if (!found.length) return;
    const at = this.foundAt(found);
    this.choose(found[at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length]);
  }

  /** Choose a token, and bring it into view. */
  choose({ token, side = "key", level = this.state.level }) {
    this.most = FEW;
    const patch = { token, side: this.stack.queries ? side : "key", level };
    for (const name of ["keys", "queries"]) {
      const limits = this.state[name];
      const isOf = !this.stack.queries || (name === "keys") === (side === "key");
      if (limits && token !== null && isOf && (token < limits[0] || token >= limits[1])) patch[name] = null;
    }
    this.update(patch);
  }

  moveHead(dx, dy) {
    const { state, stack, order } = this;
    if (state.sort && order) {
      const at = order.indexOf(stack.graphs.indexOf(this.graph()));
      const next = stack.graphs[order[Math.min(order.length - 1, Math.max(0, at + dx + dy * this.grid.across))]];
      return this.update({ layer: next.layer, head: next.head });
    }
    const to = (list, value, by) => list[Math.min(list.length - 1, Math.max(0, list.indexOf(value) + by))];
    const place = { layer: to(stack.layers, state.layer, dy), head: to(stack.heads, state.head, dx) };
    if (this.graph(0, place)) this.update(place);
  }

  moveToken(dx, dy) {
    if (this.state.view === "layered" && dy) {
      const depth = this.stack.layers.length;
      const level = Math.min(depth, Math.max(0, (this.state.level ?? depth) - dy));
      return this.update({ token: this.state.token ?? 0, level });
    }
    const head = this.windows?.[0];
    if (!head) return;
    const nodes = [...head.keys.filter((t) => !t.virtual).map((t) => [t, "key"]), ...(head.rowNode ? [] : head.queries.map((t) => [t, "query"]))];
    if (!nodes.length) return;
    const { token, side } = this.state;
    const at = nodes.findIndex(([node, of]) => of === side && token !== null && nodeOf([node], token) === 0);
    const [next, of] = nodes[at < 0 ? 0 : Math.min(nodes.length - 1, Math.max(0, at + dx + dy))];
    this.choose({ token: next.index, side: of });
  }

  zoom(factor, place = null) {
    const patch = {};
    const { keys, queries } = this.stack;
    for (const [name, side] of [["keys", keys], ["queries", queries ?? keys]]) {
      const size = side.tokens.length;
      const [from, to] = this.limits()[name] ?? [0, size];
      const wide = Math.min(size, Math.max(4, Math.round((to - from) * factor)));
      const isOf = !queries || (name === "keys") === (this.state.side === "key");
      const share = place ? place[name === "keys" ? 0 : 1] : 0.5;
      const middle = !place && this.state.token !== null && isOf ? this.state.token + 0.5 : from + share * (to - from);
      const start = Math.max(0, Math.min(size - wide, Math.round(middle - (place ? share : 0.5) * wide)));
      patch[name] = wide >= size ? null : [start, start + wide];
    }
    this.update(patch);
  }

  // Pointer and keys

  at(event, box) {
    const { left, top } = box.querySelector("canvas").getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  pointed(event) {
    const hit = this.scene?.hit(...this.at(event, $("view")));
    const head = this.state.view === "layered" ? this.heads?.[0] : this.windows?.[0];
    if (!hit || !head) return null;
    return { key: head.keys[hit.key] ?? null, row: head.queries[hit.row] ?? null, isPair: hit.isPair ?? false, level: hit.level };
  }

  /** Whether a picture is too much work to follow the pointer: then a click chooses. */
  get isHeavy() {
    return this.state.view === "layered" && (this.layers ?? []).flat().reduce((sum, { key }) => sum + key.length, 0) > 400_000;
  }

  listenToView() {
    let frame = 0;
    let start = null;
    const hover = (event) => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => {
        if (!this.scene || this.isBusy) return;
        const before = this.hover;
        this.hover = this.isHeavy ? null : this.pointed(event);
        const isSame = before?.key === this.hover?.key && before?.row === this.hover?.row && before?.level === this.hover?.level;
        if (!isSame) this.drawView();
        if (start && this.dragged(start, this.hover)) $("caption").textContent = "let go to look at these tokens alone";
      });
    };
    $("view").addEventListener("pointermove", hover);
    $("view").addEventListener("pointerleave", () => {
      cancelAnimationFrame(frame);
      start = null;
      if (this.hover && this.scene) {
        this.hover = null;
        this.drawView();
      }
    });
    $("view").addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "touch") start = { ...this.pointed(event), x: event.clientX, y: event.clientY };
    });
    $("view").addEventListener("pointerup", (event) => {
      const end = this.pointed(event);
      const patch = start && Math.hypot(event.clientX - start.x, event.clientY - start.y) > 12 && this.dragged(start, end);
      start = null;
      if (patch) return this.update(patch);
      const token = end?.row ?? end?.key;
      if (!token || token.virtual) return;
      const isAgain = this.state.token === token.index && (end.level ?? null) === (end.level === undefined ? null : this.state.level);
      this.choose(isAgain ? { token: null } : { token: token.index, side: end.row ? "query" : "key", level: end.level ?? this.state.level });
    });
    $("view").addEventListener("dblclick", () => this.update({ keys: null, queries: null }));
    $("view").addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.scene.place?.(...this.at(event, $("view"))));
    }, { passive: false });
  }

  /** The ranges between the two ends of a drag, where it spans several tokens. */
  dragged(start, end) {
    const between = (a, b) => (a && b && !a.virtual && !b.virtual && a !== b ? [Math.min(a.index, b.index), Math.max(a.last ?? a.index, b.last ?? b.index) + 1] : null);
    const [keys, queries] = [between(start?.key, end?.key), between(start?.row, end?.row)];
    if (!keys && !queries) return null;
    return { keys: keys ?? this.state.keys, queries: queries ?? this.state.queries };
  }

  listenToGrid() {
    const pointed = (event) => this.grid?.hit(...this.at(event, $("grid"))) ?? null;
    const chosen = () => this.order.indexOf(this.stack.graphs.indexOf(this.graph()));
    $("grid").addEventListener("pointermove", (event) => this.grid && this.noteHead(pointed(event) ?? chosen()));
    $("grid").addEventListener("pointerleave", () => this.grid && this.noteHead(chosen()));
    $("grid").addEventListener("click", (event) => {
      const n = pointed(event);
      if (n === null) return;
      const { layer, head } = this.stack.graphs[this.order[n]];
      this.update({ layer, head });
    });
  }

  listenToControls() {
    for (const view of VIEWS) {
      const button = element("button", { type: "button", role: "radio", value: view }, view);
      button.addEventListener("click", () => this.update({ view }));
      $("views").append(button);
    }
    $("views").addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!by || event.shiftKey) return;
      event.preventDefault();
      event.stopPropagation();
      const some = [...$("views").children].filter((button) => !button.disabled);
      const at = some.findIndex((button) => button.value === this.state.view);
      const next = some[(at + by + some.length) % some.length];
      this.update({ view: next.value });
      next.focus();
    });
    $("sort").addEventListener("change", () => {
      this.update({ sort: $("sort").value });
    });
    for (const id of ["stack", "show", "weight"]) $(id).addEventListener("change", () => this.update({ [id]: $(id).value, ...(id === "stack" ? { token: null, level: null, keys: null, queries: null, layer: null, head: null } : {}) }));
    for (const id of ["words", "special", "sinks"]) $(id).addEventListener("change", () => this.update({ [id]: $(id).checked }));
    $("threshold").addEventListener("input", () => this.update({ threshold: Number((($("threshold").value / 100) ** 2).toPrecision(2)) }));
    $("top").addEventListener("input", () => this.update({ top: Number($("top").value) }));
    $("automatic").addEventListener("click", () => this.update({ threshold: null, top: 0 }));
    $("search").addEventListener("input", () => this.update({ search: $("search").value.slice(0, 200) }));
    $("search").addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") $("view").focus();
    });
    $("all").addEventListener("click", () => this.update({ keys: null, queries: null }));
    $("theme").addEventListener("click", () => this.update({ theme: this.look.name === "dark" ? "light" : "dark" }));
    $("help").addEventListener("click", () => $("keys").showModal());
    $("skip").addEventListener("click", (event) => {
      event.preventDefault(); // in a notebook's frame the address of #view is the notebook's
      $("view").focus();
    });
    $("copy").addEventListener("click", () => this.copyLink());
    $("save-svg").addEventListener("click", () => this.save("svg"));
    $("save-png").addEventListener("click", () => this.save("png"));
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => {
      this.state = settled(fromFragment(location.hash), this.traces);
      this.render();
    });
    this.darkness.addEventListener("change", () => this.render());
    let width = 0;
    new ResizeObserver(() => {
      if ($("view").clientWidth === width || !this.scene) return;
      width = $("view").clientWidth;
      this.drawGrid();
      this.drawView();
    }).observe($("view"));
  }

  key(event) {
    const isTyping = event.target.matches?.("input, select, textarea") && !(event.target.type === "checkbox");
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping || $("keys").open) return;
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (arrows) {
      const isView = $("view").contains(document.activeElement) && !event.shiftKey;
      const isGrid = event.shiftKey || $("grid").contains(document.activeElement);
      if (!isView && !isGrid) return;
      event.preventDefault();
      if (isView) this.moveToken(...arrows);
      else this.moveHead(...arrows);
      return;
    }
    const next = (list, value) => list[(list.indexOf(value) + 1) % list.length];
    const actions = {
      "/": () => $("search").focus(),
      "?": () => $("keys").showModal(),
      n: () => this.step(1),
      N: () => this.step(-1),
      w: () => this.update({ weight: next(weightsOf(this.traces, this.state), this.state.weight) }),
      c: () => this.traces.length > 1 && this.update({ show: next(SHOWN, this.state.show) }),
      d: () => $("theme").click(),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.update({ keys: null, queries: null }),
      Escape: () => this.update({ token: null, level: null }),
    };
    VIEWS.forEach((view, i) => (actions[i + 1] = () => this.update({ view })));
    if (!Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  }

  // Saving

  get savedScene() {
    const { model } = this.traces[0];
    const title = [$("head-title").textContent, model && visible(model, 60), this.traces.length > 1 && this.parts.join(", "), this.editsText];
    const hover = this.hover;
    this.hover = null;
    const scene = this.wholeScene(Math.max(560, $("view").clientWidth), 620);
    this.hover = hover;
    return framed(scene, title.filter(Boolean).join(" · "), this.captionText, this.look);
  }

  async save(kind) {
    if (!this.scene || this.isBusy) return;
    const scene = this.savedScene;
    const { stack, layer, head, view, show } = this.state;
    const name = [stack, `${layer}.${head}`, view, ...(this.traces.length > 1 ? [show] : [])].join("-").replace(/[^\w.-]/g, "_") + `.${kind}`;
    if (kind === "svg") return this.download(name, new Blob([toSVG(scene, this.look, (mark) => imageOf(mark).toDataURL("image/png"))], { type: "image/svg+xml" }));
    const canvas = document.createElement("canvas");
    draw(canvas, scene, this.look, 2);
    this.download(name, await new Promise((done) => canvas.toBlob(done, "image/png")));
  }

  download(name, blob) {
    const address = URL.createObjectURL(blob);
    const link = element("a", { href: address, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }

  async copyLink() {
    const link = location.href.replace(/#.*/, "") + `#${toFragment(this.saidState)}`;
    const say = (said) => {
      $("copy").textContent = said;
      setTimeout(() => ($("copy").textContent = "Copy link"), 1600);
    };
    try {
      await navigator.clipboard.writeText(link);
      say("Copied");
    } catch {
      say("In the address bar");
    }
  }

  // Beginning

  get editsText() {
    const { edits, edited } = this.header;
    return [edits && `edits: ${visible(edits, 200)}`, edited && visible(edited, 200)].filter(Boolean).join(" · ");
  }

  /** Say what the text and the shown graphs are; where two differ, what both are. */
  describe() {
    const { keyTokens, queryTokens, layers, heads } = this.stackOf(0);
    $("title").textContent = this.stack.text ? visible(this.stack.text, 150) : "gattn";
    const generated = [...keyTokens, ...(queryTokens ?? [])].filter((token) => token.generated).length;
    const size = queryTokens ? `${count(queryTokens.length, "query").replace("querys", "queries")} on ${count(keyTokens.length, "key")}` : count(keyTokens.length, "token");
    const graphs = this.shownGraphs.flat();
    const facts = [
      this.traces.length > 1 && "before and after",
      this.editsText,
      distinct(this.traces.map(({ model }) => model)),
      `${count(layers.length, "layer")} × ${count(heads.length, "head")}`,
      size + (generated ? `, the last ${generated} generated` : ""),
      ...["weightFunction", "normalizer"].map((name) => distinct(graphs.map((graph) => graph[name]))),
      distinct(graphs.map(keepOf)),
    ];
    $("facts").textContent = facts.filter(Boolean).join(" · ");
  }

  noteFile() {
    const notes = [...this.header.notes, `made by gattn ${this.header.version}; this file asks for nothing from any network`];
    $("notes").replaceChildren(...notes.map((note) => element("li", {}, visible(note, 400))));
  }

  async start() {
    if (window.parent !== window) document.documentElement.classList.add("compact");
    $("copy").hidden = location.protocol === "about:";
    this.dress();
    this.listenToControls();
    this.listenToView();
    this.listenToGrid();
    this.noteFile();
    try {
      await this.decodeThumbnails();
    } catch (problem) {
      return this.complain(problem);
    }
    await this.render();
  }
}

if (typeof document !== "undefined" && $("gattn-header")) {
  const header = JSON.parse($("gattn-header").textContent);
  if (header.format === FORMAT) new Page(header).start();
  else complain(`The data of this page have format ${header.format}, and its script reads format ${FORMAT}: write the page again, with one version of gattn.`);
}
