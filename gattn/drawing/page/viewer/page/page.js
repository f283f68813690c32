// The page: what is shown, and how it answers.

import { count, isolated, number, visible } from "../heads/texts.js";
import { DEFAULTS, SHOWN, VIEWS, fromFragment, graphOf, settled, stackOf, toFragment, weightsOf } from "../heads/state.js";
import { SINK, bytesOf, decodeHead, inflate, tokensOf, withTokens } from "../heads/decoding.js";
import { difference, groupsOf, regroup, sinksOf, windowed } from "../heads/regrouping.js";
import { nodeOf, placeIn, readingsOf, rowEdges, valueText } from "../heads/readings.js";
import { caption, choose } from "../heads/edges.js";
import { meanOf, rollout } from "../heads/layers.js";
import { searched } from "../heads/search.js";
import { Scale, cssOf, lookOf } from "../scenes/colours.js";
import { named } from "../scenes/marks.js";
import { arcs } from "../scenes/arcs.js";
import { columns } from "../scenes/columns.js";
import { matrix } from "../scenes/matrix.js";
import { textView } from "../scenes/passage.js";
import { layered } from "../scenes/layered.js";
import { headGrid, shadeOf } from "../scenes/grid.js";
import { framed, tiled } from "../scenes/frames.js";
import { draw, imageOf, toSVG } from "../scenes/drawing.js";
import { $, complain, element, tokenElement } from "./elements.js";

const SCENES = { arcs, columns, matrix, text: textView };
const MOST_DECODED = 12_000_000;
const MOST_SORTED = 120;
const FEW = 8;
const NO_TOKEN = "Point at a token, or choose one, to see in numbers what it reads and what reads it.";
const NO_WORDS = "Not known here: the tokens came without words, from no tokenizer or from ids that no text encodes to";
const partsReason = (sides) => (sides.some(({ words }) => words) ? "Each word is one token here" : NO_WORDS);
const specialReason = (sides) => (sides.some(({ words }) => words) ? "There are no special tokens here" : NO_WORDS);
const NO_ROLLOUT = "There is no rollout here: it follows one run, through consecutive layers whose attention is not negative.";

/** List what differs among some texts. */
const distinct = (texts) => [...new Set(texts)].filter(Boolean).map((text) => visible(text, 80)).join(" and ");

const keepOf = ({ edges, totalEdges, keep }) => (edges === totalEdges ? "all edges kept" : keep ? `edges kept: ${keep}` : "some edges kept");

/** Say how many edges some graphs have, where they lack some. */
function keptText(graphs) {
  const [edges, all] = ["edges", "totalEdges"].map((name) => graphs.reduce((sum, graph) => sum + graph[name], 0));
  return edges < all ? `${distinct(graphs.map(keepOf))}, ${edges.toLocaleString("en")} of ${count(all, "edge")}` : "";
}

export class Page {
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
    const layerNames = this.stack.graphs.length > 1 ? this.stack.layers.map((layer) => `layer ${layer}`) : [this.stack.graphs[0].layerName];
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
