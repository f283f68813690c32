// The page as data: its traces, its state, its decoded heads; and how to change the state.

import { DEFAULTS, askedHead, firstView, fromFragment, graphOf, groundOf, nameOf, placesOf, settled, stackOf, toFragment } from "../heads/state.js";
import { bytesOf, decodeHead, inflate, tokensOf, withTokens } from "../heads/decoding.js";
import { blockOf, difference, groupsOf, regroup, sinksOf, windowed } from "../heads/regrouping.js";
import { placeIn } from "../heads/readings.js";
import { visible } from "../heads/texts.js";
import { lookOf } from "../scenes/colours.js";
import { tintOf } from "../tokens/tints.js";
import { tokensOfBands } from "../circuit/edges.js";
import { $, host } from "./elements.js";

const MOST_DECODED = 12_000_000;
const FEW = 8;

export class Page {
  /** `show` is called with the page whenever the state changes. */
  constructor(header, show) {
    this.texts = [header, ...(header.others ?? [])];
    this.render = () => show(this);
    this.decoded = new Map();
    this.memory = new Map();
    this.most = FEW;
    this.looks = { light: lookOf("light", header.ramps), dark: lookOf("dark", header.ramps) };
    this.darkness = matchMedia("(prefers-color-scheme: dark)");
    this.run = 0;
    this.isPrinted = false;
    this.stopping = new AbortController();
    this.open(fromFragment(host.read()));
  }

  /** Open the text that a state names, and fit the state to it. */
  open(state) {
    const text = Math.min(state.text, this.texts.length - 1);
    if (this.header !== this.texts[text]) this.#setHeader(this.texts[text]);
    this.state = settled({ ...state, text }, this.traces, this.header);
    this.hover = null;
  }

  #setHeader(header) {
    this.header = header;
    this.traces = header.traces;
    this.memory.clear();
    // Results of rendering the state
    [this.heads, this.windows, this.layers, this.choices, this.scales, this.overlaid, this.scene, this.asked] = Array(8).fill(null);
    [this.hiddenNames, this.marked, this.traced] = [[], [], []];
    // The grid of all heads
    [this.thumbnails, this.order, this.grid, this.drawn] = Array(4).fill(null);
    [this.sorted, this.firstShown, this.lastHead] = ["", 0, undefined]; // of the list of sorted heads
    this.image = null;
    this.circuit = header.circuit;
    this.shownCircuit = this.circuit && { circuit: this.circuit, bands: tokensOfBands(this.circuit, this.traces[0].stacks) };
  }

  /** Remember the last value made for a slot, until its key changes. */
  once(slot, key, make) {
    const last = this.memory.get(slot);
    if (last?.key === key) return last.value;
    const value = make();
    this.memory.set(slot, { key, value });
    return value;
  }

  // Data

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

  /** The places of the heads that the view shows: the chosen one and the pinned ones; of layers, all if none is pinned. */
  get places() {
    const { view, pins } = this.state;
    if (view === "circuit") return [this.state];
    return view === "layered" && !pins ? this.stack.graphs : placesOf(this.state);
  }

  /** The graphs of each shown trace that the view shows. */
  get shownGraphs() {
    return this.shownTraces.map((trace) => this.places.map((place) => this.graph(trace, place)));
  }

  get look() {
    const theme = this.state.theme || (this.darkness.matches ? "dark" : "light");
    return this.looks[this.isPrinted ? "light" : theme]; // paper is white
  }

  get parts() {
    return this.state.show === "all three" ? ["before", "after", "difference"] : [this.state.show];
  }

  /** The heads in view, in each part of a comparison: {part, place, name, isChosen}; a view of all layers shows none by itself. */
  get panels() {
    const places = this.isWhole ? [this.state] : this.places;
    return places.flatMap((place, n) =>
      this.parts.map((part) => {
        const names = [...(places.length > 1 ? [`head ${nameOf(place)}`] : []), ...(this.parts.length > 1 ? [part] : [])];
        return { part, place, name: names.join(", "), isChosen: n === 0 };
      }),
    );
  }

  /** Whether heads are drawn over each other. */
  get isOverlaid() {
    return this.state.overlay && this.canOverlay;
  }

  /** Whether the view can draw heads over each other: where edges are lines or cells, and heads are pinned. */
  get canOverlay() {
    return !this.isWhole && !this.isShaded && this.places.length > 1;
  }

  // Heads

  /** Decode the bytes of a block. */
  bytes(block) {
    return inflate(bytesOf(host.block(block)));
  }

  async raw(trace, graph) {
    const id = graph.block;
    if (!this.decoded.has(id)) {
      const { keyTokens, queryTokens, offset, numQueries } = this.stackOf(trace);
      const bytes = await this.bytes(id);
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

  // Why

  /** Whether edges of the head in view can be asked why. */
  get canAsk() {
    return !this.isWhole && this.shownTraces.includes(0) && Boolean(askedHead(this.header.why, this.state));
  }

  /** The indices of a query and a key whose edge can be asked why; null if it cannot, as for a word of several tokens. */
  pairOf(row, key) {
    const isToken = [row, key].every((node) => node && !node.virtual && node.last === undefined);
    const entry = askedHead(this.header.why, this.state);
    return isToken && this.canAsk && entry.queries.includes(row.index) && entry.keys.includes(key.index) ? [row.index, key.index] : null;
  }

  /** Choose the hidden nodes by the first head: the same in all parts of a comparison. */
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

  /** The ranges in view; one range for both if nodes are both keys and queries. */
  limits() {
    const { keys, queries, view } = this.state;
    if (this.stack.queries) return { keys, queries };
    if (!keys || !queries || view !== "layered") return { keys: keys ?? queries, queries: queries ?? keys };
    const hull = [Math.min(keys[0], queries[0]), Math.max(keys[1], queries[1])];
    return { keys: hull, queries: hull };
  }

  /** Restrict a head to the ranges in view: where tokens are drawn once, both are among its nodes. */
  windowOf(head) {
    const { keys, queries } = this.limits();
    const isBlock = head.rowNode && keys && queries && String(keys) !== String(queries) && ["arcs", "text", "places"].includes(this.state.view);
    return isBlock ? blockOf(head, keys, queries) : windowed(head, keys, queries);
  }

  /** How tokens are coloured, if by numbers of their own. */
  get tint() {
    const { colour } = this.state;
    return this.once("tint", `${this.stack.name} ${colour} ${this.look.name} ${this.shownTraces[0]}`, () => tintOf(visible(colour, 40), this.stackOf(this.shownTraces[0]).colours[colour], this.look));
  }

  /** The level of the chosen token in the layered view; the input is 0. */
  get level() {
    return this.hover?.level ?? this.state.level ?? this.stack.layers.length;
  }

  /** Whether layers are consecutive; others do not compose. */
  get isConsecutive() {
    const { layers } = this.stack;
    return layers.every((layer, n) => layer === layers[0] + n);
  }

  /** Whether the view is of all layers, and not of one head. */
  get isWhole() {
    return ["layered", "circuit"].includes(this.state.view);
  }

  /** The edge of the circuit that the pointer is on, or else the chosen one; null if there is none. */
  get edge() {
    return this.hover?.edge ?? this.state.edge;
  }

  /** Whether a view shades tokens, so that it shows all edges whatever the threshold. */
  get isShaded() {
    return this.state.view === "text" || (this.state.view === "places" && groundOf(this.stack) === "grid");
  }

  /** Whether a view shows all edges if no threshold is set. */
  get isDense() {
    return this.state.view === "matrix" || this.isShaded;
  }

  /** The chosen token in a head: its node as key and its row as query. */
  focusIn(head) {
    const { token, side } = this.state;
    const of = (name) => (head.rowNode || side === name ? token : null);
    return placeIn(head, of("key"), of("query"));
  }

  /** The focus in a head: what the pointer is on, or else what was chosen. */
  lookedAt(head) {
    return this.hover ? placeIn(head, this.hover.key?.index, this.hover.row?.index) : this.focusIn(head);
  }

  // The state

  update(patch) {
    this.open({ ...this.state, ...patch });
    host.write(toFragment(this.saidState));
    this.render();
  }

  /** Choose a token and bring it into view. */
  chooseToken({ token, side = "key", level = this.state.level, why = null }) {
    this.most = FEW;
    const patch = { token, side: this.stack.queries ? side : "key", level, why };
    const { keys, queries } = this.limits();
    const isOutside = (limits) => limits && token !== null && (token < limits[0] || token >= limits[1]);
    if (this.stack.queries) {
      const name = side === "key" ? "keys" : "queries";
      if (isOutside(this.state[name])) patch[name] = null;
    } else if (isOutside(keys) && isOutside(queries)) Object.assign(patch, { keys: null, queries: null });
    this.update(patch);
  }

  get saidState() {
    const said = { ...this.state };
    if (said.view === firstView(this.stack, this.header)) said.view = DEFAULTS.view;
    if (this.traces.length < 2) said.show = DEFAULTS.show;
    if (this.traces[0].stacks.length < 2) said.stack = "";
    return said;
  }

  /** Whether the state has changed and is not drawn yet. */
  get isBusy() {
    return $("view").hasAttribute("aria-busy");
  }
}
