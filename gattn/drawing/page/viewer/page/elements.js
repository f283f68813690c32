// Finds, makes and fills elements of the document, or of the part of one that the page is in.

import { partSaid, spelled } from "../heads/texts.js";

/**
 * Where the page is: its `root`, the outermost element (`frame`), whether it is small (`isCompact`), its address
 * (`read`, `write`, and `listen` for changes from outside), its blocks of numbers (`block`) and whether all are there
 * (`check`); who is told of problems (`complained`), what to do about them (`advice`), and the versions of data and
 * script, if they may differ. Set when it starts.
 */
export const host = {};

export const $ = (id) => host.root.getElementById(id);

export const canvasIn = (id) => $(id).querySelector("canvas");

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Write a token, after its position where names repeat, into its own element, which isolates its writing direction. */
export function tokenElement(token) {
  const place = element("small");
  place.textContent = token.isNumbered ? `${token.position} ` : "";
  const name = element("bdi", { dir: "auto" });
  name.textContent = spelled(token, 48);
  const more = element("small");
  const facts = [partSaid(token), ...["generated", "special"].filter((fact) => token[fact])].filter(Boolean);
  more.textContent = facts.length ? ` ${facts.join(" · ")}` : "";
  return [place, name, more];
}

export function complain(problem) {
  $("problem").textContent = problem;
  $("problem").hidden = false;
  host.complained(problem);
}
