// Renders a state.

import { SHOWN, nameOf } from "../heads/state.js";
import { SINK } from "../heads/decoding.js";
import { fillTokenControls } from "../tokens/choosing.js";
import { choose } from "../heads/edges.js";
import { meanOf, passedOn, ruleOf } from "../heads/layers.js";
import { Scale } from "../scenes/colours.js";
import { foundIn, ofHead, withMarked } from "../circuit/edges.js";
import { explained } from "../why/asking.js";
import { $, complain, host } from "./elements.js";
import { describe } from "./describing.js";
import { speak } from "./numbers.js";
import { drawView } from "./view.js";
import { decodeThumbnails, drawGrid, readImage } from "./thumbnails.js";
import { dress, fillControls, fillTitle } from "./controls.js";

/** Render a state; until its picture is there, the last one stays, with its heading. */
export async function render(page) {
  const run = ++page.run;
  fillControls(page);
  dress(page);
  drawGrid(page);
  $("view").setAttribute("aria-busy", "true");
  try {
    if (!page.thumbnails) {
      await readImage(page);
      await decodeThumbnails(page);
      if (run !== page.run) return;
      drawGrid(page);
    }
    const found = await foundView(page, run);
    if (run !== page.run) return;
    Object.assign(page, found);
    fillTokenControls(page);
    $("view").removeAttribute("aria-busy");
    fillTitle(page);
    describe(page);
    drawView(page);
    speak(page);
    $("problem").hidden = true;
  } catch (problem) {
    if (run === page.run) couldNotShow(problem);
  }
}

/** Draw what is shown anew, at once, in other colours. */
export function recolour(page) {
  dress(page);
  drawGrid(page);
  if (page.overlaid) page.overlaid = overlaidHeads(page, page);
  drawView(page);
}

export function couldNotShow(problem) {
  complain(`This could not be shown: ${problem.message}. ${host.advice}.`);
  $("view").removeAttribute("aria-busy");
}

/** Decode and choose what the view shows: one of each for each panel. */
async function foundView(page, run) {
  const { panels, parts, state } = page;
  const needed = [...new Set([...SHOWN.slice(0, page.traces.length), ...parts])];
  const places = [...new Set(panels.map(({ place }) => place))];
  const all = await Promise.all(places.map((place) => Promise.all(needed.map((part) => page.headOf(part, place)))));
  if (run !== page.run) return null;
  const reference = all[0][state.show === "after" ? 1 : 0];
  const hidden = page.hiddenOf(reference, all.flat());
  const prepared = all.map((heads) => heads.map((head) => page.prepared(head, hidden)));
  const heads = panels.map(({ place, part }) => prepared[places.indexOf(place)][needed.indexOf(part)]);
  const windows = heads.map((head) => page.windowOf(head));
  const marked = windows.map((head, i) => foundIn(head, ofHead(page.circuit, { ...state, ...panels[i].place })));
  const rule = { ...state, ...(page.isShaded && { threshold: null, top: 0 }), isDense: page.isDense };
  const choices = page.isWhole ? [] : windows.map((head, i) => withMarked(choose(head, rule), marked[i].marked));
  const scaleFor = (some) => some.length && Scale.of(some, state.weight);
  const [runs, changes] = [false, true].map((isChange) => scaleFor(prepared.flat().filter((head) => Boolean(head.isChange) === isChange)));
  const scales = heads.map((head) => (head.isChange ? changes : runs));
  const layers = state.view === "layered" ? await averagedLayers(page, run, { hidden, heads }) : null;
  const ruled = layers && page.once("ruled", [page.memory.get("layers").key, state.threshold, state.top].join(), () => layers.map((some) => ruleOf(some, state, some[0].isChange ? "mean change" : "mean attention")));
  const found = { heads, windows, marked, choices, scales, layers, ruled, asked: await explained(page) };
  return { ...found, overlaid: page.isOverlaid ? overlaidHeads(page, found) : null, hiddenNames: [...hidden].map((k) => reference.keys[k] ?? SINK) };
}

/** For each part of a comparison, the heads that are drawn over each other, a colour each. */
function overlaidHeads(page, { windows, choices, marked }) {
  const { hues } = page.look;
  const hue = (place) => hues.at((page.state.pins ?? []).indexOf(nameOf(place)));
  return page.parts.map((part) =>
    page.panels.flatMap((panel, i) => (panel.part === part ? [{ head: windows[i], chosen: choices[i], marked: marked[i].marked, hue: hue(panel.place), name: nameOf(panel.place) }] : [])),
  );
}

/** Average the heads in view of each layer in small steps, until the state changes. */
async function averagedLayers(page, run, { hidden, heads: [{ keys }] }) {
  const { words: merge, special, show, pins } = page.state;
  const names = new Set(page.places.map(nameOf));
  const key = [page.state.stack, show, merge, special, [...hidden].join(), pins ? [...names].join() : ""].join("|");
  if (page.memory.get("layers")?.key === key) return page.memory.get("layers").value;
  const found = [];
  let last = performance.now();
  const pause = async () => {
    if (performance.now() - last < 16) return;
    await new Promise((done) => setTimeout(done));
    last = performance.now();
  };
  for (const part of page.parts) {
    const layers = [];
    for (const layer of page.stack.layers) {
      if (run !== page.run) return null;
      $("caption").textContent = `averaging heads: layer ${layer} of ${page.stack.layers.at(-1)}`;
      const heads = [];
      for (const graph of page.stack.graphs.filter((one) => one.layer === layer && names.has(nameOf(one)))) {
        heads.push(page.prepared(await page.headOf(part, graph), hidden));
        await pause();
        if (run !== page.run) return null;
      }
      layers.push(heads.length ? await meanOf(heads, pause) : passedOn(keys.filter((token) => !token.virtual).length, part === "difference"));
    }
    found.push(layers);
  }
  page.memory.set("layers", { key, value: found });
  return found;
}
