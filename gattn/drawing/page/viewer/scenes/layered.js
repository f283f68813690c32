// Layered: all layers, one on the other.

import { count, grouped, isolated, number, percent } from "../heads/texts.js";
import { MOST_LINES, limitText } from "../heads/edges.js";
import { staying, strongestOf } from "../heads/layers.js";
import { KEY_HEIGHT, curvesMark, fitLabels, labelRow, lineMark, named, noteMark, noteMarks, overhang, rectMark, scaleMarks } from "./marks.js";

/** Where layers lie: `x` of a token, `y` of a level, and the labels that fit. */
function layerPlaces({ layers, width, height, range: [first, end] }, tokens) {
  const [top, depth] = [40, layers.length];
  const loose = (width - 82) / Math.max(end - first, 1);
  const left = Math.max(62, overhang(fitLabels(tokens, loose, [0, 45, 90]), loose) + 12);
  const pitch = (width - left - 20) / Math.max(end - first, 1);
  const labels = fitLabels(tokens, pitch, [0, 45, 90]);
  const high = Math.max(34, Math.min(110, (height - labels.extent - 110) / Math.max(depth, 1)));
  const y = (level) => top + (depth - level) * high;
  const hit = (px, py) => {
    if (py > y(0) + labels.extent + 12 || py < top - high / 2 || px < left - 10) return null;
    const token = first + Math.min(end - first - 1, Math.max(0, Math.floor((px - left) / pitch)));
    const level = py > y(0) ? depth : Math.min(depth, Math.max(0, Math.round((y(0) - py) / high)));
    return { key: token, row: token, level };
  };
  return { x: (token) => left + (token - first + 0.5) * pitch, y, left, pitch, labels, hit, places: tokens.map((_, n) => n + first) };
}

/** Draw levels, layer names, and the residual stream of each token, which has a width if paths are traced. */
function layerGround({ layers, layerNames, look, width, level, token, traced, scale }, { x, y, left, pitch, places }) {
  const depth = layers.length;
  const levels = Array.from({ length: depth + 1 }, (_, l) => l);
  const marks = levels.map((l) => lineMark(left, y(l), width - 12, y(l), look.faint, 0.7));
  marks.push(...layerNames.map((name, l) => noteMark(look, 8, (y(l) + y(l + 1)) / 2, name)));
  if (pitch > 7) marks.push(...places.map((i) => lineMark(x(i), y(0), x(i), y(depth), look.faint)));
  for (let l = 0; traced && l < depth; l++)
    for (const i of places) {
      const stays = traced.levels[l < level ? l + 1 : l][i] * staying(layers[l], i);
      if (stays > 0.002) marks.push(lineMark(x(i), y(l), x(i), y(l + 1), look.muted, Math.max(0.8, scale.width(stays))));
    }
  const dot = (i, l, r, fill) => rectMark(x(i) - r, y(l) - r, 2 * r, 2 * r, { radius: r, fill });
  const dots = pitch > 3 ? levels.flatMap((l) => places.map((i) => dot(i, l, Math.min(3, pitch / 3), look.muted))) : [];
  if (token !== null && places.includes(token)) dots.push(dot(token, level, 5, look.accent));
  return { marks, dots };
}

/** Say how much the drawn edges hold: of the flow, of means that may cancel, or of all attention. */
function shareOf({ layers, traced, level, range }, kept, total) {
  const share = (whole) => percent(kept, whole || 1);
  if (traced) return `${share(total)} of the flow through attention${lostOf(traced, level)}`;
  const alone = layers.some(({ isChange, isPart }) => isChange && isPart) ? "; edges kept in only one run are left out" : "";
  if (layers.some(({ isSigned }) => isSigned)) return `${share(total)} of the means${alone}`;
  return `${share(layers.reduce((sum, { mass }) => mass.slice(...range).reduce((some, m) => some + m, sum), 0))} of the attention`;
}

/** Say how much of the flow down from a token is lost in missing edges. */
function lostOf({ levels }, level) {
  const lost = level ? 1 - levels[0].reduce((sum, share) => sum + share, 0) : 0;
  return lost > 0.0005 ? `; ${number(100 * lost)} % is lost on the way down in dropped or hidden edges` : "";
}

/** Tokens side by side, layers above each other: the strongest edges of the mean over heads. */
export function layered(picture) {
  const { layers, look, width, level, token, traced, scale, ruled = null, of = "mean over heads", range: [first, end] } = picture;
  const tokens = picture.tokens.slice(first, end);
  const places = layerPlaces(picture, tokens);
  const { x, y, pitch, labels } = places;
  const isIn = (i) => i >= first && i < end;
  const isWhole = tokens.length === picture.tokens.length;
  const isInside = isWhole ? () => true : (l, e) => isIn(layers[l].key[e]) && isIn(layers[l].query[e]);
  const most = ruled ? MOST_LINES : Math.max(traced ? 80 : 30 * layers.length, 3 * tokens.length);
  const { edges, all, passing, total, isTied } = strongestOf(traced ? traced.flows : layers.map(({ mean }) => mean), most, isInside, ruled?.passes);
  const { marks, dots } = layerGround(picture, places);
  for (const { l, e, size } of edges) {
    const [from, to] = [x(layers[l].key[e]), x(layers[l].query[e])];
    const [value, middle] = [traced ? size : layers[l].mean[e], (y(l) + y(l + 1)) / 2];
    const bulge = from === to ? Math.min(0.45 * pitch, 12) : 0;
    marks.push(curvesMark([[from, y(l), from + bulge, middle, to + bulge, middle, to, y(l + 1)]], scale.colour(value, look, true), Math.max(0.6, scale.width(value))));
  }
  const row = {
    place: (n) => [x(n + first), y(0) + 8 + (labels.angle ? 0 : labels.size / 2)],
    anchor: labels.angle ? "end" : "middle",
    isFocus: (n) => n + first === token,
    isLinked: (n) => Boolean(traced) && traced.levels[0][n + first] >= 0.05,
    sign: "▲",
  };
  marks.push(...dots, ...labelRow({ ...picture, focus: traced }, tokens, labels, row));
  const paths = traced && `paths down from ${isolated(named(picture.tokens[token]))} at level ${level}${level < layers.length ? ", and up" : ""}`;
  marks.push(...noteMarks(look, 8, width, traced ? `${paths}: rollout with the residual stream` : `upwards: from key to query; ${of}`));
  const keyTop = y(0) + labels.extent + 26;
  marks.push(...scaleMarks(picture, 8, keyTop, true));
  const kept = edges.reduce((sum, { size }) => sum + size, 0);
  const isPart = edges.length < passing;
  const shown = isPart ? limitText({ most: edges.length, among: passing, isTied }) : passing < all ? `${grouped(passing)} of ${count(all, "edge")}` : `all ${count(all, "edge")}`;
  const inAll = isPart && passing < all ? ` (${grouped(all)} in all)` : "";
  const said = `${ruled?.rule ? `${ruled.rule}: ` : ""}${shown}${inAll}, ${shareOf(picture, kept, total)}`;
  return { width, height: keyTop + KEY_HEIGHT, marks, hit: places.hit, caption: said };
}
