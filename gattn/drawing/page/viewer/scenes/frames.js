// Scenes put together: several with a heading each, one with a title and a caption.

import { textWidth } from "../heads/texts.js";
import { rectMark, textMark, wrapped } from "./marks.js";

/** Put scenes in rows of `across`, each with a heading; what is hit also says in which `panel`. */
export function tiled(scenes, names, look, across) {
  const marks = [];
  const places = [];
  let [x, y, wide, tall] = [0, 0, 0, 0];
  scenes.forEach((scene, i) => {
    if (i && i % across === 0) [x, y] = [0, tall + 8];
    const title = wrapped(names[i], (scene.width - 24) / 1.12, 13); // bold is wider
    const top = 6 + 16 * title.length;
    title.forEach((line, n) => marks.push({ mark: "group", x, y: y + 16 * n, marks: [textMark(12, 12, line, look.ink, { bold: true, size: 13 })] }));
    marks.push({ mark: "group", x, y: y + top, marks: scene.marks });
    places.push({ x, y: y + top });
    x += scene.width;
    wide = Math.max(wide, x);
    tall = Math.max(tall, y + top + scene.height);
  });
  const hit = (px, py) => {
    const i = scenes.findIndex((scene, n) => px >= places[n].x && px < places[n].x + scene.width && py >= places[n].y && py < places[n].y + scene.height);
    const found = i < 0 ? null : scenes[i].hit(px - places[i].x, py - places[i].y);
    return found && { ...found, panel: i };
  };
  return { width: wide, height: tall, marks, hit };
}

/** Write above a scene which colour is which head. */
export function withLegend(scene, entries, look) {
  const marks = [];
  let [x, y] = [12, 12];
  for (const { name, hue } of entries) {
    const wide = 20 + textWidth(name, 12) + 16;
    if (x > 12 && x + wide > scene.width) [x, y] = [12, y + 18];
    marks.push(rectMark(x, y - 5, 14, 10, { fill: hue, radius: 2 }), textMark(x + 20, y, name, look.ink));
    x += wide;
  }
  const top = y + 14;
  const hit = (px, py) => (py < top ? null : scene.hit(px, py - top));
  const place = scene.place && ((px, py) => scene.place(px, py - top));
  return { ...scene, height: top + scene.height, marks: [...marks, { mark: "group", x: 0, y: top, marks: scene.marks }], hit, place };
}

/** Put a title above a scene and a caption below it, as a saved picture needs them. */
export function framed(scene, title, said, look) {
  const [head, foot] = [wrapped(title, scene.width - 24, 16), wrapped(said, scene.width - 24, 11)];
  const top = 16 + 20 * head.length;
  const marks = [
    ...head.map((line, i) => textMark(12, 20 + 20 * i, line, look.ink, { size: 15, bold: true })),
    { mark: "group", x: 0, y: top, marks: scene.marks },
    ...foot.map((line, i) => textMark(12, top + scene.height + 10 + 15 * i, line, look.muted, { size: 11 })),
  ];
  return { width: scene.width, height: top + scene.height + 14 + 15 * foot.length, marks };
}
