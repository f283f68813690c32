// The circuit by layers: tokens side by side, stacks and their layers above each other.

import { textWidth } from "../heads/texts.js";
import { KEY_HEIGHT, curvesMark, fitLabels, labelRow, lineMark, noteMark, noteMarks, overhang, rectMark, scaleMarks } from "../scenes/marks.js";

const MOST_NAMES = 40;
const NAME = 18; // Half of a name's width, and some room.
const COURSE = Array.from({ length: 25 }, (_, n) => n / 24);

const columnOf = ({ bands }, [band, , position]) => bands[band].left + bands[band].tokens.indexOf(position);

/** Of the edges between the same two nodes: which of them each edge is, and how many there are. */
function fansOf({ edges }) {
  const sizes = new Map();
  const fans = edges.map(({ from, to }) => {
    const name = `${from} ${to}`;
    sizes.set(name, (sizes.get(name) ?? 0) + 1);
    return { name, place: sizes.get(name) - 1 };
  });
  return fans.map(({ name, place }) => ({ place, size: sizes.get(name) }));
}

/** How far the edges of a column go to the right of it, one beside the other. */
const bulgeOf = (pitch, { place, size }) => Math.min(0.45 * pitch, 26) + place * Math.min(12, 48 / size);

/** How much room names and curves in the last column need to the right of it. */
function roomRight(circuit, fans, pitch) {
  const isIn = ({ from, to }) => [from, to].every((node) => columnOf(circuit, node) === circuit.columns - 1);
  return circuit.edges.reduce((most, edge, n) => (isIn(edge) ? Math.max(most, 0.75 * bulgeOf(pitch, fans[n]) + NAME) : most), NAME);
}

/** Where nodes lie: `x` and `y` of (band, depth, position), and the labels of each band that fit. */
function nodePlaces({ circuit, bands, width, height }, fans, top) {
  const shown = circuit.bands.map((band, n) => band.tokens.map((position) => bands[n][position]));
  const loose = (width - 130) / Math.max(circuit.columns, 1);
  const fitAt = (pitch) => shown.map((tokens) => fitLabels(tokens, pitch, [0, 45, 90]));
  const names = circuit.isSeveral ? circuit.bands.map(({ name }) => textWidth(name, 11) + 16) : [];
  const left = Math.max(110, ...names, ...fitAt(loose).map((labels) => overhang(labels, loose) + 12));
  const right = Math.max(20, roomRight(circuit, fans, loose) - loose / 2);
  const pitch = (width - left - right) / Math.max(circuit.columns, 1);
  const labels = fitAt(pitch);
  const bases = [...new Set(circuit.bands.map(({ base }) => base))].sort((a, b) => a - b);
  const under = (base) => Math.max(0, ...circuit.bands.map((band, n) => (band.base === base && band.hasNames ? labels[n].extent + 12 : 0)));
  const layersIn = (base) => Math.max(...circuit.bands.filter((band) => band.base === base).map(({ rises }) => rises.at(-1)));
  const layers = bases.reduce((sum, base) => sum + layersIn(base), 0);
  const between = bases.slice(1).reduce((sum, base) => sum + under(base) + 14, 0);
  const high = Math.max(34, Math.min(110, (height - under(bases[0]) - between - 110) / Math.max(layers, 1)));
  const bottoms = new Map();
  let up = top + layers * high + between;
  const bottom = up;
  for (const base of bases) {
    if (base !== bases[0]) up -= under(base) + 14;
    bottoms.set(base, up);
    up -= layersIn(base) * high;
  }
  const x = (node) => left + (columnOf(circuit, node) + 0.5) * pitch;
  const y = ([band, depth]) => bottoms.get(circuit.bands[band].base) - circuit.bands[band].rises[depth] * high;
  const bottomOf = ({ base }) => bottoms.get(base);
  return { x, y, left, pitch, high, labels, shown, bottomOf, bottom: bottom + under(bases[0]) };
}

/** How far a token's stream goes up, past layers of other stacks, before the edge's own layer. */
const risesPast = ({ bands }, { from: [band, depth], to: [other, end] }) => (band === other ? bands[band].rises[end] - bands[band].rises[depth] - 1 : 0);

/** The control points of each edge; those of several heads between the same nodes fan out. */
function pathsOf(circuit, fans, { x, y, pitch, high: layer }) {
  return circuit.edges.map((edge, n) => {
    const { from, to } = edge;
    const { place, size } = fans[n];
    const [a, b, c, d] = [x(from), y(from) - layer * risesPast(circuit, edge), x(to), y(to)];
    const high = d - b;
    if (a === c) {
      const out = bulgeOf(pitch, fans[n]);
      return [a, b, a + out, b + 0.25 * high, a + out, b + 0.75 * high, c, d];
    }
    const off = 14 * (place - (size - 1) / 2);
    return [a, b, a + off, b + 0.55 * high + off, c + off, b + 0.45 * high + off, c, d];
  });
}

const pointAt = ([a, b, c, d, e, f, g, h], s) => {
  const [p, q, r, t] = [(1 - s) ** 3, 3 * (1 - s) ** 2 * s, 3 * (1 - s) * s * s, s ** 3];
  return [p * a + q * c + r * e + t * g, p * b + q * d + r * f + t * h];
};

/** The layers of a tier from below, each with the band that has its queries. */
const layersOf = ({ bands }, tier) =>
  tier
    .filter((n) => !bands[n].isKeySide)
    .flatMap((n) => bands[n].rises.slice(1).map((rise, layer) => ({ band: n, layer, rise })))
    .sort((a, b) => a.rise - b.rise);

/** Write the layers and the stacks on the left, and the tokens below each stack. */
function groundMarks(picture, { x, y, left, high, labels, shown, bottomOf }) {
  const { circuit, look, width } = picture;
  const marks = [];
  for (const base of new Set(circuit.bands.map((band) => band.base))) {
    const tier = [...circuit.bands.keys()].filter((n) => circuit.bands[n].base === base);
    const rows = layersOf(circuit, tier);
    rows.forEach(({ band, layer }, at) => {
      const { name, stack } = circuit.bands[band];
      const isNew = stack !== (at ? circuit.bands[rows[at - 1].band].stack : null);
      const lines = [...(circuit.isSeveral && isNew ? [name] : []), `layer ${layer}`];
      const middle = y([band, layer + 1]) + high / 2;
      lines.forEach((line, i) => marks.push(noteMark(look, 8, middle + 14 * (i - (lines.length - 1) / 2), line)));
    });
    const top = Math.min(...tier.map((n) => y([n, circuit.bands[n].rises.length - 1])));
    const sides = tier.filter((n, at) => tier.findIndex((m) => circuit.bands[m].left === circuit.bands[n].left) === at);
    for (const n of sides.length > 1 ? sides : []) {
      const { tokens, isKeySide } = circuit.bands[n];
      if (tokens.length) marks.push(noteMark(look, x([n, 0, tokens[0]]) - 8, top - 10, isKeySide ? "keys" : "queries"));
    }
  }
  circuit.bands.forEach((band, n) => {
    band.rises.forEach((_, depth) => marks.push(lineMark(left, y([n, depth]), width - 12, y([n, depth]), look.faint, 0.7)));
    if (!band.hasNames) return;
    const row = {
      place: (i) => [x([n, 0, band.tokens[i]]), bottomOf(band) + 8 + (labels[n].angle ? 0 : labels[n].size / 2)],
      anchor: labels[n].angle ? "end" : "middle",
      isFocus: () => false,
      isLinked: () => false,
      sign: "▲",
    };
    marks.push(...labelRow(picture, shown[n], labels[n], row));
  });
  return marks;
}

/** Order edges to be named: the chosen one, then one of each head, then the others, the most needed first. */
function inOrderOfNames({ edges }, pointed) {
  const seen = new Set();
  const isFirst = edges.map(({ stack, layer, head }) => seen.size < seen.add(`${stack} ${layer}.${head}`).size);
  const order = [...edges.keys()].sort((a, b) => (b === pointed) - (a === pointed) || isFirst[b] - isFirst[a] || a - b);
  return order.slice(0, Math.max(MOST_NAMES, seen.size));
}

/** Name the heads of edges where no name meets another. */
function nameMarks({ circuit, look, pointed }, paths) {
  const taken = [];
  return inOrderOfNames(circuit, pointed).flatMap((n) => {
    const { stack, layer, head, from, to } = circuit.edges[n];
    const isBetween = circuit.bands[from[0]].stack !== circuit.bands[to[0]].stack;
    const text = `${isBetween ? `${stack} ` : ""}${layer}.${head}`;
    const wide = 7 * text.length + 4;
    const spot = [0.5, 0.4, 0.6, 0.3, 0.7].map((s) => pointAt(paths[n], s)).find(([x, y]) => taken.every(([u, v, w]) => Math.abs(x - u) > (wide + w) / 2 || Math.abs(y - v) > 14));
    if (!spot) return [];
    const [x, y] = spot;
    taken.push([x, y, wide]);
    const fill = n === pointed ? look.accent : look.ink;
    return [rectMark(x - wide / 2, y - 7, wide, 14, { fill: look.paper, radius: 4 }), { mark: "text", x, y, text, fill, size: 11, anchor: "middle", bold: n === pointed }];
  });
}

/** The number of an edge that its width and colour show. */
const sizeOf = (circuit, edge) => edge[circuit.size] ?? 0;

/** The least and the largest number that widths and colours of a circuit show. */
export function rangeOf(circuit) {
  const sizes = circuit.edges.map((edge) => sizeOf(circuit, edge));
  return [Math.min(0, ...sizes), Math.max(1, ...sizes)];
}

/** A circuit by layers; each edge of a head is a curve, the pointed one on a bright ground. */
export function circuitScene(picture) {
  const { circuit, look, width, scale, pointed } = picture;
  const notes = noteMarks(look, 12, width, "upwards: from key to query; curves are named by their heads");
  const fans = fansOf(circuit);
  const places = nodePlaces(picture, fans, 26 + 14 * notes.length);
  const { x, y, bottom } = places;
  const paths = pathsOf(circuit, fans, places);
  const marks = groundMarks(picture, places);
  for (const [from, to] of circuit.streams) marks.push(lineMark(x(from), y(from), x(to), y(to), look.muted, 1.5));
  for (const edge of circuit.edges.filter((one) => risesPast(circuit, one))) {
    const [at, start] = [x(edge.from), y(edge.from)];
    marks.push(lineMark(at, start, at, start - places.high * risesPast(circuit, edge), look.muted, 1.5));
  }
  if (pointed !== null) marks.push(curvesMark([paths[pointed]], look.mark, scale.width(sizeOf(circuit, circuit.edges[pointed])) + 8));
  for (const n of [...paths.keys()].reverse()) {
    const value = sizeOf(circuit, circuit.edges[n]);
    marks.push(curvesMark([paths[n]], scale.colour(value, look, true), Math.max(1.2, scale.width(value)), value < 0 ? { dash: [5, 3] } : {}));
  }
  const nodes = new Map([...circuit.edges.flatMap(({ from, to }) => [from, to]), ...circuit.streams.flat()].map((node) => [String(node), node]));
  for (const node of nodes.values()) marks.push(rectMark(x(node) - 3, y(node) - 3, 6, 6, { radius: 3, fill: look.ink }));
  marks.push(...nameMarks(picture, paths), ...notes);
  marks.push(...scaleMarks(picture, 8, bottom + 14, true));
  const courses = paths.map((path) => COURSE.map((s) => pointAt(path, s)));
  const hit = (px, py) => {
    const far = courses.map((points) => points.reduce((least, [u, v]) => Math.min(least, Math.hypot(u - px, v - py)), Infinity));
    const edge = far.indexOf(Math.min(...far));
    return edge >= 0 && far[edge] < 14 ? { edge } : null;
  };
  return { width, height: bottom + 14 + KEY_HEIGHT, marks, hit, caption: circuit.caption };
}
