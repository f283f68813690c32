// Handles the pointer, in the view and in the grid.

import { $, canvasIn } from "./elements.js";
import { nameOf, withPin } from "../heads/state.js";
import { several } from "../heads/texts.js";
import { drawView } from "./view.js";
import { canScroll, noteHead, scrollHeads } from "./thumbnails.js";
import { zoom } from "./keyboard.js";

function pointIn(event, id) {
  const { left, top } = canvasIn(id).getBoundingClientRect();
  return [event.clientX - left, event.clientY - top];
}

function pointedAt(page, event) {
  const hit = page.scene?.hit(...pointIn(event, "view"));
  if (page.state.view === "circuit") return hit ?? null;
  const head = page.state.view === "layered" ? page.heads?.[0] : page.windows?.[0];
  if (!hit || !head) return null;
  return { key: head.keys[hit.key] ?? null, row: head.queries[hit.row] ?? null, isPair: hit.isPair ?? false, level: hit.level, panel: hit.panel ?? 0 };
}

/** Whether a picture takes too long to follow the pointer; then only clicks choose. */
function isHeavy(page) {
  return page.state.view === "layered" && (page.layers ?? []).flat().reduce((sum, { key }) => sum + key.length, 0) > 400_000;
}

export function listenToView(page) {
  let frame = 0;
  let start = null;
  const hover = (event) => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      if (!page.scene || page.isBusy) return;
      const before = page.hover;
      page.hover = isHeavy(page) ? null : pointedAt(page, event);
      const isUnmoved = before?.key === page.hover?.key && before?.row === page.hover?.row && before?.level === page.hover?.level && before?.edge === page.hover?.edge;
      if (!isUnmoved) drawView(page);
      if (start && dragged(page, start, page.hover)) $("caption").textContent = `release to show only these ${several(page.stack.noun)}`;
    });
  };
  $("view").addEventListener("pointermove", hover);
  $("view").addEventListener("pointerleave", () => {
    cancelAnimationFrame(frame);
    start = null;
    if (page.hover && page.scene) {
      page.hover = null;
      drawView(page);
    }
  });
  $("view").addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "touch" && !["places", "circuit"].includes(page.state.view)) start = { ...pointedAt(page, event), x: event.clientX, y: event.clientY };
  });
  $("view").addEventListener("pointerup", (event) => {
    const end = pointedAt(page, event);
    const patch = start && Math.hypot(event.clientX - start.x, event.clientY - start.y) > 12 && dragged(page, start, end);
    start = null;
    if (patch) return page.update(patch);
    if (page.state.view === "circuit") return page.update({ edge: end?.edge === page.state.edge ? null : (end?.edge ?? null) });
    const token = end?.row ?? end?.key;
    if (!token || token.virtual) return;
    const isOfChosen = !page.overlaid && page.panels[end.panel].isChosen;
    const why = end.isPair && isOfChosen ? page.pairOf(end.row, end.key) : null;
    const isAgain = page.state.token === token.index && (end.level ?? null) === (end.level === undefined ? null : page.state.level) && String(why) === String(page.state.why);
    page.chooseToken(isAgain ? { token: null } : { token: token.index, side: end.row ? "query" : "key", level: end.level ?? page.state.level, why });
  });
  $("view").addEventListener("dblclick", () => page.update({ keys: null, queries: null }));
  $("view").addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(page, event.deltaY > 0 ? 1.25 : 0.8, page.scene.place?.(...pointIn(event, "view")));
  }, { passive: false });
}

/** The ranges between the two ends of a drag, if it spans several tokens. */
function dragged(page, start, end) {
  const between = (a, b) => (a && b && !a.virtual && !b.virtual && a !== b ? [Math.min(a.index, b.index), Math.max(a.last ?? a.index, b.last ?? b.index) + 1] : null);
  const [keys, queries] = [between(start?.key, end?.key), between(start?.row, end?.row)];
  if (!keys && !queries) return null;
  return { keys: keys ?? page.state.keys, queries: queries ?? page.state.queries };
}

export function listenToGrid(page) {
  const pointed = (event) => page.grid?.hit(...pointIn(event, "grid")) ?? null;
  const chosen = () => page.order.indexOf(page.stack.graphs.indexOf(page.graph()));
  $("grid").addEventListener("pointermove", (event) => page.grid && noteHead(page, pointed(event) ?? chosen()));
  $("grid").addEventListener("pointerleave", () => page.grid && noteHead(page, chosen()));
  $("grid").addEventListener("click", (event) => {
    const n = pointed(event);
    if (n === null) return;
    const graph = page.stack.graphs[page.order[n]];
    if (event.ctrlKey || event.metaKey || event.shiftKey) return page.update({ pins: withPin(page.state.pins, nameOf(graph)) });
    page.update({ layer: graph.layer, head: graph.head });
  });
  let rolled = 0;
  $("grid").addEventListener("wheel", (event) => {
    if (event.ctrlKey || !canScroll(page, event.deltaY)) return;
    event.preventDefault(); // at the ends, what is around scrolls
    rolled += event.deltaY * (event.deltaMode ? 30 : 1);
    const rows = Math.trunc(rolled / page.grid.down);
    rolled -= rows * page.grid.down;
    if (rows) scrollHeads(page, rows);
  }, { passive: false });
}
