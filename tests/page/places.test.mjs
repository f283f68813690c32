// Tokens where they lie: patches over an image, nodes on a layout.
import test from "node:test";
import assert from "node:assert/strict";
import * as viewer from "./viewer.mjs";
import { LOOKS, causal, headOf, tokens } from "./samples.mjs";

const flat = (marks) => marks.flatMap((mark) => (mark.mark === "group" ? flat(mark.marks) : [mark]));
const fills = (scene) => flat(scene.marks).filter(({ fill }) => fill?.startsWith?.("rgba"));
const opacity = ({ fill }) => Number(fill.match(/,([\d.]+)\)$/)[1]);

/** Three rows of two patches after a class token. */
const AT = [null, [0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]];
const grid = { kind: "grid", at: AT, size: [2, 3], ratio: 1 };
const placed = (texts, places) => tokens(texts).map((token, n) => ({ ...token, at: places[n] }));
const named = AT.map((_, n) => `p${n}`);
const matrix = AT.map((_, i) => AT.map((_, j) => (1 + ((3 * i + j) % 7)) / 28));

function pictureOf(head, more = {}) {
  const state = { threshold: null, top: 0, weight: "attention", ...more };
  const chosen = viewer.choose(head, { isDense: true, ...state });
  const scale = viewer.Scale.of([head], state.weight);
  return { head, chosen, scale, focus: null, matches: new Set(), look: LOOKS.light, width: 640, height: 520, image: null, ...state, ...more };
}

const square = (more) => pictureOf(headOf(matrix, placed(named, AT)), { stack: { keys: { places: grid }, queries: null }, ...more });

test("patches are as opaque as what the focus gives them, from 0 to the largest on the image", () => {
  const scene = viewer.patches(square({ focus: { key: 3, row: 3 } }));
  const row = matrix[3].slice(1);
  const top = Math.max(...row);
  assert.deepEqual(fills(scene).map(opacity), row.map((x) => Number((0.25 + 0.65 * (x / top)).toFixed(3))));
  const notes = flat(scene.marks).filter(({ text }) => text?.startsWith("shaded"));
  assert.equal(notes[0].text, "shaded by what \u2068p3\u2069 reads");
});

test("colours of nearly even attention begin at the least and say so, so that the image stays visible", () => {
  const shown = (row) => viewer.patches(square({ head: headOf(AT.map(() => row), placed(named, AT)), focus: { key: 3, row: 3 } }));
  const said = (scene) => flat(scene.marks).map(({ text }) => text ?? "").join(" ");
  const even = shown([0.1, 0.12, 0.14, 0.16, 0.17, 0.18, 0.2]);
  const expected = [0.12, 0.14, 0.16, 0.17, 0.18, 0.2].map((x) => 0.25 + (0.65 * (x - 0.12)) / 0.08);
  fills(even).forEach((mark, n) => assert.ok(Math.abs(opacity(mark) - expected[n]) < 0.002));
  assert.match(said(even), /reads; colours run from 0.12 to 0.2, not from 0/);
  const alike = shown([0.1, ...Array(5).fill(0.1), 0.0995]);
  assert.deepEqual(fills(alike).map(opacity), [...Array(5).fill(0.575), 0.573]);
  assert.match(said(alike), / 0 +0.1 +0.2/);
  assert.doesNotMatch(said(alike), /colours run/);
  const few = shown([0.7, 0.1, 0.1, 0.1, null, null, null]);
  assert.deepEqual(fills(few).map(opacity), Array(3).fill(0.9));
});

test("the key and the tokens above have the colours that values have over an image of medium lightness", () => {
  const scene = viewer.patches(square({ focus: { key: 3, row: 3 } }));
  const marks = flat(scene.marks);
  const [last] = marks.filter(({ mark, w, h }) => mark === "rect" && w === 3.5 && h === 9).slice(-1);
  const dark = LOOKS.light.unsigned[Math.round(255 * (55.5 / 56))];
  const expected = dark.map((part) => Math.round(185 + (part - 185) * (0.25 + (0.65 * 55.5) / 56)));
  assert.equal(last.fill, `rgb(${expected.join(",")})`);
  const top = Math.max(...matrix[3].slice(1));
  const share = matrix[3][0] / top;
  const own = LOOKS.light.unsigned[Math.round(255 * share)].map((part) => Math.round(185 + (part - 185) * (0.25 + 0.65 * share)));
  assert.ok(marks.some(({ fill, radius }) => radius === 4 && fill === `rgb(${own.join(",")})`));
});

test("pointing at a patch finds its token, and the class token stands above", () => {
  const scene = viewer.patches(square());
  fills(scene).forEach((mark, n) => {
    assert.deepEqual(scene.hit(mark.x + 1, mark.y + 1), { key: n + 1, row: n + 1 });
    assert.equal(mark.w, mark.h);
  });
  const label = flat(scene.marks).find(({ text }) => text === "p0");
  assert.deepEqual(scene.hit(label.x, label.y), { key: 0, row: 0 });
  assert.ok(label.y < Math.min(...fills(scene).map(({ y }) => y)));
  assert.equal(scene.hit(2, 2), null);
});

test("patches lie in rows and columns, and everything lies in the picture", () => {
  for (const [width, height] of [[280, 340], [640, 520], [1900, 760]]) {
    const scene = viewer.patches(square({ width, height }));
    const boxes = fills(scene);
    AT.slice(1).forEach(([x, y], n) => {
      assert.equal(boxes[n].x, 8 + x * boxes[0].w);
      assert.ok(Math.abs(boxes[n].y - boxes[0].y - y * boxes[0].h) < 1e-6);
    });
    for (const mark of boxes) assert.ok(mark.x + mark.w <= width && mark.y + mark.h <= scene.height);
  }
});

test("an image lies under the patches, in grey and lighter, on its own part of the picture", () => {
  const image = { columns: 2, rows: 1, grey: Uint8Array.from([0, 255]) };
  const part = { ...grid, size: [4, 3] };
  const scene = viewer.patches(square({ image, stack: { keys: { places: part }, queries: null } }));
  const [cells] = flat(scene.marks).filter(({ mark }) => mark === "cells");
  assert.deepEqual([...cells.pixels], [115, 115, 115, 255, 255, 255, 255, 255]);
  assert.equal(viewer.fadedPixels(image, LOOKS.light), cells.pixels);
  assert.deepEqual([...viewer.fadedPixels(image, LOOKS.dark)].slice(0, 5), [0, 0, 0, 255, 128]);
  const [first] = fills(scene);
  assert.equal(Math.round(cells.w), Math.round(4 * first.w));
  assert.equal(Math.round(cells.h), Math.round(3 * first.h));
});

test("words of cross-attention stand above the patches that they read", () => {
  const queries = tokens(["a", "house"]);
  const head = headOf([[0.5, 0.1, 0.1, 0.1, 0.1, 0.1], [0.05, 0.05, 0.05, 0.05, 0.2, 0.6]], placed(named.slice(1), AT.slice(1)), { queries });
  const places = { ...grid, at: AT.slice(1) };
  const scene = viewer.patches(pictureOf(head, { focus: { key: -1, row: 1 }, stack: { keys: { places }, queries: { places: null } } }));
  assert.deepEqual(fills(scene).map(opacity), [0.304, 0.304, 0.304, 0.304, 0.467, 0.9]);
  const label = flat(scene.marks).find(({ text }) => text === "house");
  assert.deepEqual(scene.hit(label.x, label.y), { key: -1, row: 1 });
});

test("nodes stand where the data has them, y upwards, and pointing finds them", () => {
  const places = [[0, 0], [10, 0], [10, 5], [0, 5]];
  const head = headOf([[1, null, null, null], [0.5, 0.5, null, null], [null, 0.3, 0.7, null], [1, null, null, null]], placed(["a", "b", "c", "d"], places));
  const scene = viewer.nodes(pictureOf(head, { isDense: false }));
  const dots = flat(scene.marks).filter(({ mark, radius }) => mark === "rect" && radius > 2);
  const centres = dots.map(({ x, y, w }) => [x + w / 2, y + w / 2]);
  const unit = (centres[1][0] - centres[0][0]) / 10;
  centres.forEach(([x, y], n) => {
    assert.ok(Math.abs(x - centres[0][0] - unit * places[n][0]) < 1e-6);
    assert.ok(Math.abs(centres[0][1] - y - unit * places[n][1]) < 1e-6);
    assert.deepEqual(scene.hit(x, y), { key: n, row: n });
  });
  const curves = flat(scene.marks).filter(({ mark }) => mark === "curves").flatMap(({ paths }) => paths);
  const ends = new Set(curves.map((path) => [...path.slice(0, 2), ...path.slice(-2)].map(Math.round).join()));
  for (const [key, row] of [[0, 1], [1, 2], [0, 3], [0, 0]]) assert.ok(ends.has([...centres[key], ...centres[row]].map(Math.round).join()), `${key} ${row}`);
  assert.equal(scene.hit(-100, -100), null);
});

test("any number of nodes, wherever they are, lies in the picture, with labels on no node and no other label", () => {
  const sizes = [];
  for (const n of [1, 2, 50, 400]) {
    const head = causal(n, (i) => 1 / (i + 1));
    head.keys.forEach((token, i) => (token.at = n === 2 ? [3, 3] : [Math.cos(i), 1e6 * Math.sin(i)]));
    for (const focus of [null, { key: n - 1, row: n - 1 }]) {
      const scene = viewer.nodes(pictureOf(head, { focus }));
      const marks = flat(scene.marks).filter(({ mark }) => mark !== "curves");
      assert.ok(marks.every(({ x, x1, y, y1 }) => Number.isFinite(x ?? x1) && (y ?? y1) <= scene.height));
      const dots = marks.filter(({ mark, w, radius }) => mark === "rect" && w === 2 * radius).map(({ x, y, w }) => [x, y, x + w, y + w]);
      assert.equal(dots.length, n);
      const written = marks.filter(({ mark, text }) => mark === "text" && /^t\d+$/.test(text));
      const boxes = written.map(({ x, y, text, size, bold }) => [x - viewer.textWidth(text, size, bold) / 2, y - size / 2, x + viewer.textWidth(text, size, bold) / 2, y + size / 2]);
      const meet = ([l, t, r, b], [u, v, w, x]) => l < w && u < r && t < x && v < b;
      boxes.forEach((box, i) => {
        const isFocus = focus && written[i].text === `t${n - 1}`;
        if (!isFocus) assert.ok(!dots.some((dot) => meet(box, dot)), `${written[i].text} of ${n} lies on a node`);
        assert.ok(!boxes.some((other, j) => j > i && meet(box, other)), `${written[i].text} of ${n} lies on a label`);
      });
      sizes.push(written.length);
    }
  }
  assert.deepEqual(sizes.slice(0, 2), [1, 1]);
  assert.ok(sizes[4] > 30 && sizes[4] <= 50 && sizes[6] > 30, `${sizes}`);
});

test("a label moves aside for its neighbours, and stays there when another node is in focus", () => {
  const places = [[0, 0], [0, 40], [0, -40], [200, 100]];
  const sizes = places.map(() => [20, 14]);
  const given = { places, sizes, radius: 5, loops: [], frame: [-50, -50, 250, 150] };
  const usual = viewer.labelPlaces({ ...given, first: [] });
  assert.deepEqual(usual[3], [200, 113], "below, where there is room");
  assert.deepEqual(usual[0], [0, 13]);
  const crowded = { ...given, places: [[0, 0], [0, 14], [200, 100], [200, 130]] };
  assert.deepEqual(viewer.labelPlaces({ ...crowded, first: [] })[0], [16, 0], "on the right");
  assert.deepEqual(viewer.labelPlaces({ ...crowded, first: [1] }).slice(2), viewer.labelPlaces({ ...crowded, first: [] }).slice(2));
  const none = { ...given, places: places.map(() => [0, 0]) };
  assert.equal(viewer.labelPlaces({ ...none, first: [3] }).filter(Boolean).length <= 8, true);
  assert.ok(viewer.labelPlaces({ ...none, first: [3] })[3], "the first are labelled");
  assert.deepEqual(viewer.labelPlaces({ ...given, frame: [0, 0, 1, 1], first: [] }), [null, null, null, null]);
});

test("the node in focus is labelled before its neighbours, and covers no line", () => {
  const given = { places: [[0, 0], [40, 0]], sizes: [[60, 14], [60, 14]], radius: 5, loops: [], frame: [-35, -6, 75, 21] };
  assert.deepEqual(viewer.labelPlaces({ ...given, first: [] }), [[0, 13], null]);
  assert.deepEqual(viewer.labelPlaces({ ...given, first: [1, 0] }), [null, [40, 13]]);
  assert.deepEqual(viewer.labelPlaces({ ...given, places: [[0, 0], [40, 0], [40, 13]], sizes: Array(3).fill([60, 14]), first: [1, 0] }), [null, [40, 13], null], "even on another node");
  const head = causal(2, () => 0.5);
  head.keys.forEach((token, n) => (token.at = [n, n]));
  const marks = flat(viewer.nodes(pictureOf(head, { focus: { key: 1, row: 1 } })).marks);
  assert.equal(marks.find(({ mark, bold, fill }) => mark === "text" && bold && fill === LOOKS.light.accent).halo, LOOKS.light.paper);
  assert.deepEqual(marks.filter(({ mark, fill, radius }) => mark === "rect" && fill === LOOKS.light.paper && !radius), []);
});

test("a stack has the view of places only where all is known that it needs", () => {
  const side = (kind) => ({ places: kind && { kind } });
  assert.equal(viewer.groundOf({ keys: side(null), queries: null }), "");
  assert.equal(viewer.groundOf({ keys: side("grid"), queries: null }), "grid");
  assert.equal(viewer.groundOf({ keys: side(null), queries: side("grid") }), "grid");
  assert.equal(viewer.groundOf({ keys: side("layout"), queries: side(null) }), "");
  assert.equal(viewer.groundOf({ keys: side("layout"), queries: side("layout") }), "layout");
  assert.deepEqual(viewer.viewsOf({ keys: {}, queries: {} }), ["arcs", "columns", "matrix", "text"]);
  assert.deepEqual(viewer.viewsOf({ keys: side("grid"), queries: null }).at(-1), "places");
});

test("a page opens on its circuit, over its image where tokens lie on a grid, on the layout of its nodes, or else on arcs", () => {
  const [grid, layout, plain] = ["grid", "layout", null].map((kind) => ({ keys: { places: kind && { kind } }, queries: null }));
  const image = { block: 0 };
  assert.equal(viewer.firstView(grid, { circuit: null, image }), "places");
  assert.equal(viewer.firstView(plain, { circuit: null, image }), "arcs");
  assert.equal(viewer.firstView(grid, { circuit: null }), "arcs");
  assert.equal(viewer.firstView(layout, { circuit: null }), "places");
  assert.equal(viewer.firstView(layout, { circuit: {} }), "circuit");
  assert.equal(viewer.firstView(grid, { circuit: {}, image }), "circuit");
});
