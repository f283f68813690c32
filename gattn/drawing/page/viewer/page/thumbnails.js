// Draws the grid of all heads from their thumbnails.

import { grouped, number } from "../heads/texts.js";
import { bytesOf, inflate } from "../heads/decoding.js";
import { Scale } from "../scenes/colours.js";
import { headGrid, shadeOf } from "../scenes/grid.js";
import { drawInPlace } from "../scenes/drawing.js";
import { $, canvasIn } from "./elements.js";
import { headText } from "./describing.js";

const MOST_SORTED = 120;

export function drawGrid(page) {
  const { stack, look, state } = page;
  const width = Math.max(200, $("grid").clientWidth);
  const graphs = stack.graphs;
  const order = page.once("order", `${stack.name}|${state.sort}`, () => {
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
  if (!page.thumbnails || page.drawn === drawn) return;
  page.drawn = drawn;
  const chosen = order.indexOf(graphs.indexOf(page.graph()));
  const first = state.sort ? Math.floor(chosen / MOST_SORTED) * MOST_SORTED : 0;
  const shown = state.sort ? order.slice(first, first + MOST_SORTED) : order;
  const cells = page.once("cells", `${key}|${first}`, () =>
    shown.map((n) => ({ ...thumbnailOf(page, n, show, scale), layer: graphs[n].layer, head: graphs[n].head, isMarked: graphs[n].circuitEdges > 0, said: number(graphs[n].scores[state.sort]) })),
  );
  page.order = order;
  page.grid = headGrid({ cells, layerNames: stack.layers, headNames: stack.heads, look, width, scale, chosen, first, brackets: bracketsOf(page), isSorted: Boolean(state.sort) });
  page.pageOfHeads = shown.length < order.length ? ` · heads ${first + 1} to ${first + shown.length} of ${grouped(order.length)}` : "";
  drawInPlace(canvasIn("grid"), page.grid, look);
  noteHead(page, chosen);
  const option = $("grid-option");
  option.textContent = headText(graphs[order[chosen]]);
  option.setAttribute("aria-posinset", String(chosen + 1));
  option.setAttribute("aria-setsize", String(order.length));
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

/** Decode the thumbnails of all graphs: of each trace, and of the change between two. */
export async function decodeThumbnails(page) {
  const { block, size } = page.header.thumbnails;
  const bytes = await inflate(bytesOf($(`gattn-block-${block}`).textContent));
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
  $("grid-note").textContent = graph ? `${headText(graph)}${sort ? ` · ${sort.replaceAll("_", " ")} ${number(graph.scores[sort])}${page.pageOfHeads}` : ""}` : "";
}
