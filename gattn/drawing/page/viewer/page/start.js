// Starts the page, if the document has its data.

import { visible } from "../heads/texts.js";
import { $, complain, element } from "./elements.js";
import { Page } from "./page.js";
import { decodeThumbnails } from "./thumbnails.js";
import { dress } from "./controls.js";
import { couldNotShow, render } from "./rendering.js";
import { listenToControls } from "./keyboard.js";
import { listenToGrid, listenToView } from "./pointer.js";

const FORMAT = 1;

function noteFile(page) {
  const notes = [...page.header.notes, `made by gattn ${page.header.version}; this file makes no network requests`];
  $("notes").replaceChildren(...notes.map((note) => element("li", {}, visible(note, 400))));
}

async function begin(page) {
  if (window.parent !== window) document.documentElement.classList.add("compact");
  $("copy").hidden = location.protocol === "about:";
  dress(page);
  listenToControls(page);
  listenToView(page);
  listenToGrid(page);
  noteFile(page);
  try {
    await decodeThumbnails(page);
    await page.readImage();
  } catch (problem) {
    return couldNotShow(problem);
  }
  await page.render();
}

if (typeof document !== "undefined" && $("gattn-header")) {
  const header = JSON.parse($("gattn-header").textContent);
  if (header.format === FORMAT) begin(new Page(header, render));
  else complain(`The data of this page has format ${header.format}, but its script reads format ${FORMAT}: write the page again with one version of gattn.`);
}
