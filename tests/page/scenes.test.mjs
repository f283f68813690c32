import assert from "node:assert/strict";
import { test } from "node:test";
import * as viewer from "./viewer.mjs";
import { LOOKS, causal, headOf, tokens } from "./samples.mjs";

const HOSTILE = ["<script>alert(1)</script>", "]]>", "\"'&", "a\0b", "\u202eabc", "\ud800", "\n", "", "x".repeat(300), "漢字", "שלום"];

function pictureOf(head, more = {}) {
  const base = { threshold: null, top: 0, weight: "attention", ...more };
  return {
    head, stack: { noun: "token" }, ...base, focus: null, matches: new Set(), look: LOOKS.light, width: 800, height: 500,
    chosen: viewer.choose(head, base), scale: viewer.Scale.of([head], base.weight), ...more,
  };
}

const flat = (marks) => marks.flatMap((mark) => (mark.mark === "group" ? flat(mark.marks) : [mark]));
const texts = (scene) => flat(scene.marks).filter(({ mark }) => mark === "text").map(({ text }) => text);
const views = { arcs: viewer.arcs, columns: viewer.columns, matrix: viewer.matrix, text: viewer.textView };

for (const [name, view] of Object.entries(views)) {
  test(`${name}: every token and the scale are written`, () => {
    const head = causal(6, (i, j) => (j === 0 ? 0.7 : 0.3 / i));
    const found = texts(view(pictureOf(head)));
    for (const { text } of head.keys) assert.ok(found.includes(text), text);
    assert.ok(found.includes("attention") && found.includes("0.25"));
  });

  test(`${name}: pointing at a token's label finds the token`, () => {
    const head = causal(6, (i, j) => (j === 0 ? 0.7 : 0.3 / i));
    const scene = view(pictureOf(head));
    for (const mark of flat(scene.marks).filter(({ mark: kind, text }) => kind === "text" && text === "t3")) {
      const { key, row } = scene.hit(mark.x, mark.y);
      assert.ok(key === 3 || row === 3, `${key} ${row}`);
    }
    assert.equal(scene.hit(-50, -50), null);
  });

  test(`${name}: everything lies in the picture, whatever the size of the text`, () => {
    for (const n of [1, 2, 5, 60, 500]) {
      const scene = view(pictureOf(causal(n, (i) => 1 / (i + 1))));
      for (const mark of flat(scene.marks)) {
        const xs = mark.mark === "curves" ? mark.paths.flat().filter((_, i) => i % 2 === 0) : [mark.x ?? mark.x1];
        const ys = mark.mark === "curves" ? mark.paths.flat().filter((_, i) => i % 2) : [mark.y ?? mark.y1];
        assert.ok(xs.every((x) => x >= -20 && x <= scene.width + 20), `${n} tokens: ${mark.mark} ${xs}`);
        assert.ok(ys.every((y) => Number.isFinite(y) && y <= scene.height + 1), `${n} tokens: ${mark.mark} ${ys}`);
      }
    }
  });

  test(`${name}: hostile tokens are text in the SVG`, () => {
    const head = headOf(HOSTILE.map(() => HOSTILE.map(() => 1 / HOSTILE.length)), tokens(HOSTILE));
    const svg = viewer.toSVG(view(pictureOf(head)), LOOKS.light, () => "data:,");
    assert.ok(!/<script|\]\]>[^<]*<script/i.test(svg));
    assert.ok(!/[\0-\x08\u202e\ud800]/.test(svg));
    assert.ok(svg.includes("&lt;script&gt;"));
    const opened = [...svg.matchAll(/<([a-z]+)[ >]/gi)].map(([, tag]) => tag.toLowerCase());
    assert.deepEqual([...new Set(opened)].filter((tag) => !["svg", "rect", "g", "text", "line", "path", "title", "image"].includes(tag)), []);
  });

  test(`${name}: cross-attention and a sink are drawn`, () => {
    const queries = tokens(["x", "y", "z"], { generatedFrom: 1 });
    const head = headOf([[0.5, 0.2, 0.3], [0.1, 0.9, 0], [0.4, 0.4, 0.2]], tokens(["a", "b"]), { queries });
    const found = texts(view(pictureOf(head)));
    for (const text of ["a", "b", "x", "y", "z", "<sink>"]) assert.ok(found.includes(text), text);
    assert.ok(found.some((text) => text.includes("generated")));
  });
}

test("no labels of a row overlap", () => {
  for (const n of [3, 12, 40, 90, 500]) {
    const all = tokens(Array.from({ length: n }, (_, i) => `token${i}`));
    const pitch = 760 / n;
    const labels = viewer.fitLabels(all, pitch, [0, 45, 90]);
    const places = labels.texts.flatMap((text, i) => (text ? [i * pitch] : []));
    const needed = labels.angle === 0 ? Math.max(...labels.texts.map((text) => viewer.textWidth(text, labels.size))) : 0.95 * labels.size;
    assert.ok(places.every((x, i) => !i || x - places[i - 1] >= needed), `${n} tokens`);
    assert.ok(places.length >= 2);
  }
});

test("no label is cut off on the left, however long", async () => {
  const head = headOf(HOSTILE.map(() => HOSTILE.map(() => 0.1)), tokens(HOSTILE.map(() => "W".repeat(16))));
  const layers = [await viewer.meanOf([head])];
  const scale = new viewer.Scale("mean attention", 0, 1, true);
  const above = viewer.layered({ ...pictureOf(head), layers, layerNames: [0], tokens: head.keys, range: [0, 9], level: 1, token: null, traced: null, scale });
  const alone = causal(9, () => 0.1);
  for (const token of alone.keys) token.text = "W".repeat(16);
  for (const scene of [viewer.arcs(pictureOf(alone)), above]) {
    const ends = flat(scene.marks).filter(({ mark, angle, text }) => mark === "text" && angle === -45 && text);
    assert.ok(ends.length >= 9);
    for (const { x, text, size } of ends) assert.ok(x - 0.72 * viewer.textWidth(text, size) > -14);
  }
});

test("labels, tables and sentences number tokens where names repeat, before the name as in figures", () => {
  const labels = viewer.fitLabels(tokens(Array(500).fill("w".repeat(12))), 1.5, [0, 45, 90], 60);
  assert.ok(labels.stride > 1);
  assert.match(labels.texts[labels.stride], new RegExp(`^${labels.stride} w+…$`));
  const apart = tokens([...Array(500).keys()].map((n) => `n${n}`));
  assert.equal(viewer.fitLabels(apart, 1.5, [0, 45, 90]).texts[labels.stride], `n${labels.stride}`);
  assert.equal(viewer.named(apart[8]), "n8");
  assert.equal(viewer.named(tokens([" a", "a"])[0]), "0 a", "which look alike");
  assert.equal(viewer.named(tokens(["a", "b", "a"])[1]), "1 b", "all of them, so that numbers are not read as part of some names");
});

test("a focus draws what the token reads solid and what reads it dashed, over the others", () => {
  const head = causal(5, (i, j) => (j + 1) / 20);
  const scene = viewer.arcs(pictureOf(head, { focus: { key: 2, row: 2 } }));
  const curves = flat(scene.marks).filter(({ mark }) => mark === "curves");
  const clear = curves.filter(({ stroke }) => stroke !== LOOKS.light.faint);
  assert.equal(clear.filter(({ dash }) => dash).length, 2, "tokens 3 and 4 read it");
  assert.equal(clear.filter(({ dash }) => !dash).length, 3, "it reads tokens 0 to 2");
  assert.ok(texts(scene).includes("solid: what it reads; dashed: what reads it"));
});

test("a focus takes no chosen edge away, and says how many it adds", () => {
  const head = causal(100, (i, j) => (1 + j) / 200);
  const curvesOf = (more) => {
    const scene = viewer.arcs(pictureOf(head, { focus: { key: 99, row: 99 }, ...more }));
    const all = flat(scene.marks).filter(({ mark }) => mark === "curves").flatMap(({ paths }) => paths);
    return [all.length, scene.added];
  };
  const some = viewer.choose(head, { threshold: 0.2, top: 0, weight: "attention" }).edges.length;
  assert.deepEqual(curvesOf({ threshold: 0.2 }), [some, 0]);
  assert.deepEqual(curvesOf({ top: 1 }), [100 + 29, 29]);
});

test("edges to the left run below the tokens", () => {
  const head = headOf([[0, 1], [1, 0]], tokens(["a", "b"]));
  const curves = flat(viewer.arcs(pictureOf(head)).marks).filter(({ mark }) => mark === "curves");
  const rises = curves.map(({ paths: [points] }) => Math.sign(points[3] - points[1])).sort();
  assert.deepEqual(rises, [-1, 1]);
});

test("a cell of a zoomed-out matrix is the largest of its edges, and this is said", () => {
  const head = causal(1200, (i, j) => (i === 700 && j === 300 ? -0.9 : 0.001));
  const picture = pictureOf(head, { isDense: true });
  const { values, rows, columns, block } = viewer.blocksOf(head, picture.chosen, "attention", 560);
  assert.equal(block, 3);
  assert.ok(rows <= 560 && columns <= 560);
  assert.ok(Math.abs(values[Math.floor(700 / 3) * columns + 100] + 0.9) < 1e-6);
  assert.ok(Number.isNaN(values[columns - 1]), "nothing above the diagonal");
  assert.ok(texts(viewer.matrix(picture)).includes("a cell is the largest of 3 × 3"));
});

test("a cell of a zoomed-out matrix of scores is the largest of its scores", () => {
  const head = causal(1200, () => 0.001);
  head.values.score = Float32Array.from(head.key, (key) => (key === 300 ? -1 : -9));
  const { values, columns } = viewer.blocksOf(head, viewer.choose(head, { threshold: null, top: 0, weight: "score", isDense: true }), "score", 560);
  assert.equal(values[233 * columns + 100], -1);
  assert.equal(values[233 * columns + 101], -9);
});

test("text: without a focus tokens are shaded by their means: of attention over all queries, of scores over their edges", () => {
  const head = causal(4, (i, j) => (j === 3 ? 0 : 0.5));
  head.values.score = Float32Array.from(head.key, (_, e) => (e ? -4 : NaN));
  const shade = (weight) => {
    const scale = { ...viewer.Scale.of([head], weight), rgb: (value) => (found.push(Number(value.toFixed(4))), [0, 0, 0]), at: () => 0, valueAt: () => 0, colour: () => "#000000", ticks: [] };
    const found = [];
    viewer.textView(pictureOf(head, { weight, scale }));
    return found;
  };
  assert.deepEqual(shade("attention"), [0.5, 0.375, 0.25, 0]);
  assert.deepEqual(shade("score"), [-4, -4, -4, -4]);
});

test("text: what shades tokens is said to be a change where it is one", () => {
  const plain = causal(4, () => 0.5);
  const said = (head, more = {}) => texts(viewer.textView(pictureOf(head, more))).find((text) => text.startsWith("shaded"));
  for (const [head, change, reads] of [[plain, "", "shaded by what"], [{ ...plain, isChange: true }, "change in the ", "shaded by the change in what"]]) {
    assert.equal(said(head), `shaded by the mean ${change}attention that a query gives each token`);
    const token = `\u2068${head.keys[2].text}\u2069`;
    assert.equal(said(head, { focus: { key: 2, row: 2 } }), `${reads} ${token} reads`);
    assert.equal(said(head, { focus: { key: 2, row: -1 } }), `${reads} reads ${token}`);
  }
});

test("on a phone what is said above a view stays within it", async () => {
  const head = causal(9, () => 0.1);
  head.values.contribution = head.values.attention;
  head.keys.at(-1).generated = true;
  const notes = (scene) => flat(scene.marks).filter(({ mark, size, anchor }) => mark === "text" && size === 11 && anchor !== "middle");
  const layers = [await viewer.meanOf([head])];
  const scale = new viewer.Scale("mean attention", 0, 1, true);
  const traced = { layers, layerNames: ["layer 0"], tokens: head.keys, range: [0, 9], level: 1, token: 2, scale, traced: viewer.rollout(layers, 1, 2) };
  const scenes = [viewer.textView(pictureOf(head, { weight: "contribution", width: 360 })), viewer.layered({ ...pictureOf(head, { width: 360 }), ...traced })];
  for (const scene of scenes) {
    const lines = notes(scene);
    assert.ok(lines.length >= 2);
    for (const { x, text } of lines) assert.ok(x + viewer.textWidth(text, 11) <= 360, text);
  }
  assert.match(notes(scenes[0]).map(({ text }) => text).join(" "), /that a query gives each token; underlined: generated/);
});

test("a matrix tells the cell that is pointed at", () => {
  const scene = viewer.matrix(pictureOf(causal(6, () => 0.2), { isDense: true }));
  const cells = flat(scene.marks).find(({ mark }) => mark === "cells");
  const hit = scene.hit(cells.x + (2.5 * cells.w) / 6, cells.y + (4.5 * cells.h) / 6);
  assert.deepEqual(hit, { row: 4, key: 2, isPair: true });
});

test("layers go upwards; a focus is followed through them", async () => {
  const head = causal(4, (i) => 1 / (i + 1));
  const layers = [await viewer.meanOf([head]), await viewer.meanOf([head])];
  const base = { ...pictureOf(head), layers, layerNames: [0, 1], tokens: head.keys, range: [0, 4], level: 2, token: null, traced: null, scale: new viewer.Scale("mean attention", 0, 1, true) };
  const whole = viewer.layered(base);
  assert.match(whole.caption, /^all 20 edges, 100 % of the attention/);
  const halves = layers.map((layer) => ({ ...layer, mass: layer.mass.map((m) => 2 * m) }));
  assert.match(viewer.layered({ ...base, layers: halves }).caption, /^all 20 edges, 50 % of the attention/);
  const traced = viewer.layered({ ...base, token: 1, traced: viewer.rollout(layers, 2, 1) });
  assert.doesNotMatch(traced.caption, /lost/);
  const changed = layers.map((layer) => ({ ...layer, isChange: true, isPart: true, isSigned: true }));
  assert.match(viewer.layered({ ...base, layers: changed }).caption, /100 % of the means; edges kept in only one run are left out/);
  const lossy = viewer.layered({ ...base, layers: halves, token: 1, traced: viewer.rollout(halves, 2, 1) });
  assert.match(lossy.caption, /; 55.6 % is lost on the way down in dropped or hidden edges/);
  const curves = flat(traced.marks).filter(({ mark }) => mark === "curves");
  assert.equal(curves.length, 5, "token 1 reads 0 and 1, which read 0, 0 and 1");
  const { x, y } = flat(traced.marks).find(({ mark, w }) => mark === "rect" && w === 10);
  assert.deepEqual(traced.hit(x + 5, y + 5), { key: 1, row: 1, level: 2 });
});

test("scales: attention is a root from 0 to 1, signed values and changes lie on both sides of 0", () => {
  const head = causal(3, (i, j) => (j ? 0.25 : 0.5));
  const scale = viewer.Scale.of([head], "attention");
  assert.equal(scale.at(0.25), 0.5);
  assert.deepEqual(scale.ticks, [0.05, 0.25, 0.5, 1]);
  const change = viewer.Scale.of([{ ...head, isChange: true }], "attention");
  assert.equal(change.at(0), 0.5);
  assert.deepEqual([change.low, change.high], [-1, 1]);
  head.values.score = Float32Array.from([2, 3, 4, 5, NaN, 6]);
  const score = viewer.Scale.of([head], "score");
  assert.deepEqual([score.low, score.high, score.at(4)], [2, 6, 0.5]);
  head.values.score = Float32Array.from([-2, 3, 4, 5, NaN, 6]);
  assert.equal(viewer.Scale.of([head], "score").isSigned, false, "a score has no natural zero");
  assert.equal(viewer.Scale.of([{ ...head, isChange: true }], "score").isSigned, true);
  const wider = { ...head, values: { ...head.values, score: Float32Array.from([-9, 20]) } };
  const both = viewer.Scale.of([head, wider], "score");
  assert.deepEqual([both.low, both.high], [-9, 20], "two runs have one scale");
  const signed = viewer.Scale.of([causal(2, (i, j) => (j ? 0.5 : -1.5))], "attention");
  assert.deepEqual([signed.isSigned, signed.low, signed.high, signed.at(0)], [true, -1.5, 1.5, 0.5]);
});

test("weak attention differs from none, on light and on dark", () => {
  const scale = new viewer.Scale("attention", 0, 1, true);
  for (const look of Object.values(LOOKS)) {
    const paper = [1, 3, 5].map((at) => parseInt(look.paper.slice(at, at + 2), 16));
    const far = (value, isLine) => scale.rgb(value, look, isLine).reduce((sum, part, i) => sum + Math.abs(part - paper[i]), 0);
    assert.ok(far(0, false) > 15, look.name);
    assert.ok(far(0, true) > 60, look.name);
  }
});

const light = (hex) => {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
const hexOf = (colour) => `#${colour.map((part) => part.toString(16).padStart(2, "0")).join("")}`;

test("text on the page has a contrast of at least 4.5", () => {
  for (const look of Object.values(LOOKS)) for (const ink of [look.ink, look.muted, look.accent]) assert.ok(contrast(ink, look.paper) >= 4.5, `${look.name} ${ink}`);
});

test("many cells are one image in the SVG, few are rectangles", () => {
  const cells = (n) => ({ width: 10, height: 10, marks: [{ mark: "cells", x: 0, y: 0, w: 10, h: 10, rows: n, columns: n, pixels: new Uint8ClampedArray(4 * n * n).fill(255) }] });
  assert.equal(viewer.toSVG(cells(3), LOOKS.light, () => "data:x").match(/<rect/g).length, 10);
  assert.match(viewer.toSVG(cells(100), LOOKS.light, () => "data:x"), /<image [^>]*href="data:x"/);
});

test("a saved picture has its title and its caption, wrapped", () => {
  const scene = viewer.framed({ width: 300, height: 100, marks: [] }, "layer 1", "word ".repeat(60).trim(), LOOKS.light);
  const found = texts(scene);
  assert.equal(found[0], "layer 1");
  assert.ok(found.length > 3 && scene.height > 150);
});

test("heads are chosen where they are drawn, by layer or by score", () => {
  const cell = (layer, head) => ({ layer, head, rows: 1, columns: 1, pixels: new Uint8ClampedArray(4), said: "0.5" });
  const cells = [cell(0, 0), cell(0, 1), cell(1, 0), cell(1, 1)];
  const base = { cells, layerNames: [0, 1], headNames: [0, 1], look: LOOKS.dark, width: 300, height: 500, scale: new viewer.Scale("attention", 0, 1, true), chosen: 3, brackets: [{ name: 0, from: 0, to: 1 }] };
  for (const isSorted of [false, true]) {
    const grid = viewer.headGrid({ ...base, isSorted });
    const boxes = flat(grid.marks).filter(({ mark }) => mark === "cells");
    boxes.forEach(({ x, y }, n) => assert.equal(grid.hit(x + 3, y + 3), n));
    assert.equal(texts(grid).includes("1.1"), isSorted);
    assert.equal(texts(grid).includes("key-value 0"), !isSorted);
  }
});

test("thumbnails are attention, or its change with its sign", () => {
  assert.deepEqual([0, 255].map((byte) => viewer.shadeOf(byte, false)), [0, 1]);
  assert.deepEqual([1, 128, 255].map((byte) => viewer.shadeOf(byte, true)), [-1, 0, 1]);
  assert.ok(Math.abs(viewer.shadeOf(128 - 90, true) + 0.5) < 0.01);
});

test("three pictures of a comparison answer to the pointer where they are", () => {
  const scenes = [0, 1, 2].map((n) => ({ width: 100, height: 50, marks: [], hit: (x, y) => ({ n, x, y }) }));
  const below = viewer.tiled(scenes, ["a", "b", "c"], LOOKS.light, 1);
  assert.deepEqual(below.hit(10, 22 + 80 + 5), { n: 1, x: 10, y: 5, panel: 1 });
  const beside = viewer.tiled(scenes, ["a", "b", "c"], LOOKS.light, 3);
  assert.deepEqual(beside.hit(210, 30), { n: 2, x: 10, y: 8, panel: 2 });
  assert.deepEqual([below.width, beside.width], [100, 300]);
});

test("bars of tables have a contrast of at least 3", () => {
  for (const look of Object.values(LOOKS))
    for (const name of ["bar", "minus"]) assert.ok(contrast(hexOf(viewer.cssOf(look)[name].match(/\d+/g).map(Number)), look.paper) >= 3, `${look.name} ${name}`);
});

test("every ink has a contrast of at least 4.5 on the colour that it is on", () => {
  const signed = new viewer.Scale("attention", -1, 1, true);
  for (const look of Object.values(LOOKS))
    for (const scale of [new viewer.Scale("attention", 0, 1, true), signed])
      for (let value = scale.low; value <= 1; value += 1 / 256) {
        const colour = scale.rgb(value, look);
        const ink = viewer.inkOn(colour);
        assert.ok(contrast(ink, hexOf(colour)) >= 4.5, `${look.name}: ${ink} on ${colour}`);
      }
});

const overlaidOf = (heads) => heads.map((head, n) => ({ head, chosen: viewer.choose(head, { threshold: null, top: 0, weight: "attention", isDense: true }), marked: new Set(), hue: LOOKS.light.hues[n], name: `0.${n}` }));

test("heads over each other keep their colours: the paler, the smaller the number", () => {
  const heads = [causal(3, (i, j) => (i === j ? 1 : 0)), causal(3, (i, j) => (j === 0 ? 0.25 : 0))];
  const overlaid = overlaidOf(heads);
  const strokes = (scene) => flat(scene.marks).flatMap(({ mark, stroke, title }) => (mark === "curves" && title ? [[title, stroke]] : []));
  for (const draw of [viewer.arcs, viewer.columns]) {
    const found = Object.fromEntries(strokes(draw(pictureOf(heads[0], { overlaid }))));
    const [strong, weak] = [viewer.rgb(LOOKS.light.hues[0]), viewer.mixed(LOOKS.light.hues[1], LOOKS.light, 0.3 + 0.7 * 0.5)];
    assert.equal(found["0.0: attention 1"], `rgb(${strong.join(",")})`);
    assert.equal(found["0.1: attention 0.25"], `rgb(${weak.join(",")})`);
  }
});

test("in a matrix of heads over each other a cell is the head with the largest", () => {
  const heads = [causal(2, (i, j) => (i === j ? 1 : 0.1)), causal(2, (i, j) => (i === j ? 0.2 : 0.9))];
  const scene = viewer.matrix(pictureOf(heads[0], { overlaid: overlaidOf(heads), isDense: true }));
  const { pixels, columns } = flat(scene.marks).find(({ mark }) => mark === "cells");
  const at = (row, column) => [...pixels.subarray(4 * (row * columns + column), 4 * (row * columns + column) + 3)];
  const scale = new viewer.Scale("attention", 0, 1, true);
  assert.deepEqual(at(0, 0), viewer.hueOf(LOOKS.light.hues[0], 1, scale, LOOKS.light));
  assert.deepEqual(at(1, 0), viewer.hueOf(LOOKS.light.hues[1], 0.9, scale, LOOKS.light));
  assert.ok(texts(scene).includes("0.90") && texts(scene).includes("a cell is the largest of 2 heads"));
});

test("colours of heads have a contrast of at least 3 on the paper, and differ", () => {
  for (const look of Object.values(LOOKS)) {
    for (const hue of look.hues) assert.ok(contrast(hue, look.paper) >= 3, `${look.name} ${hue}`);
    assert.equal(new Set(look.hues).size, 8);
  }
});

test("a legend lies above a scene, which answers to the pointer where it is", () => {
  const scene = { width: 200, height: 50, marks: [], hit: (x, y) => ({ x, y }), caption: "said" };
  const entries = ["layer 1 · head 2", "layer 3 · head 4"].map((name, n) => ({ name, hue: LOOKS.dark.hues[n] }));
  const made = viewer.withLegend(scene, entries, LOOKS.dark);
  const top = made.height - scene.height;
  assert.deepEqual([made.hit(5, top + 7), made.hit(5, top - 1), made.caption], [{ x: 5, y: 7 }, null, "said"]);
  assert.deepEqual(texts(made), entries.map(({ name }) => name));
});

test("panels stand in rows", () => {
  const scenes = [0, 1, 2].map((n) => ({ width: 100, height: 50, marks: [], hit: (x, y) => ({ n, x, y }) }));
  const made = viewer.tiled(scenes, ["a", "b", "c"], LOOKS.light, 2);
  assert.equal(made.width, 200);
  assert.deepEqual(made.hit(110, 30), { n: 1, x: 10, y: 8, panel: 1 });
  assert.deepEqual(made.hit(10, 22 + 50 + 8 + 22 + 5), { n: 2, x: 10, y: 5, panel: 2 });
});

test("sorted heads fill the height that there is, in whole rows", () => {
  const base = { size: 384, headNames: [...Array(16).keys()], layerNames: [...Array(24).keys()], width: 340, height: 500, brackets: [] };
  const sorted = viewer.gridSize({ ...base, isSorted: true });
  assert.equal(sorted.shown, sorted.rows * sorted.across);
  assert.ok(sorted.top + sorted.rows * sorted.down <= 500 && sorted.rows >= 4);
  assert.equal(viewer.gridSize({ ...base, isSorted: false }).shown, 384);
  assert.equal(viewer.gridSize({ ...base, size: 3, isSorted: true }).shown, 3);
  const wide = { ...base, isSorted: false, width: 2000 };
  assert.ok(viewer.gridSize(wide).side > viewer.gridSize({ ...wide, width: 300 }).side);
  for (const height of [200, 600, 900]) {
    const { top, step, side } = viewer.gridSize({ ...wide, height });
    assert.ok(side === 24 || top + wide.layerNames.length * step <= height + 1, `${side} in ${height}`);
  }
});

const wordsOf = (all, words) => tokens(all, { words });

test("boxes of a word touch and stay in a line; words stand apart", () => {
  const boxes = viewer.boxesOf(wordsOf(["un", "know", "able", "the", "unspeak", "able"], [0, 0, 0, 1, 2, 2]), 220, 0);
  const gaps = boxes.slice(1).map((box, n) => (box.y === boxes[n].y ? Math.round(box.x - boxes[n].x - boxes[n].wide) : "line"));
  assert.deepEqual(gaps.slice(0, 2), [1, 1]);
  assert.equal(gaps[4], 1);
  assert.ok([7, "line"].includes(gaps[2]) && gaps[3] === "line");
});

test("a long word is cut to the width, and every box is within it", () => {
  for (const width of [60, 200, 390])
    for (const { x, wide } of viewer.boxesOf(wordsOf(["x".repeat(300), "MMMMMMMMMMMMMMMMMMMMMMMM", "a"], null), width, 0)) assert.ok(x >= 0 && x + wide <= width, `${width}: ${x} ${wide}`);
});

test("Arabic and Hebrew run from right to left, and Arabic letters join over tokens", () => {
  const boxes = viewer.boxesOf(wordsOf(["مر", "حبا", "שלום"], [0, 0, 1]), 300, 0);
  assert.ok(boxes[0].x > boxes[1].x && boxes[1].x > boxes[2].x);
  assert.deepEqual(boxes.map(({ label }) => label), ["مر\u200d", "\u200dحبا", "שלום"]);
  const latin = viewer.boxesOf(wordsOf(["a", "שלום", "bcdef"], null), 300, 0);
  assert.ok(latin[0].x < latin[1].x);
  const special = { ...wordsOf(["<|endoftext|>"], null)[0], special: true };
  const bytes = viewer.boxesOf([special, ...wordsOf(["<0xD9>", "<0x85>", "<0xD8>", "<0xB1>"], [1, 1, 1, 1])], 300, 0);
  assert.ok(bytes.every(({ x }, n) => !n || x < bytes[n - 1].x));
});

/** The left and right end of a text that is not turned. */
function endsOf({ x, text, size, anchor, bold }) {
  const wide = viewer.textWidth(text, size, bold);
  return { start: [x, x + wide], middle: [x - wide / 2, x + wide / 2], end: [x - wide, x] }[anchor];
}

test("long tokens are cut to the room that they have in a narrow panel", () => {
  const long = tokens(["a", "incomprehensibilities", "x".repeat(60), "漢".repeat(30)]);
  const head = headOf(Array.from({ length: 4 }, () => Array(4).fill(0.25)), long);
  for (const view of ["columns", "matrix", "textView"])
    for (const width of [278, 340])
      for (const focus of [null, { key: 2, row: 2 }]) {
        const scene = viewer[view](pictureOf(head, { width, focus, isDense: view !== "columns" }));
        const labels = flat(scene.marks).filter(({ mark, angle, size }) => mark === "text" && !angle && size >= 12);
        assert.ok(labels.length >= 4);
        for (const label of labels) {
          const [left, right] = endsOf(label);
          assert.ok(left >= 0 && right <= width, `${view} ${width}: ${label.text} from ${left} to ${right}`);
        }
      }
});

test("the label of the focus keeps its position and its room where labels are thinned out", () => {
  const texts = Array.from({ length: 256 }, (_, i) => (i % 9 === 3 ? "internationalizations" : "lamp"));
  const head = headOf(texts.map((_, i) => texts.map((__, j) => (j > i ? null : 1 / (i + 1)))), tokens(texts));
  for (const view of ["matrix", "arcs", "columns"])
    for (const at of [30, 75, 129]) {
      const { marks, height } = viewer[view](pictureOf(head, { width: 400, focus: { key: at, row: at }, isDense: view === "matrix" }));
      const own = flat(marks).filter(({ mark, fill, bold }) => mark === "text" && bold && fill === LOOKS.light.accent);
      assert.ok(own.length >= 1);
      for (const { text, x, y, angle, anchor, size } of own) {
        assert.match(text, new RegExp(`^${at} `), view);
        const wide = viewer.textWidth(text, size, true);
        const [first, last] = anchor === "start" ? [0, wide] : [-wide, 0];
        if (angle) assert.ok(y - last >= 18 && y - first <= height - 44, `${view} ${at}: ${text} from ${y - last} to ${y - first}`);
        else assert.ok(x + first >= 0 && x + last <= 400, `${view}: ${text}`);
      }
    }
});

test("columns of a matrix leave room for the note above them, however wide their letters", () => {
  const wide = tokens(Array.from({ length: 60 }, (_, i) => "漢字".repeat(8) + i));
  const head = headOf(wide.map(() => wide.map(() => 1 / 60)), wide);
  const { marks } = viewer.matrix(pictureOf(head, { width: 800, isDense: true }));
  for (const { text, y, size } of flat(marks).filter(({ angle }) => angle === -90)) assert.ok(y - viewer.textWidth(text, size) >= 18, text);
});

test("a bold word fits its box, however wide the font's bold letters are", () => {
  viewer.measureWith((text, isBold) => (isBold ? 0.75 : 0.6) * text.length);
  const head = headOf([[1]], tokens(["incomprehensibilities"]));
  const scene = viewer.textView(pictureOf(head, { width: 400, focus: { key: 0, row: 0 }, isDense: true }));
  viewer.measureWith(null);
  const word = scene.marks.find(({ mark, bold }) => mark === "text" && bold);
  const box = scene.marks.find(({ mark, stroke }) => mark === "rect" && stroke === LOOKS.light.accent);
  assert.ok(word.x >= box.x && word.x + 0.75 * word.size * word.text.length <= box.x + box.w);
});
