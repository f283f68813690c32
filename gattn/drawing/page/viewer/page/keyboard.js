// Handles controls and keys.

import { SHOWN, VIEWS, fromFragment, nameOf, viewsOf, weightsOf, withPin } from "../heads/state.js";
import { isFromRight } from "../heads/directions.js";
import { nodeOf } from "../heads/readings.js";
import { $, element, host } from "./elements.js";
import { stepTo } from "./finding.js";
import { drawView } from "./view.js";
import { drawGrid, scrollHeads } from "./thumbnails.js";
import { recolour } from "./rendering.js";
import { copyLink, save } from "./saving.js";
import { listenToTokenControls, openText } from "../tokens/choosing.js";

const FAR = ["Home", "End", "PageUp", "PageDown"];

function moveHead(page, dx, dy) {
  const { state, stack, order } = page;
  if (state.sort && order) {
    const at = order.indexOf(stack.graphs.indexOf(page.graph()));
    const next = stack.graphs[order[Math.min(order.length - 1, Math.max(0, at + dx + dy * page.grid.across))]];
    return page.update({ layer: next.layer, head: next.head });
  }
  const to = (list, value, by) => list[Math.min(list.length - 1, Math.max(0, list.indexOf(value) + by))];
  const place = { layer: to(stack.layers, state.layer, dy), head: to(stack.heads, state.head, dx) };
  if (page.graph(0, place)) page.update(place);
}

/** Go to the first head, the last one, or a page of heads further. */
function moveFar(page, key) {
  const { stack, order, grid } = page;
  if (!grid) return;
  const at = order.indexOf(stack.graphs.indexOf(page.graph()));
  const far = Math.max(1, Math.min(grid.rows, Math.ceil(grid.shown / grid.across)) - 1) * grid.across;
  const to = { Home: 0, End: order.length - 1, PageUp: at - far, PageDown: at + far }[key];
  const { layer, head } = stack.graphs[order[Math.min(order.length - 1, Math.max(0, to))]];
  page.update({ layer, head });
}

/** Go to the first token, the last one, or ten further. */
function moveTokenFar(page, key) {
  if (page.state.view === "circuit") return;
  const all = page.windows?.[0].keys.filter((token) => !token.virtual) ?? [];
  const at = page.state.token === null ? 0 : nodeOf(all, page.state.token);
  const to = { Home: 0, End: all.length - 1, PageUp: at - 10, PageDown: at + 10 }[key];
  if (all.length) page.chooseToken({ token: all[Math.min(all.length - 1, Math.max(0, to))].index });
}

/** Go to the next edge of the circuit: upwards and to the right, the next in the order of layers and keys. */
function moveEdge(page, by) {
  const { edges } = page.circuit;
  const order = [...edges.keys()].sort((a, b) => compared(edges[a].from, edges[b].from) || compared(edges[a].to, edges[b].to) || edges[a].head - edges[b].head);
  const at = order.indexOf(page.state.edge);
  if (edges.length) page.update({ edge: order[at < 0 ? 0 : Math.min(edges.length - 1, Math.max(0, at + by))] });
}

const compared = (a, b) => a.reduce((found, part, n) => found || part - b[n], 0);

function moveToken(page, dx, dy) {
  if (page.state.view === "circuit") return moveEdge(page, dx - dy);
  if (page.state.view === "layered" && dy) {
    const depth = page.stack.layers.length;
    const level = Math.min(depth, Math.max(0, (page.state.level ?? depth) - dy));
    return page.update({ token: page.state.token ?? 0, level });
  }
  const head = page.windows?.[0];
  if (!head) return;
  const nodes = [...head.keys.filter((t) => !t.virtual).map((t) => [t, "key"]), ...(head.rowNode ? [] : head.queries.map((t) => [t, "query"]))];
  if (!nodes.length) return;
  const { token, side } = page.state;
  const there = besideOnGrid(page, head, dx, dy);
  if (there) return page.chooseToken(there);
  const isLeft = page.state.view === "text" && isFromRight(side === "query" ? head.queries : head.keys);
  const at = nodes.findIndex(([node, of]) => of === side && token !== null && nodeOf([node], token) === 0);
  const [next, of] = nodes[at < 0 ? 0 : Math.min(nodes.length - 1, Math.max(0, at + (isLeft ? -dx : dx) + dy))];
  page.chooseToken({ token: next.index, side: of });
}

/** Find the patch beside the chosen one on a grid; null if the view is another, or the token is no patch. */
function besideOnGrid(page, head, dx, dy) {
  const { view, token, side } = page.state;
  if (view !== "places" || !page.isShaded || token === null) return null;
  const tokens = side === "query" ? head.queries : head.keys;
  const from = tokens[nodeOf(tokens, token)]?.at;
  const to = from && tokens.find(({ at }) => at && at[0] === from[0] + dx && at[1] === from[1] + dy);
  return from ? { token: to?.index ?? token, side } : null;
}

export function zoom(page, factor, place = null) {
  if (page.state.view === "circuit") return;
  const patch = {};
  const { keys, queries } = page.stack;
  for (const [name, side] of [["keys", keys], ["queries", queries ?? keys]]) {
    const size = side.tokens.length;
    const [from, to] = page.limits()[name] ?? [0, size];
    const wide = Math.min(size, Math.max(4, Math.round((to - from) * factor)));
    const isOf = !queries || (name === "keys") === (page.state.side === "key");
    const share = place ? place[name === "keys" ? 0 : 1] : 0.5;
    const middle = !place && page.state.token !== null && isOf ? page.state.token + 0.5 : from + share * (to - from);
    const start = Math.max(0, Math.min(size - wide, Math.round(middle - (place ? share : 0.5) * wide)));
    patch[name] = wide >= size ? null : [start, start + wide];
  }
  page.update(patch);
}

export function listenToControls(page) {
  for (const view of VIEWS) {
    const button = element("button", { type: "button", role: "radio", value: view }, view);
    button.addEventListener("click", () => page.update({ view }));
    $("views").append(button);
  }
  $("views").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by || event.shiftKey) return;
    event.preventDefault();
    event.stopPropagation();
    const some = [...$("views").children].filter((button) => !button.disabled && !button.hidden);
    const at = some.findIndex((button) => button.value === page.state.view);
    const next = some[(at + by + some.length) % some.length];
    page.update({ view: next.value });
    next.focus();
  });
  $("sort").addEventListener("change", () => {
    page.update({ sort: $("sort").value });
  });
  for (const id of ["stack", "show", "weight"]) $(id).addEventListener("change", () => page.update({ [id]: $(id).value, ...(id === "stack" ? { token: null, level: null, keys: null, queries: null, layer: null, head: null, pins: null } : {}) }));
  for (const id of ["words", "special", "sinks", "overlay"]) $(id).addEventListener("change", () => page.update({ [id]: $(id).checked }));
  $("threshold").addEventListener("input", () => page.update({ threshold: Number((($("threshold").value / 100) ** 2).toPrecision(2)) }));
  $("top").addEventListener("input", () => page.update({ top: Number($("top").value) }));
  $("automatic").addEventListener("click", () => page.update({ threshold: null, top: 0 }));
  $("search").addEventListener("input", () => page.update({ search: $("search").value.slice(0, 200) }));
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") stepTo(page, event.shiftKey ? -1 : 1);
    if (event.key === "Escape") $("view").focus();
  });
  $("pin").addEventListener("click", () => page.update({ pins: withPin(page.state.pins, nameOf(page.state)) }));
  const scroll = { "heads-first": -Infinity, "heads-before": -1, "heads-after": 1, "heads-last": Infinity };
  for (const [id, pages] of Object.entries(scroll)) $(id).addEventListener("click", () => scrollHeads(page, pages * page.grid.rows));
  listenToTokenControls(page);
  $("apart").addEventListener("change", () => page.update({ apart: $("apart").value }));
  $("all").addEventListener("click", () => page.update({ keys: null, queries: null }));
  $("theme").addEventListener("click", () => page.update({ theme: page.look.name === "dark" ? "light" : "dark" }));
  $("help").addEventListener("click", () => $("keys").showModal());
  $("skip")?.addEventListener("click", (event) => {
    event.preventDefault(); // in a notebook's frame the address of #view is the notebook's
    $("view").focus();
  });
  $("copy").addEventListener("click", () => copyLink(page));
  $("save-svg").addEventListener("click", () => save(page, "svg"));
  $("save-png").addEventListener("click", () => save(page, "png"));
  const { signal } = page.stopping;
  host.root.addEventListener("keydown", (event) => pressed(page, event), { signal });
  host.listen(() => {
    page.open(fromFragment(host.read()));
    page.render();
  });
  page.darkness.addEventListener("change", () => page.render(), { signal });
  for (const name of ["beforeprint", "afterprint"])
    addEventListener(
      name,
      () => {
        page.isPrinted = name === "beforeprint";
        recolour(page);
      },
      { signal },
    );
  let width = 0;
  const sizes = new ResizeObserver(() => {
    if ($("view").clientWidth === width || !page.scene) return;
    width = $("view").clientWidth;
    drawGrid(page);
    drawView(page);
  });
  sizes.observe($("view"));
  signal.addEventListener("abort", () => {
    page.run++; // renders no more
    sizes.disconnect();
  });
}

function pressed(page, event) {
  const isTyping = event.target.matches?.("input, select, textarea") && !(event.target.type === "checkbox");
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping || $("keys").open) return;
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (arrows) {
    const isView = $("view").contains(host.root.activeElement) && !event.shiftKey;
    const isGrid = event.shiftKey || $("grid").contains(host.root.activeElement);
    if (!isView && !isGrid) return;
    event.preventDefault();
    if (isView) moveToken(page, ...arrows);
    else moveHead(page, ...arrows);
    return;
  }
  if (FAR.includes(event.key)) {
    const move = $("view").contains(host.root.activeElement) ? moveTokenFar : $("grid").contains(host.root.activeElement) ? moveFar : null;
    if (!move) return;
    event.preventDefault();
    return move(page, event.key);
  }
  const next = (list, value) => list[(list.indexOf(value) + 1) % list.length];
  const actions = {
    "/": () => $("search").focus(),
    "?": () => $("keys").showModal(),
    n: () => stepTo(page, 1),
    N: () => stepTo(page, -1),
    w: () => page.update({ weight: next(weightsOf(page.traces, page.state), page.state.weight) }),
    c: () => page.traces.length > 1 && page.update({ show: next(SHOWN, page.state.show) }),
    "[": () => openText(page, page.state.text - 1),
    "]": () => openText(page, page.state.text + 1),
    d: () => $("theme").click(),
    p: () => !$("pins").hidden && $("pin").click(),
    o: () => page.canOverlay && page.update({ overlay: !page.state.overlay }),
    "+": () => zoom(page, 0.5),
    "=": () => zoom(page, 0.5),
    "-": () => zoom(page, 2),
    0: () => page.update({ keys: null, queries: null }),
    Escape: () => page.update({ token: null, level: null, edge: null, why: null }),
  };
  VIEWS.forEach((view, i) => (actions[i + 1] = () => viewsOf(page.stack, page.circuit).includes(view) && page.update({ view })));
  if (!Object.hasOwn(actions, event.key)) return;
  event.preventDefault();
  actions[event.key]();
}
