// Starts a page that is a file of its own: its data is in the document, its state in the address.

import { start } from "./start.js";

const OWN = {
  isCompact: globalThis.parent !== globalThis,
  read: () => location.hash,
  write(fragment) {
    try {
      history.replaceState(null, "", `#${fragment}`);
    } catch {
      // A frame without an address, as in a notebook, keeps its state to itself.
    }
  },
  listen: (changed) => addEventListener("hashchange", changed),
  address: () => (location.protocol === "about:" ? "" : location.href.replace(/#.*/, "")),
  block: (number) => document.getElementById(`gattn-block-${number}`).textContent,
};

/** Replace the picture, which stands for the page where no script runs, by the page. */
function startAlone() {
  const header = JSON.parse(document.getElementById("gattn-header").textContent);
  const page = start(header, { ...OWN, root: document, frame: document.documentElement });
  if (page) document.getElementById("still").remove();
}

if (globalThis.document?.getElementById("gattn-header")) startAlone();
