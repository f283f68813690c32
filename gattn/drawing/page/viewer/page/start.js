// Starts the page.

import { measureWith } from "../heads/texts.js";
import { measurer } from "../scenes/drawing.js";
import { $, complain, host } from "./elements.js";
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

/** Start a page from its header, where it is; return it, or null if its format is another. */
export function start(header, where) {
  Object.assign(host, where);
  if (header.format !== FORMAT) {
    complain(`The data of this page has format ${header.format}, but its script reads format ${FORMAT}: write the page again with one version of gattn.`);
    return null;
  }
  for (const id of ["skip", "tools", "main"]) if ($(id)) $(id).hidden = false;
  const page = new Page(header, render);
  begin(page);
  return page;
}
