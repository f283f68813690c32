// Saves a picture, and copies the link to a view.

import { visible } from "../heads/texts.js";
import { toFragment } from "../heads/state.js";
import { framed } from "../scenes/frames.js";
import { draw, imageOf, toSVG } from "../scenes/drawing.js";
import { $, element, host } from "./elements.js";
import { editsText } from "./describing.js";
import { captionOf, wholeScene } from "./view.js";

function sceneToSave(page) {
  const { model } = page.traces[0];
  const title = [$("head-title").textContent, model && visible(model, 60), page.traces.length > 1 && page.parts.join(", "), editsText(page)];
  const hover = page.hover;
  page.hover = null;
  const scene = wholeScene(page, Math.max(560, $("view").clientWidth), 620);
  page.hover = hover;
  return framed(scene, title.filter(Boolean).join(" · "), captionOf(page), page.look);
}

export async function save(page, kind) {
  if (!page.scene || page.isBusy) return;
  const scene = sceneToSave(page);
  const { stack, layer, head, view, show } = page.state;
  const name = [stack, `${layer}.${head}`, view, ...(page.traces.length > 1 ? [show] : [])].join("-").replace(/[^\w.-]/g, "_") + `.${kind}`;
  if (kind === "svg") return download(name, new Blob([toSVG(scene, page.look, (mark) => imageOf(mark).toDataURL("image/png"))], { type: "image/svg+xml" }));
  const canvas = document.createElement("canvas");
  draw(canvas, scene, page.look, 2);
  download(name, await new Promise((done) => canvas.toBlob(done, "image/png")));
}

function download(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export async function copyLink(page) {
  const link = host.address() + `#${toFragment(page.saidState)}`;
  const say = (said) => {
    $("copy").textContent = said;
    setTimeout(() => ($("copy").textContent = "Copy link"), 1600);
  };
  try {
    await navigator.clipboard.writeText(link);
    say("Copied");
  } catch {
    say("In the address bar");
  }
}
