// Draws the grid of all heads from their thumbnails.

import { grouped, number, worded } from "../heads/texts.js";
import { nameOf } from "../heads/state.js";
import { Scale } from "../scenes/colours.js";
import { gridSize, headGrid, shadeOf } from "../scenes/grid.js";
import { drawInPlace } from "../scenes/drawing.js";
import { $, canvasIn } from "./elements.js";
import { headText } from "./describing.js";

/** Whether the chosen head stands below all heads, as on a phone. */
const isOneColumn = () => !getComputedStyle($("main")).gridTemplateColumns.includes(" ");

/** The room for heads: some of a phone's, so that the chosen one is in sight below; for sorted ones what is left of the window beside them, for layers most of it. */
const roomOf = (isSorted) => Math.max(220, isOneColumn() ? 0.28 * innerHeight : isSorted ? Math.min(innerHeight, 1000) - (innerWidth > 820 ? 270 : 460) : 0.7 * innerHeight);

/** Show sorted heads further down or up, by rows. */
export function scrollHeads(page, rows) {
  const { order, grid, state } = page;
  if (!state.sort || !order) return;
  const last = Math.max(0, Math.ceil((order.length - grid.shown) / grid.across));
  page.firstShown = Math.min(last, Math.max(0, Math.round(page.firstShown / grid.across) + rows)) * grid.across;
  drawGrid(page);
}

/** Whether there are sorted heads further down, or up if `by` is negative. */
export const canScroll = ({ order, grid, state, firstShown }, by) => Boolean(state.sort && order) && (by < 0 ? firstShown > 0 : firstShown + grid.shown < order.length);

/** Scroll to a head: the sorted list, or what is around the grid. */
function reveal(page, chosen) {
  const { across, shown, box } = page.grid;
  const [before, behind] = [page.firstShown - chosen, chosen - page.firstShown - shown];
  if (before > 0) scrollHeads(page, -Math.ceil(before / across));
  else if (behind >= 0) scrollHeads(page, Math.floor(behind / across) + 1);
  if (page.state.sort || !box) return;
  const [around, { top, left }] = [$("heads").getBoundingClientRect(), canvasIn("grid").getBoundingClientRect()];
  if ($("heads").scrollHeight > $("heads").clientHeight) {
    const [above, below] = [around.top + 8 - (top + box.y), top + box.y + box.side - (around.bottom - 8)];
    if (above > 0) $("heads").scrollTop -= above;
    else if (below > 0) $("heads").scrollTop += below;
  }
  const [start, end] = [around.left + 30 - (left + box.x), left + box.x + box.side - (around.right - 24)];
  if (start > 0) $("grid").scrollLeft -= start;
  else if (end > 0) $("grid").scrollLeft += end;
}

/** Say which of the sorted heads are shown, and let the buttons go further. */
function fillPager(page, first, shown) {
  const { order, state } = page;
  const isPart = Boolean(state.sort) && shown < order.length;
  $("pager").hidden = !isPart;
  if (!isPart) return;
  const last = Math.min(first + shown, order.length);
  $("heads-shown").textContent = `${grouped(first + 1)}–${grouped(last)} of ${grouped(order.length)}`;
  for (const id of ["heads-first", "heads-before"]) $(id).setAttribute("aria-disabled", String(first === 0));
  for (const id of ["heads-after", "heads-last"]) $(id).setAttribute("aria-disabled", String(last === order.length));
}

export function drawGrid(page) {
  const { stack, look, state } = page;
  const width = Math.max(200, $("grid").clientWidth);
  const graphs = stack.graphs;
  const sorted = `${stack.name}|${state.sort}`;
  if (page.sorted !== sorted) [page.sorted, page.firstShown] = [sorted, 0];
  const order = page.once("order", sorted, () => {
    const numbered = graphs.map((_, n) => n);
    const score = (n) => graphs[n].scores[state.sort] ?? -Infinity;
    return state.sort ? numbered.sort((a, b) => score(b) - score(a) || a - b) : numbered;
  });
  const show = state.show === "all three" ? "difference" : state.show;
  const isChange = show === "difference";
  const isSigned = isChange || graphs.some((graph) => graph.values.attention[0] < 0);
  const key = [stack.name, show, look.name, state.sort].join("|");
  const places = { size: order.length, headNames: stack.heads, layerNames: stack.layers, width, height: roomOf(Boolean(state.sort)), brackets: bracketsOf(page), isSorted: Boolean(state.sort) };
  const { shown } = gridSize(places);
  const first = page.firstShown;
  const drawn = `${key} ${state.layer}.${state.head} ${state.pins} ${first}+${shown} ${width} ${devicePixelRatio}`;
  if (!page.thumbnails || page.drawn === drawn) return;
  page.drawn = drawn;
  const { rows, columns } = page.thumbnails[0][stack.name];
  const isPooled = rows < stack.numQueries || columns < stack.keys.tokens.length;
  const name = isChange ? "change in attention" : isSigned ? "size of attention" : "attention";
  const scale = new Scale(isPooled ? `largest ${name} in a cell` : name, isChange ? -1 : 0, 1, true);
  const chosen = order.indexOf(graphs.indexOf(page.graph()));
  const pictures = page.once("cells", `${key}|${first}+${shown}`, () =>
    order.slice(first, first + shown).map((n) => ({ ...thumbnailOf(page, n, show, scale), layer: graphs[n].layer, head: graphs[n].head, isMarked: graphs[n].circuitEdges > 0, said: number(graphs[n].scores[state.sort]) })),
  );
  const cells = pictures.map((cell) => ({ ...cell, isPinned: state.pins?.includes(nameOf(cell)) }));
  page.order = order;
  page.grid = { ...headGrid({ ...places, cells, look, scale, chosen, first }), shown };
  drawInPlace(canvasIn("grid"), page.grid, look);
  fillPager(page, first, shown);
  noteHead(page, chosen);
  const option = $("grid-option");
  option.textContent = headText(graphs[order[chosen]]);
  option.setAttribute("aria-posinset", String(chosen + 1));
  option.setAttribute("aria-setsize", String(order.length));
  const head = `${stack.name} ${nameOf(state)}`;
  const isMoved = page.lastHead === undefined ? isOneColumn() : page.lastHead !== head;
  page.lastHead = head;
  if (isMoved) reveal(page, chosen);
}

function bracketsOf(page) {
  const { graphs, heads, layers } = page.stack;
  const of = heads.map((head) => graphs.find((graph) => graph.layer === layers[0] && graph.head === head)?.keyValueHead ?? null);
  const found = [];
  of.forEach((name, at) => {
    if (name === null) return;
    if (found.at(-1)?.name === name && found.at(-1).to === at - 1) found.at(-1).to = at;
    else found.push({ name, from: at, to: at });
  });
  return found;
}

/** Decode the image under the tokens, if there is one. */
export async function readImage(page) {
  const { header } = page;
  const { image } = header;
  const grey = image && (await page.bytes(image.block));
  if (image && header === page.header) page.image = { ...image, grey };
}

/** Decode the thumbnails of all graphs: of each trace, and of the change between two. */
export async function decodeThumbnails(page) {
  const { header } = page;
  const { block, size } = header.thumbnails;
  const bytes = await page.bytes(block);
  if (header !== page.header) return;
  let at = 0;
  const runs = page.traces.length > 1 ? [...page.traces, page.traces[0]] : page.traces;
  page.thumbnails = runs.map(({ stacks }) =>
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

function thumbnailOf(page, n, show, scale) {
  const { rows, columns, queries, shades } = page.thumbnails[["before", "after", "difference"].indexOf(show)][page.state.stack];
  const { keys, offset, graphs } = page.stackOf(show === "after" ? 1 : 0);
  const graph = graphs[n];
  const pixels = new Uint8ClampedArray(4 * rows * columns);
  for (let at = 0; at < rows * columns; at++) {
    const shade = shadeOf(shades[n][at], show === "difference");
    const lastQuery = Math.ceil(((Math.floor(at / columns) + 1) * queries) / rows) - 1;
    const firstKey = Math.floor(((at % columns) * keys.tokens.length) / columns);
    const isEdge = graph.pattern === "complete" || (graph.pattern === "causal" && firstKey <= lastQuery + offset);
    if (shade || isEdge) pixels.set([...scale.rgb(shade, page.look), 255], 4 * at);
  }
  return { rows, columns, pixels };
}

export function noteHead(page, n) {
  const graph = page.stack.graphs[page.order[n]];
  const { sort } = page.state;
  $("grid-note").textContent = graph ? `${headText(graph)}${sort ? ` · ${worded(sort)} ${number(graph.scores[sort])}` : ""}` : "";
}
