// Finds, makes and fills elements of the document.

import { spelled } from "../heads/texts.js";

export const $ = (id) => document.getElementById(id);

export const canvasIn = (id) => $(id).querySelector("canvas");

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Write a token into its own element, which isolates its writing direction. */
export function tokenElement(token) {
  const name = element("bdi", { dir: "auto" });
  name.textContent = spelled(token, 48);
  const place = element("small");
  place.textContent = token.virtual ? "" : ` ${token.position}${token.generated ? " · generated" : ""}${token.special ? " · special" : ""}`;
  return [name, place];
}

export function complain(problem) {
  $("problem").textContent = problem;
  $("problem").hidden = false;
}
