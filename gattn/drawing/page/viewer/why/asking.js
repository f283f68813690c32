// What the score of the edge that is asked about is made of.

import { askedHead } from "../heads/state.js";
import { placeIn, rowEdges } from "../heads/readings.js";
import { edgeName } from "../circuit/edges.js";
import { decodeParts, elementsOf, pairsOf } from "./parts.js";

/** Take the score of the edge asked about apart; null if none is. */
export async function explained(page) {
  const { view, edge, why, apart } = page.state;
  const found = view === "circuit" ? page.circuit.edges[edge] : why && page.canAsk ? { ...page.state, query: why[0], key: why[1] } : null;
  const entry = found && askedHead(page.header.why, found);
  if (!entry || !entry.queries.includes(found.query) || !entry.keys.includes(found.key)) return null;
  const ends = view === "circuit" ? edgeName(page.shownCircuit, found) : await endsOf(page, found);
  if (!ends) return null;
  const parts = await page.once("parts", entry.block, async () => decodeParts(await page.bytes(entry.block), entry));
  const name = `head ${found.layer}.${found.head}${page.traces.length > 1 ? " (before)" : ""}`;
  const takenApart = apart === "elements" ? elementsOf : pairsOf;
  return { ...takenApart(entry, parts, found.query, found.key), query: ends.query, key: ends.key, notes: entry.notes, name, apart };
}

/** The tokens of an edge of the head in view; null if the first run has no such edge. */
async function endsOf(page, { query, key }) {
  const head = await page.raw(0, page.graph());
  const place = placeIn(head, key, query);
  const isThere = rowEdges(head, place.row).some((e) => head.key[e] === place.key);
  return isThere ? { query: head.queries[place.row], key: head.keys[place.key] } : null;
}
