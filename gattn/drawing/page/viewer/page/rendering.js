// Renders a state.

import { SHOWN } from "../heads/state.js";
import { SINK } from "../heads/decoding.js";
import { windowed } from "../heads/regrouping.js";
import { choose } from "../heads/edges.js";
import { meanOf } from "../heads/layers.js";
import { Scale } from "../scenes/colours.js";
import { foundIn, ofHead, withMarked } from "../circuit/edges.js";
import { $, complain } from "./elements.js";
import { describe } from "./describing.js";
import { speak } from "./numbers.js";
import { drawView } from "./view.js";
import { drawGrid } from "./thumbnails.js";
import { dress, fillControls } from "./controls.js";

export async function render(page) {
  const run = ++page.run;
  fillControls(page);
  describe(page);
  dress(page);
  drawGrid(page);
  $("view").setAttribute("aria-busy", "true");
  try {
    const parts = [...new Set([...SHOWN.slice(0, page.traces.length), ...page.parts])];
    const all = await Promise.all(parts.map((part) => page.headOf(part)));
    const reference = all[page.state.show === "after" ? 1 : 0];
    if (run !== page.run) return;
    const hidden = page.hiddenOf(reference, all);
    const prepared = all.map((head) => page.prepared(head, hidden));
    const of = (part) => prepared[parts.indexOf(part)];
    page.heads = page.parts.map(of);
    page.hiddenNames = [...hidden].map((k) => reference.keys[k] ?? SINK);
    const { keys, queries } = page.limits();
    page.windows = page.heads.map((head) => windowed(head, keys, queries));
    const layers = page.state.view === "layered" ? await averagedLayers(page, run, hidden) : null;
    const asked = await page.explained();
    if (run !== page.run) return;
    page.asked = asked;
    page.layers = layers;
    page.marked = page.windows.map((head) => foundIn(head, ofHead(page.circuit, page.state)));
    page.choices = page.isWhole ? [] : page.windows.map((head, i) => withMarked(choose(head, { ...page.state, ...(page.isShaded && { threshold: null, top: 0 }), isDense: page.isDense }), page.marked[i].marked));
    const runs = prepared.filter((head) => !head.isChange);
    page.scales = page.heads.map((head) => Scale.of(head.isChange ? [head] : runs, page.state.weight));
    $("view").removeAttribute("aria-busy");
    drawView(page);
    speak(page);
    $("problem").hidden = true;
  } catch (problem) {
    if (run === page.run) couldNotShow(problem);
  }
}

export function couldNotShow(problem) {
  complain(`This could not be shown: ${problem.message}. To reset the page, remove everything after # in its address.`);
  $("view").removeAttribute("aria-busy");
}

/** Average all heads of each layer in small steps, until the state changes. */
async function averagedLayers(page, run, hidden) {
  const { words: merge, special, show } = page.state;
  const key = [page.state.stack, show, merge, special, [...hidden].join()].join("|");
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
      $("caption").textContent = `averaging heads: layer ${layer} of ${page.stack.layers.at(-1)}`;
      const heads = [];
      for (const graph of page.stack.graphs.filter((one) => one.layer === layer)) {
        heads.push(page.prepared(await page.headOf(part, graph), hidden));
        await pause();
        if (run !== page.run) return null;
      }
      layers.push(await meanOf(heads, pause));
    }
    found.push(layers);
  }
  page.memory.set("layers", { key, value: found });
  return found;
}
