// Scenes put together: several with a heading each, one with a title and a caption.

import { textMark, wrapped } from "./marks.js";

/** Put scenes one below the other, or side by side, each with a heading. */
export function tiled(scenes, names, look, isBeside) {
  const marks = [];
  const places = [];
  let [x, y, wide, tall] = [0, 0, 0, 0];
  scenes.forEach((scene, i) => {
    marks.push({ mark: "group", x, y, marks: [textMark(12, 12, names[i], look.ink, { bold: true, size: 13 })] });
    marks.push({ mark: "group", x, y: y + 22, marks: scene.marks });
    places.push({ x, y: y + 22 });
    wide = Math.max(wide, x + scene.width);
    tall = Math.max(tall, y + 22 + scene.height);
    if (isBeside) x += scene.width;
    else y += 30 + scene.height;
  });
  const hit = (px, py) => {
    const i = scenes.findIndex((scene, n) => px >= places[n].x && px < places[n].x + scene.width && py >= places[n].y && py < places[n].y + scene.height);
    return i < 0 ? null : scenes[i].hit(px - places[i].x, py - places[i].y);
  };
  return { width: wide, height: tall, marks, hit };
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
