import assert from "node:assert/strict";
import test from "node:test";
import * as viewer from "./viewer.mjs";
import { LOOKS, floats, planes } from "./samples.mjs";

const MIDDLE = 32767;

/** Write parts × tokens × dim as steps and codes. */
function side(vectors) {
  const steps = vectors.flat().map((vector) => Math.fround(Math.max(...vector.map(Math.abs)) / MIDDLE));
  const codes = vectors.flat().flatMap((vector, n) => vector.map((x) => Math.round(x / (steps[n] || 1)) + MIDDLE));
  return Buffer.concat([floats(steps), planes(codes, 2)]);
}

const entry = { parts: ["wte", "0.1"], queries: [3, 4], keys: [0, 2, 5], dim: 2, added: false };
const queries = [[[1, 2], [0, 0]], [[-1, 0.5], [3, 1]]];
const keys = [[[1, 0], [0, 1], [2, 2]], [[-4, 1], [1e-6, 2e-6], [0, 0]]];
const close = (found, expected) => assert.ok(Math.abs(found - expected) < 1e-3, `${found} is not ${expected}`);

test("vectors are decoded to within half a step of their own", () => {
  const found = viewer.decodeParts(Buffer.concat([side(queries), side(keys)]), entry);
  for (const [name, some] of [["queries", queries], ["keys", keys]])
    some.forEach((part, a) =>
      part.forEach((vector, i) => {
        const step = Math.max(...vector.map(Math.abs)) / MIDDLE;
        vector.forEach((x, n) => assert.ok(Math.abs(x - found[name](a, i)[n]) <= 0.51 * step));
      }),
    );
  assert.equal(found.added, null);
});

test("pairs are products of parts, the largest first, and sum to the score", () => {
  const decoded = viewer.decodeParts(Buffer.concat([side(queries), side(keys)]), entry);
  const { rows, total } = viewer.pairsOf(entry, decoded, 3, 0);
  assert.deepEqual(rows.map(({ query, key }) => `${query} ${key}`), ["0.1 0.1", "wte 0.1", "wte wte", "0.1 wte"]);
  [4.5, -2, 1, -1].forEach((score, n) => close(rows[n].score, score));
  close(total, 2.5);
  close(viewer.pairsOf(entry, decoded, 4, 5).total, 8);
});

test("what the model adds to a score is a pair of its own", () => {
  const added = [0, 0, 0, 0, -7, 0];
  const decoded = viewer.decodeParts(Buffer.concat([side(queries), side(keys), floats(added)]), { ...entry, added: true });
  const { rows, total } = viewer.pairsOf(entry, decoded, 4, 2);
  assert.deepEqual(rows[0], { query: "added", key: "added", score: -7 });
  assert.equal(rows.length, 5);
  close(total, -6);
});

test("what a soft cap takes off a score is a pair of its own, before what is added", () => {
  const capped = { ...entry, added: true, softcap: 5 };
  const decoded = viewer.decodeParts(Buffer.concat([side(queries), side(keys), floats([0, 0, 0, 0, -7, 0])]), capped);
  const { rows, total } = viewer.pairsOf(capped, decoded, 4, 5);
  close(rows.find(({ query }) => query === "soft cap").score, 5 * Math.tanh(8 / 5) - 8);
  close(total, 5 * Math.tanh(8 / 5));
  close(viewer.pairsOf(capped, decoded, 4, 2).total, 5 * Math.tanh(1 / 5) - 7);
});

test("an edge is asked about only if the page has its parts", () => {
  const stack = { name: "decoder", layers: [0], heads: [0, 1], keys: { tokens: [..."abcdef"], places: null }, queries: null };
  const graphs = [0, 1].map((head) => ({ layer: 0, head, scores: {}, values: { attention: [0, 1] }, circuitEdges: 0 }));
  const traces = [{ stacks: [{ ...stack, graphs }] }];
  const why = [{ ...entry, stack: "decoder", layer: 0, head: 1 }];
  const fit = (state) => viewer.settled({ ...viewer.DEFAULTS, ...state }, traces, { circuit: null, why });
  assert.equal(fit({}).head, 1, "it opens with a head that can be asked");
  assert.deepEqual(fit({ why: [4, 2] }).why, [4, 2]);
  assert.equal(fit({ why: [4, 1] }).why, null);
  assert.equal(fit({ why: [2, 2] }).why, null);
  assert.equal(fit({ why: [4, 2], layer: 0, head: 0 }).why, null);
  assert.deepEqual(viewer.fromFragment("#why=12-9").why, [12, 9]);
  assert.equal(viewer.fromFragment("#why=12").why, null);
  assert.equal(viewer.toFragment({ ...viewer.DEFAULTS, why: [12, 9] }), "why=12-9");
});

test("elements are bars in order, query and key on one scale and their products on theirs", () => {
  const decoded = viewer.decodeParts(Buffer.concat([side(queries), side(keys)]), entry);
  const found = viewer.elementsOf(entry, decoded, 3, 0);
  const elements = { query: [0, 2.5], key: [-3, 1] };
  for (const side of ["query", "key"]) elements[side].forEach((x, d) => close(found.elements[side][d], x));
  close(found.total, 2.5);
  for (const look of [LOOKS.light, LOOKS.dark]) {
    const { marks } = viewer.elementBars(elements, look, 500);
    const [minus, plus] = viewer.barColours(look);
    assert.notEqual(minus, plus);
    const bars = marks.filter(({ mark }) => mark === "rect");
    assert.deepEqual(bars.map(({ fill }) => fill), [plus, minus, plus, plus], "an element of 0 has no bar");
    const [ofQuery, ...ofKey] = bars;
    [ofQuery, ...ofKey.slice(0, 2)].forEach((bar, n) => close(bar.h, ([2.5, 3, 1][n] / 3) * 42));
    close(bars[3].h, 42);
    assert.ok(ofQuery.x > ofKey[0].x && ofQuery.x === ofKey[1].x, "an element stands at one place");
    close(ofKey[0].y, ofKey[1].y + ofKey[1].h, "bars begin at 0");
    const said = marks.filter(({ mark }) => mark === "text").map(({ text }) => text);
    for (const text of ["query", "key", "query × key", "3", "−3", "2.5", "−2.5"]) assert.ok(said.includes(text), text);
  }
});

test("many elements fit their width, and elements of nothing are no bars", () => {
  const many = { query: Array(256).fill(1), key: Array(256).fill(-1) };
  const { marks, width } = viewer.elementBars(many, LOOKS.light, 400);
  const bars = marks.filter(({ mark }) => mark === "rect");
  assert.equal(bars.length, 768);
  assert.ok(bars.every(({ x, w }) => w > 0 && x + w <= width));
  assert.equal(viewer.elementBars({ query: [0, 0], key: [0, 0] }, LOOKS.light, 400).marks.filter(({ mark }) => mark === "rect").length, 0);
});
