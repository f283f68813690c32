// The state of the page: its fields, its fragment in the address, and fitting it to the data.

export const VIEWS = ["arcs", "columns", "matrix", "layered", "text", "places", "circuit"];
export const SHOWN = ["before", "after", "difference", "all three"];

const oneOf = (names) => (text) => (names.includes(text) ? text : undefined);
const asWhole = (text) => (/^\d{1,9}$/.test(text) ? Number(text) : undefined);
const asFlag = (text) => text === "1" || undefined;
const asPair = (text) => (/^\d{1,9}-\d{1,9}$/.test(text) ? text.split("-").map(Number) : undefined);
const asWords = (text) => (text && text.length <= 200 ? text : undefined);
const asShare = (text) => (/^\d*\.?\d+(e-?\d+)?$/.test(text) ? Number(text) : undefined);
const asHeads = (text) => (/^\d{1,5}\.\d{1,5}(-\d{1,5}\.\d{1,5})*$/.test(text) ? text.split("-") : undefined);
const asRange = (text) => {
  const [from, to] = /^\d{1,9}-\d{1,9}$/.test(text) ? text.split("-").map(Number) : [0, 0];
  return from < to ? [from, to] : undefined;
};

/** The fields of the state: how to read each from text, and its default. */
const FIELDS = {
  text: [asWhole, 0],
  view: [oneOf(VIEWS), ""],
  stack: [asWords, ""],
  layer: [asWhole, null],
  head: [asWhole, null],
  pins: [asHeads, null],
  overlay: [asFlag, false],
  token: [asWhole, null],
  side: [oneOf(["key", "query"]), "key"],
  level: [asWhole, null],
  edge: [asWhole, null],
  why: [asPair, null],
  apart: [oneOf(["parts", "elements"]), "parts"],
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
  colour: [asWords, ""],
  theme: [oneOf(["light", "dark"]), ""],
};

export const DEFAULTS = Object.fromEntries(Object.entries(FIELDS).map(([name, [, usual]]) => [name, usual]));

/** Write a state as a URL fragment, without defaults. */
export function toFragment(state) {
  const parts = new URLSearchParams();
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = state[name];
    if (value === usual || value == null) continue;
    parts.set(name, value === true ? "1" : Array.isArray(value) ? value.join("-") : String(value));
  }
  return parts.toString();
}

/** Read a URL fragment; missing and invalid fields take their defaults. */
export function fromFragment(text) {
  const parts = new URLSearchParams(text.replace(/^#/, ""));
  return Object.fromEntries(
    Object.entries(FIELDS).map(([name, [read, usual]]) => [name, read(parts.get(name) ?? "") ?? usual]),
  );
}

/** Choose the head that a page opens with: the best induction head, or previous-token head, or the first. */
function firstHead(graphs) {
  const best = (name) => graphs.reduce((most, graph) => ((graph.scores[name] ?? 0) > (most.scores[name] ?? 0) ? graph : most), graphs[0]);
  return ["induction", "previous_token"].map((name) => [best(name), name]).find(([graph, name]) => graph.scores[name] >= 0.2)?.[0] ?? graphs[0];
}

export const stackOf = (trace, name) => trace.stacks.find((stack) => stack.name === name);
export const graphOf = (trace, { stack, layer, head }) => stackOf(trace, stack).graphs.find((graph) => graph.layer === layer && graph.head === head);

/** The places of the heads in view: the chosen one, then those that are pinned. */
export function placesOf({ layer, head, pins }) {
  const others = (pins ?? []).map((name) => name.split(".").map(Number)).filter(([l, h]) => l !== layer || h !== head);
  return [{ layer, head }, ...others.map(([l, h]) => ({ layer: l, head: h }))];
}

export const nameOf = ({ layer, head }) => `${layer}.${head}`;

/** List the values that all heads in view have in all traces. */
export function weightsOf(traces, state) {
  const graphs = traces.flatMap((trace) => placesOf(state).map((place) => graphOf(trace, { stack: state.stack, ...place })));
  const [first, ...others] = graphs.map(({ values }) => values);
  return Object.keys(first).filter((name) => others.every((values) => Object.hasOwn(values, name)));
}

/** Cut a range to the size; null if that leaves nothing or everything. */
function within(range, size) {
  const [from, to] = range ? [range[0], Math.min(range[1], size)] : [0, size];
  return from < size && to - from < size ? [from, to] : null;
}

/** Where the tokens of a stack lie: on a "grid", on a "layout", or nowhere (""). */
export function groundOf({ keys, queries }) {
  const kinds = [keys, queries].map((side) => side?.places?.kind);
  if (kinds.includes("grid")) return "grid";
  return kinds[0] === "layout" && (!queries || kinds[1] === "layout") ? "layout" : "";
}

const HAS = { layered: ({ queries }) => !queries, places: groundOf, circuit: (stack, circuit) => circuit };

/** The views that a stack has: layers only of self-attention, places only where they are known; and a circuit if there is one. */
export const viewsOf = (stack, circuit = null) => VIEWS.filter((view) => !HAS[view] || HAS[view](stack, circuit));

/** The view that a stack opens with: the circuit, the places of its tokens over an image or on a layout, or arcs. */
export function firstView(stack, { circuit = null, image = null }) {
  const ground = groundOf(stack);
  return circuit ? "circuit" : ground === "layout" || (image && ground === "grid") ? "places" : "arcs";
}

/** The entry of a head whose edges can be asked why; undefined if it has none. */
export const askedHead = (why, { stack, layer, head }) => why.find((one) => one.stack === stack && one.layer === layer && one.head === head);

const MOST_PINS = 7;

/** The pinned heads that exist, each once; null if there is none. */
function pinsIn(stack, pins) {
  const found = [...new Set(pins)].filter((name) => stack.graphs.some((graph) => nameOf(graph) === name)).slice(0, MOST_PINS);
  return found.length ? found : null;
}

/** Pin a head, or unpin it. */
export function withPin(pins, name) {
  const others = (pins ?? []).filter((one) => one !== name);
  return others.length < (pins ?? []).length ? others : [...others, name];
}

/** Fit a state to the data: names and numbers that do not exist become the first, or the nearest. */
export function settled(state, traces, { circuit = null, image = null, why = [] } = {}) {
  const { stacks } = traces[0];
  const inCircuit = stacks.find(({ graphs }) => graphs.some(({ circuitEdges }) => circuitEdges));
  const stack = stackOf(traces[0], state.stack) ?? inCircuit ?? stackOf(traces[0], why[0]?.stack) ?? stacks.find(({ queries }) => !queries) ?? stacks[0];
  const place = stack.graphs.find((graph) => graph.layer === state.layer && graph.head === state.head);
  const graph = place ?? stack.graphs.find((one) => one.layer === state.layer) ?? stack.graphs.find((one) => askedHead(why, { ...one, stack: stack.name })) ?? firstHead(stack.graphs);
  const asked = askedHead(why, { ...graph, stack: stack.name });
  const pins = pinsIn(stack, state.pins ?? []);
  const size = (state.side === "query" && stack.queries ? stack.queries : stack.keys).tokens.length;
  return {
    ...state,
    stack: stack.name,
    layer: graph.layer,
    head: graph.head,
    pins,
    overlay: state.overlay && Boolean(pins),
    side: stack.queries ? state.side : "key",
    view: viewsOf(stack, circuit).includes(state.view) ? state.view : firstView(stack, { circuit, image }),
    edge: state.edge !== null && state.edge < (circuit?.edges.length ?? 0) ? state.edge : null,
    why: state.why && asked?.queries.includes(state.why[0]) && asked.keys.includes(state.why[1]) ? state.why : null,
    token: state.token === null || state.token >= size ? null : state.token,
    keys: within(state.keys, stack.keys.tokens.length),
    queries: within(state.queries, (stack.queries ?? stack.keys).tokens.length),
    level: state.level === null ? null : Math.min(state.level, stack.layers.length),
    weight: !state.words && weightsOf(traces, { layer: graph.layer, head: graph.head, pins, stack: stack.name }).includes(state.weight) ? state.weight : "attention",
    sort: Object.hasOwn(graph.scores, state.sort) ? state.sort : "",
    show: traces.length > 1 ? state.show : "before",
    colour: Object.hasOwn(stack.colours ?? {}, state.colour) ? state.colour : "",
  };
}
