// Draws the view of the chosen head, and writes its caption.

import { grouped, isolated, number } from "../heads/texts.js";
import { groundOf, nameOf } from "../heads/state.js";
import { caption } from "../heads/edges.js";
import { rollout } from "../heads/layers.js";
import { Scale } from "../scenes/colours.js";
import { KEY_HEIGHT, named, scaleMarks } from "../scenes/marks.js";
import { arcs } from "../scenes/arcs.js";
import { columns } from "../scenes/columns.js";
import { matrix } from "../scenes/matrix.js";
import { textView } from "../scenes/passage.js";
import { patches } from "../scenes/patches.js";
import { nodes } from "../scenes/nodes.js";
import { layered } from "../scenes/layered.js";
import { tiled, withLegend } from "../scenes/frames.js";
import { drawInPlace } from "../scenes/drawing.js";
import { searched } from "../heads/search.js";
import { countText } from "../circuit/edges.js";
import { circuitScene, rangeOf } from "../circuit/scene.js";
import { $, canvasIn } from "./elements.js";
import { headText, keptText, meanText } from "./describing.js";
import { matchesIn } from "./finding.js";
import { fillNumbers } from "./numbers.js";

const UNMARKED = ["text", "grid"]; // They show one number per token, and no edges.
const SCENES = { arcs, columns, matrix, text: textView, grid: patches, layout: nodes };

/** Draw a panel, or several heads over each other in its place. */
function sceneOf(page, i, width, height, overlaid = null) {
  const head = overlaid ? overlaid.map((one) => one.head).reduce((most, one) => (one.keys.length > most.keys.length ? one : most)) : page.windows[i];
  const { weight, threshold, view } = page.state;
  const matches = new Set(matchesIn(page, head));
  const common = { weight, threshold, look: page.look, matches, width, height, tint: page.tint };
  if (view === "layered") return layeredScene(page, i, common);
  const focus = page.lookedAt(head);
  const scale = focus ? page.scales[i].forFew() : page.scales[i];
  const shown = view === "places" ? groundOf(page.stack) : view;
  const { marked, size } = page.marked[i];
  const scene = SCENES[shown]({ ...common, stack: page.stack, image: page.image, head, focus, scale, marked, chosen: page.choices[i], overlaid });
  const tinted = page.tint && view !== "text" ? `; labels coloured by ${page.tint.scale.label}, ${number(page.tint.scale.low)} to ${number(page.tint.scale.high)}` : "";
  const own = scene.added ? `; and ${grouped(scene.added)} more, the strongest of this ${page.stack.noun}` : "";
  const inCircuit = page.circuit && !overlaid ? `; ${countText(page.graph(0, page.panels[i].place).circuitEdges, UNMARKED.includes(shown) ? 0 : size)}` : "";
  const edges = overlaid ? overlaid.map((one) => `head ${one.name}: ${caption(one.head, one.chosen)}`).join(" · ") : caption(head, page.choices[i]);
  const said = { ...scene, caption: edges + own + inCircuit + tinted };
  return tinted ? withTintKey(said, page.tint.scale, page.look) : said;
}

/** Add the scale of the colours of labels below a scene. */
function withTintKey(scene, scale, look) {
  return { ...scene, height: scene.height + KEY_HEIGHT, marks: [...scene.marks, ...scaleMarks({ scale, look }, 13, scene.height + 4, false)] };
}

/** The whole circuit: the same in all parts of a comparison. */
function sceneOfCircuit(page, width, height) {
  const [low, high] = rangeOf(page.circuit);
  const scale = new Scale(page.circuit.size === "loss" ? page.circuit.lost : "attention", low, high, true, page.circuit.columns);
  const matches = new Set(page.shownCircuit.bands.flatMap((tokens) => searched(tokens, page.state.search).flat()));
  return circuitScene({ ...page.shownCircuit, look: page.look, matches, focus: null, pointed: page.edge, scale, width, height });
}

function layeredScene(page, i, common) {
  const { isChange } = page.heads[i];
  const [layers, tokens] = [page.layers[i], page.heads[i].keys.filter((token) => !token.virtual)];
  const { keys } = page.limits();
  const inside = tokens.flatMap((token, n) => (!keys || (token.index >= keys[0] && token.index < keys[1]) ? [n] : []));
  const range = [inside[0] ?? 0, (inside.at(-1) ?? -1) + 1];
  const focus = page.lookedAt(page.heads[i]);
  const token = focus && focus.key >= 0 && focus.key < tokens.length ? focus.key : null;
  const { level } = page;
  const isSigned = layers.some((layer) => layer.isSigned);
  const key = `${token} ${level} ${page.memory.get("layers").key}`;
  const traced = token === null || isSigned || !page.isConsecutive ? null : page.once(`rollout ${i}`, key, () => rollout(layers, level, token));
  page.traced[i] = traced;
  const flows = traced?.flows.map((flow) => flow.reduce((most, x) => Math.max(most, x), 0));
  const label = traced ? "share (rollout)" : isChange ? "mean change in attention" : "mean attention";
  const scale = new Scale(label, isSigned ? -1 : 0, flows ? Math.max(...flows, 0.01) : 1, true, tokens.length);
  const layerNames = page.stack.graphs.length > 1 ? page.stack.layers.map((layer) => `layer ${layer}`) : [page.stack.graphs[0].layerName];
  return layered({ ...common, layers, layerNames, tokens, range, level, token, traced, scale, ruled: page.ruled[i], of: meanText(page) });
}

export function wholeScene(page, width, height) {
  if (page.state.view === "circuit") return sceneOfCircuit(page, width, height);
  const { look, overlaid, parts } = page;
  const panels = overlaid ? parts.map((part) => ({ part, name: part })) : page.panels;
  const across = acrossOf(page, panels.length, width);
  const scenes = panels.map((_, i) => {
    const scene = sceneOf(page, i, Math.floor(width / across), height, overlaid?.[i]);
    return overlaid ? withLegend(scene, overlaid[i].map(({ name, hue }) => ({ name: headText(graphNamed(page, name)), hue })), look) : scene;
  });
  if (scenes.length === 1) return scenes[0];
  const captions = scenes.map((scene, i) => `${panels[i].name}: ${scene.caption}`);
  return { ...tiled(scenes, panels.map((panel) => titleOf(page, panel)), look, across), caption: captions.join(" · ") };
}

const graphNamed = (page, name) => page.stack.graphs.find((graph) => nameOf(graph) === name);

/** Title a panel: its head, if there are several, and its part of a comparison. */
function titleOf(page, { part, place }) {
  const head = place && !page.isWhole && page.places.length > 1 ? headText(page.graph(0, place)) : "";
  const said = page.parts.length > 1 ? (part === "difference" ? "difference: after − before" : part) : "";
  return [head, said].filter(Boolean).join(" · ");
}

const LEAST_WIDE = { matrix: 333, columns: 333 };
const LEAST_WIDE_LINES = 400;

/** How many panels fit side by side; the parts of a comparison stay in one row, or one below the other. */
function acrossOf({ state: { view }, parts, isWhole }, size, width) {
  const fit = Math.max(1, Math.floor(width / (LEAST_WIDE[view] ?? LEAST_WIDE_LINES)));
  if (parts.length > 1) return fit >= parts.length && LEAST_WIDE[view] ? parts.length : 1;
  return isWhole ? 1 : Math.min(fit, size);
}

/** Draw the view itself, without what is written below it. */
function paintView(page) {
  const width = Math.max(240, $("view").clientWidth);
  const around = page.state.view === "arcs" ? 430 : 330;
  const height = Math.min(760, Math.max(340, innerHeight - around));
  page.scene = wholeScene(page, width, height);
  drawInPlace(canvasIn("view"), page.scene, page.look);
  $("caption").textContent = captionOf(page);
}

export function drawView(page) {
  if (page.isBusy) return;
  paintView(page);
  fillNumbers(page, paintView);
}

export function captionOf(page) {
  if (page.state.view === "circuit") return page.scene.caption;
  const notes = [page.scene.caption, ...new Set(page.shownGraphs.map(keptText).filter(Boolean))];
  if (page.hiddenNames.length) {
    const some = page.hiddenNames.slice(0, 4).map((token) => isolated(named(token)));
    notes.push(`hidden: ${some.join(", ")}${page.hiddenNames.length > 4 ? ` and ${page.hiddenNames.length - 4} more` : ""}`);
  }
  const [shown, all] = [page.windows[0].queries.length, page.heads[0].queries.length];
  const [shownKeys, allKeys] = [page.windows[0].numKeys ?? page.windows[0].keys.length, page.heads[0].keys.length];
  if (shown < all || shownKeys < allKeys) notes.push(`${shown} of ${all} queries and ${shownKeys} of ${allKeys} keys are in view`);
  return notes.join("; ");
}
