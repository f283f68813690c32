// Checks what a component is given: errors say what was expected, what arrived, and what to do.

const PAYLOAD = "what gattn.drawing.to_payload wrote, {header, blocks}, as an object or as JSON";
const PARTS = ["format", "levels", "ramps", "notes", "traces", "thumbnails"];

/** Name what arrived. */
function arrived(given) {
  if (given === null || given === undefined) return String(given);
  if (typeof given === "string") return `the text ${JSON.stringify(given.length > 60 ? `${given.slice(0, 60)}…` : given)}`;
  if (typeof given === "object") return Array.isArray(given) ? "an array" : `an object (${given.constructor?.name ?? "without a class"})`;
  return `the ${typeof given} ${String(given).slice(0, 60)}`;
}

/** The shadow root of an element, made if it has none. */
export function rootOf(element) {
  if (element?.nodeType !== 1) {
    const why = element === null || element === undefined ? "no element matched, or the script ran before it was there" : 'find it first, as in document.querySelector("#attention")';
    throw new TypeError(`mount(element, payload) expects an element of the document, but got ${arrived(element)}: ${why}.`);
  }
  try {
    return element.shadowRoot ?? element.attachShadow({ mode: "open" });
  } catch (problem) {
    throw new TypeError(`mount(element, payload) cannot show anything in <${element.localName}>, which can have no shadow root (${problem.message}): use a <div> or <gattn-view>.`);
  }
}

/** Read the fragment of a view: text, as in the address of a page. */
export function fragmentOf(given) {
  if (typeof given !== "string") throw new TypeError(`fragment is text such as "view=matrix&layer=2&head=1", but got ${arrived(given)}.`);
  return given.replace(/^#/, "");
}

/** Read the options of `mount`. */
export function optionsOf(given) {
  const known = ["fragment"];
  if (given === null || typeof given !== "object") throw new TypeError(`The options of mount(element, payload, options) are an object, as in { fragment: "layer=2&head=1" }, but got ${arrived(given)}.`);
  const unknown = Object.keys(given).find((name) => !known.includes(name));
  if (unknown) throw new TypeError(`mount(element, payload, options) has no option ${unknown}: it has ${known.join(", ")}.`);
  return { fragment: fragmentOf(given.fragment ?? "") };
}

function parsed(text) {
  if (!text.trim()) throw new TypeError(`The payload is empty: expected ${PAYLOAD}.`);
  if (text.trimStart().startsWith("<")) throw new TypeError(`The payload is no JSON but a document, ${arrived(text.trim())}, such as a server sends for a file that it does not have: expected ${PAYLOAD}.`);
  try {
    return JSON.parse(text);
  } catch (problem) {
    throw new TypeError(`The payload is no JSON (${problem.message}), of ${text.length} characters: it may have been cut or changed. Expected ${PAYLOAD}: write it again.`);
  }
}

/** The numbers of all blocks that a part of the header names. */
function blocksIn(part) {
  if (part === null || typeof part !== "object") return [];
  return Object.entries(part).flatMap(([name, value]) => (name === "block" && Number.isInteger(value) ? [value] : blocksIn(value)));
}

/** Read a payload: its header, and a block of text for each that the header names. */
export function payloadOf(given) {
  const payload = typeof given === "string" ? parsed(given) : given;
  if (typeof payload?.then === "function") throw new TypeError(`The payload is a promise: await it first. Expected ${PAYLOAD}.`);
  if (globalThis.Response && payload instanceof Response) throw new TypeError(`The payload is a response: pass await response.json(). Expected ${PAYLOAD}.`);
  if (payload === null || typeof payload !== "object" || Array.isArray(payload)) throw new TypeError(`Expected as payload ${PAYLOAD}, but got ${arrived(payload)}.`);
  const { header, blocks } = payload;
  const isWhole = header !== null && typeof header === "object" && Array.isArray(blocks);
  if (!isWhole) throw new TypeError(`Expected as payload ${PAYLOAD}, but got an object with ${Object.keys(payload).slice(0, 8).join(", ") || "nothing in it"}.`);
  if (!Number.isInteger(header.format)) throw new TypeError(`The header of the payload says no format: expected ${PAYLOAD}. Write it again.`);
  return { header, blocks };
}

/** Refuse a payload, of the format of this script, that is not whole. */
export function checkWhole({ header, blocks }) {
  for (const one of [header, ...(header.others ?? [])]) {
    const missing = PARTS.filter((name) => !(name in one));
    if (missing.length || !one.traces.length) throw new TypeError(`The header of the payload lacks ${missing.join(", ") || "traces"}: write it again by gattn.drawing.to_payload.`);
  }
  const lost = blocksIn(header).find((number) => typeof blocks[number] !== "string");
  if (lost !== undefined) throw new TypeError(`Block ${lost} of the payload is missing, of those that its header names; it has ${blocks.length}: write it again by gattn.drawing.to_payload, and pass all of it.`);
}
