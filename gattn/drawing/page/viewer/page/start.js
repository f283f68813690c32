// Starts the page.

import { measureWith } from "../heads/texts.js";
import { measurer } from "../scenes/drawing.js";
import { $, host } from "./elements.js";
import { Page } from "./page.js";
import { dress } from "./controls.js";
import { render } from "./rendering.js";
import { listenToControls } from "./keyboard.js";
import { listenToGrid, listenToView } from "./pointer.js";

const FORMAT = 1;

async function begin(page) {
  measureWith(measurer());
  host.frame.classList.toggle("compact", host.isCompact);
  const stacks = page.traces.flatMap((trace) => trace.stacks);
  host.frame.classList.toggle("single", stacks.flatMap(({ graphs }) => graphs).length === 1);
  $("copy").hidden = !host.address();
  dress(page);
  listenToControls(page);
  listenToView(page);
  listenToGrid(page);
  await page.render();
}

/** Start a page from its header, where it is; an error says that its format is another, or that it is not whole. */
export function start(header, where) {
  Object.assign(host, where);
  if (header.format !== FORMAT) throw new Error(`The data has format ${header.format}, but the script reads format ${FORMAT}: write both with one version of gattn. ${host.versions}`);
  host.check();
  for (const id of ["skip", "tools", "main"]) if ($(id)) $(id).hidden = false;
  const page = new Page(header, render);
  begin(page);
  return page;
}
