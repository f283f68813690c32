import assert from "node:assert/strict";
import { test } from "node:test";
import * as viewer from "./viewer.mjs";
import { LOOKS, causal, tokens } from "./samples.mjs";

const rises = (layers) => [...Array(layers + 1).keys()];
const edge = (from, to, more = {}) => ({ stack: "decoder", layer: from[1], head: 0, query: to[2], key: from[2], attention: 0.5, loss: 0.5, from, to, ...more });

function circuitOf(edges, { n = 6, layers = 3, bands = null } = {}) {
  const band = { stack: "decoder", isKeySide: false, tokens: [...Array(n).keys()], rises: rises(layers), left: 0, base: 0, hasNames: true };
  const units = null;
  return { edges, streams: [], units, size: "loss", lost: "lost without it", columns: n, isSeveral: (bands ?? []).length > 1, bands: bands ?? [band], caption: "", title: "" };
}

function pictureOf(circuit, more = {}) {
  const bands = circuit.bands.map(({ tokens: some }) => tokens(Array.from({ length: Math.max(...some) + 1 }, (_, i) => `t${i}`)));
  const scale = new viewer.Scale("loss", ...viewer.rangeOf(circuit), true, circuit.columns);
  return { circuit, bands, scale, look: LOOKS.light, matches: new Set(), focus: null, pointed: null, width: 800, height: 500, ...more };
}

const curves = (scene) => scene.marks.filter(({ mark }) => mark === "curves").flatMap(({ paths }) => paths);
const texts = (scene) => scene.marks.filter(({ mark }) => mark === "text").map(({ text }) => text);
const middle = ([a, b, c, d, e, f, g, h]) => [(a + 3 * c + 3 * e + g) / 8, (b + 3 * d + 3 * f + h) / 8];

test("every edge is a curve from its key up to its query", () => {
  const scene = viewer.circuitScene(pictureOf(circuitOf([edge([0, 0, 1], [0, 1, 4]), edge([0, 1, 4], [0, 2, 4])])));
  const [second, first] = curves(scene); // the least needed first
  assert.ok(first[1] > first[7] && first[0] < first[6]);
  assert.deepEqual(first.slice(6), second.slice(0, 2));
});

test("pointing at the middle of a curve finds its edge, and beside all of them none", () => {
  const edges = [edge([0, 0, 1], [0, 1, 4]), edge([0, 0, 1], [0, 1, 4], { head: 3 }), edge([0, 1, 4], [0, 2, 4]), edge([0, 2, 0], [0, 3, 5])];
  const scene = viewer.circuitScene(pictureOf(circuitOf(edges)));
  const paths = curves(scene).reverse();
  paths.forEach((path, n) => assert.deepEqual(scene.hit(...middle(path)), { edge: n }));
  assert.equal(scene.hit(5, 5), null);
});

test("edges of several heads between the same tokens are curves of their own, each with its name", () => {
  const between = [[0, 0, 1], [0, 1, 4]];
  const itself = [[0, 0, 2], [0, 1, 2]];
  const edges = [0, 1, 2].flatMap((head) => [between, itself].map(([from, to]) => edge(from, to, { head })));
  const scene = viewer.circuitScene(pictureOf(circuitOf(edges)));
  assert.equal(new Set(curves(scene).map(String)).size, edges.length);
  for (const name of ["0.0", "0.1", "0.2"]) assert.ok(texts(scene).includes(name), name);
});

test("an edge that joins two stacks says the name of its own", () => {
  const band = (stack, base) => ({ stack, name: stack, isKeySide: false, tokens: [0, 1, 2], rises: rises(2), left: 0, base, hasNames: true });
  const bands = [band("encoder", 0), band("decoder", 3)];
  const edges = [edge([1, 0, 0], [1, 1, 2]), edge([0, 2, 0], [1, 1, 2], { stack: "cross", layer: 0 })];
  const scene = viewer.circuitScene(pictureOf({ ...circuitOf(edges, { bands }), height: 5 }));
  for (const name of ["0.0", "cross 0.0"]) assert.equal(texts(scene).filter((text) => text === name).length, 1, name);
});

test("names of stacks end left of the lines, and each layer is written once", () => {
  const band = (name, more) => ({ stack: `decoder.${name}`, name, tokens: [0, 1], rises: rises(2), hasNames: true, ...more });
  const [own, cross] = ["decod…self_attn", "d…multihead_attn"];
  const bands = [band(own, { base: 0, left: 0 }), band(cross, { base: 3, left: 0, isKeySide: true }), band(cross, { base: 3, left: 3 })];
  for (const width of [340, 800]) {
    const scene = viewer.circuitScene(pictureOf({ ...circuitOf([edge([1, 0, 0], [2, 1, 1])], { bands, n: 5 }), height: 5 }, { width }));
    const left = Math.min(...scene.marks.filter(({ mark, y1, y2 }) => mark === "line" && y1 === y2).map(({ x1 }) => x1));
    for (const name of [own, cross]) {
      const [mark, ...more] = scene.marks.filter(({ text }) => text === name);
      assert.equal(more.length, 0, name);
      assert.ok(mark.x + viewer.textWidth(name, mark.size) < left, `${name} at ${width}`);
    }
    assert.equal(texts(scene).filter((text) => text === "layer 1").length, 2);
  }
});

test("everything lies in the picture, however many tokens and layers there are", () => {
  for (const [n, layers] of [[1, 1], [6, 3], [40, 24], [300, 2]]) {
    const edges = Array.from({ length: layers }, (_, l) => edge([0, l, 0], [0, l + 1, n - 1]));
    const scene = viewer.circuitScene(pictureOf(circuitOf(edges, { n, layers })));
    for (const mark of scene.marks.filter(({ mark: kind }) => kind === "curves"))
      for (const path of mark.paths) {
        assert.ok(path.every(Number.isFinite));
        assert.ok(path.filter((_, i) => i % 2 === 0).every((x) => x >= 0 && x <= scene.width), `${n} tokens`);
        assert.ok(path.filter((_, i) => i % 2).every((y) => y >= 0 && y <= scene.height), `${layers} layers`);
      }
  }
});

test("edges of many heads from the last token to itself lie in the picture, and so do their names", () => {
  for (const width of [340, 800])
    for (const size of [1, 4, 12]) {
      const edges = Array.from({ length: size }, (_, head) => edge([0, 0, 12], [0, 1, 12], { head }));
      const scene = viewer.circuitScene(pictureOf(circuitOf(edges, { n: 13, layers: 4 }), { width }));
      const found = curves(scene);
      assert.equal(new Set(found.map(String)).size, size);
      assert.ok(found.every((path) => middle(path)[0] <= width - 8));
      const names = scene.marks.filter(({ mark, text }) => mark === "text" && /^0\.\d+$/.test(text));
      assert.ok(names.length && names.every(({ x, text }) => x + viewer.textWidth(text, 11) / 2 <= width));
    }
});

test("stacks lie above each other in their order, with the tokens of each below it", () => {
  const band = (stack, base, size) => ({ stack, name: stack, isKeySide: false, tokens: [...Array(size).keys()], rises: rises(2), left: 0, base, hasNames: true });
  const edges = [edge([0, 0, 0], [0, 1, 3]), edge([0, 2, 3], [1, 1, 2]), edge([1, 1, 2], [1, 2, 2])];
  const circuit = circuitOf(edges, { n: 4, bands: [band("encoder", 0, 4), band("decoder", 3, 3)] });
  const scene = viewer.circuitScene(pictureOf(circuit));
  const [third, second, first] = curves(scene);
  assert.ok(first[7] > second[1] - 1 && second[1] > second[7] && second[7] >= third[1]);
  assert.deepEqual(texts(scene).filter((text) => /coder|layer/.test(text) && text.length < 9), ["encoder", "layer 0", "layer 1", "decoder", "layer 0", "layer 1"]);
  assert.equal(texts(scene).filter((text) => text === "t0").length, 2);
  const labels = scene.marks.filter(({ mark, text }) => mark === "text" && text === "t1").map(({ y }) => y);
  assert.ok(Math.min(...labels) < second[1], "the decoder's tokens lie above the encoder's top");
});

test("stacks whose layers ran in turn lie in one tier, layer by layer", () => {
  const band = (stack, more) => ({ stack, name: stack, isKeySide: false, tokens: [0, 1, 2], left: 0, base: 0, hasNames: false, ...more });
  const bands = [
    band("cross", { isKeySide: true, rises: [1, 3, 4], hasNames: true }),
    band("self", { rises: [0, 1, 3], left: 4, hasNames: true }),
    band("cross", { rises: [1, 2, 4], left: 4 }),
  ];
  const edges = [edge([1, 0, 0], [1, 1, 2]), edge([0, 0, 1], [2, 1, 2]), edge([1, 1, 2], [1, 2, 0]), edge([0, 1, 1], [2, 2, 0])];
  const scene = viewer.circuitScene(pictureOf(circuitOf(edges, { n: 7, bands })));
  const spans = curves(scene).reverse().map((path) => [path[1], path[7]]);
  spans.slice(1).forEach(([start], n) => assert.equal(start, spans[n][1], "each layer begins where the one before ends"));
  const said = scene.marks.filter(({ mark, x, text }) => mark === "text" && x === 8 && !/upwards|lost/.test(text)).sort((a, b) => b.y - a.y);
  assert.deepEqual(said.map(({ text }) => text).slice(-8), ["layer 0", "self", "layer 0", "cross", "layer 1", "self", "layer 1", "cross"]);
  assert.deepEqual(texts(scene).filter((text) => ["keys", "queries"].includes(text)).sort(), ["keys", "queries"]);
  for (const token of ["t0", "t1", "t2"]) assert.equal(texts(scene).filter((text) => text === token).length, 2);
});

test("on a phone the note above it has as many lines as it needs, above all curves", () => {
  const edges = [edge([0, 0, 1], [0, 1, 4]), edge([0, 2, 0], [0, 3, 5])];
  for (const [width, lines] of [[800, 1], [340, 2]]) {
    const scene = viewer.circuitScene(pictureOf(circuitOf(edges), { width }));
    const top = Math.min(...curves(scene).flatMap((path) => path.filter((_, i) => i % 2)));
    const notes = scene.marks.filter(({ mark, x, y }) => mark === "text" && x === 8 && y < top);
    assert.equal(notes.length, lines);
    assert.equal(notes.map(({ text }) => text).join(" "), "upwards: from key to query; curves are named by their heads");
    assert.ok(notes.every(({ text }) => viewer.textWidth(text, 11) <= width - 16));
  }
});

test("an empty circuit is a picture without curves", () => {
  const scene = viewer.circuitScene(pictureOf(circuitOf([])));
  assert.deepEqual(curves(scene), []);
  assert.equal(scene.hit(400, 200), null);
});

test("a loss that was not measured, or below zero, is drawn", () => {
  const edges = [edge([0, 0, 1], [0, 1, 4], { loss: -0.2 }), edge([0, 1, 4], [0, 2, 4], { loss: null })];
  const scene = viewer.circuitScene(pictureOf(circuitOf(edges)));
  assert.equal(curves(scene).length, 2);
  assert.ok(scene.marks.some(({ dash }) => dash));
});

test("edges of a circuit are found in a head, also where tokens merge or are hidden", () => {
  const head = causal(5, (i) => 1 / (i + 1), { words: [0, 0, 1, 2, 3] });
  const edges = [edge([0, 0, 1], [0, 1, 4]), edge([0, 0, 2], [0, 1, 3])];
  const ends = (some) => [...viewer.foundIn(some, edges).marked].map((e) => [some.keys[some.key[e]].text, some.queries[viewer.indexOf(some).row[e]].text]);
  assert.deepEqual(ends(head), [["t1", "t4"], ["t2", "t3"]]);
  const merged = viewer.regroup(head, viewer.groupsOf(head.keys, { merge: true }));
  assert.deepEqual(ends(merged), [["t0t1", "t4"], ["t2", "t3"]]);
  const hidden = viewer.regroup(head, viewer.groupsOf(head.keys, { hidden: new Set([2]) }));
  assert.deepEqual(ends(hidden), [["t1", "t4"]]);
});

test("a marked edge is shown whatever the threshold, and it is said", () => {
  const chosen = { edges: Uint32Array.of(3, 12), rule: "attention ≥ 0.5" };
  assert.deepEqual(viewer.withMarked(chosen, new Set([3])), chosen);
  const { edges, rule } = viewer.withMarked(chosen, new Set([3, 7]));
  assert.deepEqual([...edges], [3, 7, 12]);
  assert.equal(rule, "attention ≥ 0.5 or in the circuit");
});

test("lines of the circuit lie on a bright ground, and no others", () => {
  const head = causal(4, (i) => 1 / (i + 1));
  const base = { threshold: null, top: 0, weight: "attention" };
  const scene = (marked) =>
    viewer.arcs({ head, ...base, focus: null, matches: new Set(), look: LOOKS.light, width: 800, height: 500, chosen: viewer.choose(head, base), scale: viewer.Scale.of([head], "attention"), marked });
  const bright = (some) => some.marks.filter(({ stroke }) => stroke === LOOKS.light.mark);
  assert.equal(bright(scene(new Set())).length, 0);
  assert.equal(bright(scene(new Set([2, 5]))).length, 2);
});
