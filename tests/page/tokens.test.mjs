import assert from "node:assert/strict";
import test from "node:test";
import * as viewer from "./viewer.mjs";
import { LOOKS, dense, floats, headOf, planes, tokens } from "./samples.mjs";

const MATRIX = [
  [0.4, 0.1, 0.2, 0.3],
  [0.25, 0.25, 0.25, 0.25],
  [0.1, 0.2, 0.3, 0.4],
  [0, 0.5, 0.5, 0],
];
const SPANS = [[0, 2], [2, 4]];
const head = () => headOf(MATRIX, tokens(["a", "b", "c", "d"]));

test("what a part reads of a part is its share of the attention", () => {
  const shares = viewer.sharesOf(head(), SPANS);
  const close = (found, expected) => assert.ok(Math.abs(found - expected) < 1e-6, `${found} is not ${expected}`);
  close(shares[0][0], 1 / 2);
  close(shares[0][1], 1 / 2);
  close(shares[1][0], 0.8 / 2);
  close(shares[1][1], 1.2 / 2);
  assert.equal(viewer.sharesOf(head(), [[0, 1]]).length, 1);
});

test("a share is of all attention, dropped edges included; a part without queries has none", () => {
  const part = headOf([[0.4, null, 0.2, null]], tokens(["a", "b", "c", "d"]));
  part.mass[0] = 1;
  const shares = viewer.sharesOf(part, SPANS);
  assert.deepEqual(shares[0].map((x) => Number(x.toFixed(6))), [0.4, 0.2]);
  assert.ok(Number.isNaN(shares[1][0]));
});

test("the pair in view is known by its ranges", () => {
  assert.equal(viewer.pairInView(SPANS, { queries: [0, 2], keys: [2, 4] }), "0-1");
  assert.equal(viewer.pairInView(SPANS, { queries: [2, 4], keys: [2, 4] }), "1-1");
  assert.equal(viewer.pairInView(SPANS, { queries: null, keys: null }), "");
  assert.equal(viewer.pairInView(SPANS, { queries: [0, 2], keys: null }), "");
  assert.equal(viewer.pairInView(SPANS, { queries: [0, 2], keys: [1, 4] }), "");
  assert.deepEqual([0, 1, 25].map(viewer.spanName), ["A", "B", "Z"]);
});

test("a block has the edges of its queries on its keys, on the tokens of both", () => {
  const part = viewer.blockOf(head(), [3, 4], [0, 2]);
  assert.deepEqual(part.keys.map(({ text }) => text), ["a", "b", "d"]);
  assert.deepEqual(part.queries.map(({ text }) => text), ["a", "b"]);
  assert.deepEqual(dense(part), [[null, null, 0.3], [null, null, 0.25]]);
  assert.deepEqual([...part.rowNode], [0, 1]);
  assert.equal(part.numKeys, 1);
  assert.deepEqual([...part.mass].map((x) => Number(x.toFixed(6))), [1, 1]);
});

test("a block keeps the sink outside the text", () => {
  const sunk = headOf(MATRIX.map((row) => [...row, 0.5]), tokens(["a", "b", "c", "d"]));
  const part = viewer.blockOf(sunk, [0, 1], [2, 4]);
  assert.deepEqual(part.keys.map(({ text }) => text), ["a", "c", "d", "<sink>"]);
  assert.deepEqual(dense(part), [[0.1, null, null, 0.5], [0, null, null, 0.5]]);
});

test("tokens are coloured on the scale of their numbers; words by their mean", () => {
  const tint = viewer.tintOf("surprisal", [1, 3, null, -1], LOOKS.light);
  const at = (index, last) => tint.valueOf({ index, last, virtual: false });
  assert.deepEqual([tint.scale.low, tint.scale.high, tint.scale.isSigned], [-3, 3, true]);
  assert.deepEqual([at(0), at(1), at(0, 1), at(1, 2), at(3)], [1, 3, 2, 3, -1]);
  assert.ok(Number.isNaN(at(2)));
  assert.equal(tint.rgbOf({ index: 2, virtual: false }), null);
  assert.equal(tint.rgbOf({ index: -1, virtual: true }), null);
  const share = viewer.tintOf("probability", [null, 0.2, 0.4], LOOKS.light);
  assert.deepEqual([share.scale.low, share.scale.high], [0, 1]);
  const same = viewer.tintOf("x", [5, 5], LOOKS.light);
  assert.deepEqual([same.scale.low, same.scale.high], [5, 6]);
  assert.equal(viewer.tintOf("", undefined, LOOKS.light), null);
});

test("coloured labels stand on their colour", () => {
  const tint = viewer.tintOf("x", [0, 1, 0, 0], LOOKS.light);
  const marks = viewer.arcs({ head: head(), chosen: { edges: [0] }, focus: null, weight: "attention", threshold: 0, scale: viewer.Scale.of([head()], "attention"), look: LOOKS.light, matches: new Set(), width: 400, height: 300, tint }).marks;
  const at = marks.findIndex(({ mark, text }) => mark === "text" && text === "b");
  assert.equal(marks[at - 1].mark, "rect");
  assert.equal(marks[at - 1].fill, `rgb(${LOOKS.light.unsigned[255].join(",")})`);
});

test("how probable a token was, and who said so", () => {
  const some = tokens(["a", "b", "c"]);
  const next = { shift: 1, probability: [null, 0.5, 0.25] };
  assert.equal(viewer.probabilityText(next, some, 0), "");
  assert.equal(viewer.probabilityText(next, some, 2), "probability 0.25, predicted at position 1");
  assert.equal(viewer.probabilityText({ ...next, shift: 0 }, some, 1), "probability 0.5, predicted in its own place");
});

test("elements are products of the whole vectors, the largest first, and sum to the score", () => {
  const MIDDLE = 32767;
  const side = (vectors) => {
    const steps = vectors.flat().map((vector) => Math.fround(Math.max(...vector.map(Math.abs)) / MIDDLE));
    const codes = vectors.flat().flatMap((vector, n) => vector.map((x) => Math.round(x / (steps[n] || 1)) + MIDDLE));
    return Buffer.concat([floats(steps), planes(codes, 2)]);
  };
  const entry = { parts: ["wte", "0.1"], queries: [3], keys: [0], dim: 2, added: true, softcap: null };
  const decoded = viewer.decodeParts(Buffer.concat([side([[[1, 2]], [[-3, 0.5]]]), side([[[1, 0]], [[2, 2]]]), floats([-7])]), entry);
  const { rows, total } = viewer.elementsOf(entry, decoded, 3, 0);
  assert.deepEqual(rows.map(({ query }) => query), ["added", "element 0", "element 1"]);
  [-7, -6, 5].forEach((score, n) => assert.ok(Math.abs(rows[n].score - score) < 1e-3));
  assert.ok(Math.abs(total + 8) < 1e-3);
  assert.ok(Math.abs(total - viewer.pairsOf(entry, decoded, 3, 0).total) < 1e-9);
});
