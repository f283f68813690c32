// Starts a page that is a file of its own: its data is in the document, its state in the address.

import { complain, host } from "./elements.js";
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
  check: () => {},
  complained: () => {},
  advice: "To reset the page, remove everything after # in its address",
  versions: "",
  block: (number) => document.getElementById(`gattn-block-${number}`).textContent,
};

/** Replace the picture, which stands for the page where no script runs, by the page. */
function startAlone() {
  const where = { ...OWN, root: document, frame: document.documentElement };
  Object.assign(host, where);
  try {
    start(JSON.parse(document.getElementById("gattn-header").textContent), where);
    document.getElementById("still").remove();
  } catch (problem) {
    complain(`${problem.message.trim()} This file was changed after it was written, or not written whole: write it again.`);
  }
}

if (globalThis.document?.getElementById("gattn-header")) startAlone();
