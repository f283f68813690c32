// Where labels of nodes have room.

const CELL = 32;

/** Boxes [left, top, right, bottom] in a plane, found by where they are. */
class Boxes {
  constructor() {
    this.cells = new Map();
  }

  *#namesOf([left, top, right, bottom]) {
    for (let x = Math.floor(left / CELL); x <= Math.floor(right / CELL); x++) for (let y = Math.floor(top / CELL); y <= Math.floor(bottom / CELL); y++) yield `${x} ${y}`;
  }

  add(box) {
    for (const name of this.#namesOf(box)) {
      if (!this.cells.has(name)) this.cells.set(name, []);
      this.cells.get(name).push(box);
    }
  }

  /** Whether a box meets none of these. */
  isFree([left, top, right, bottom]) {
    for (const name of this.#namesOf([left, top, right, bottom]))
      for (const [l, t, r, b] of this.cells.get(name) ?? []) if (l < right && r > left && t < bottom && b > top) return false;
    return true;
  }
}

/** The places of a label around its node, best first: the middle of its text, by its half width and height. */
const AROUND = [[0, 1], [1, 0], [-1, 0], [0, -1], [0.8, 0.8], [-0.8, 0.8], [0.8, -0.8], [-0.8, -0.8]];

/**
 * Find places of labels around nodes: on no node, on no other label and, if possible, on no loop; null where there is no room.
 *
 * Nodes in `first` are labelled before all others, the first of them in any case; the labels of the others stay where they are without `first`, or go.
 */
export function labelPlaces({ places, sizes, radius, loops, frame, first }) {
  const onLoops = new Boxes();
  for (const [x, y] of loops.map((node) => places[node])) onLoops.add([x - 0.9 * radius, y - 4 * radius, x + 0.9 * radius, y]);
  const boxAt = ([x, y], [wide, high]) => [x - wide / 2, y - high / 2, x + wide / 2, y + high / 2];
  const isInside = ([left, top, right, bottom]) => left >= frame[0] && top >= frame[1] && right <= frame[2] && bottom <= frame[3];
  const roomsFor = (nodes, known) => {
    const taken = new Boxes();
    for (const [x, y] of places) taken.add([x - radius, y - radius, x + radius, y + radius]);
    const found = places.map(() => null);
    for (const node of nodes) {
      if (found[node]) continue;
      const [[x, y], [wide, high]] = [places[node], sizes[node]];
      const ways = known[node] ? [known[node]] : AROUND.map(([right, down]) => [x + right * (radius + 1 + wide / 2), y + down * (radius + 1 + high / 2)]);
      const free = ways.filter((way) => isInside(boxAt(way, sizes[node])) && taken.isFree(boxAt(way, sizes[node])));
      const at = free.find((way) => onLoops.isFree(boxAt(way, sizes[node]))) ?? free[0] ?? (node === first[0] ? ways[0] : null);
      if (!at) continue;
      found[node] = at;
      taken.add(boxAt(at, sizes[node]));
    }
    return found;
  };
  const all = [...places.keys()].filter((node) => sizes[node][0]);
  const usual = roomsFor(all, []);
  if (!first.length) return usual;
  const [focus, ...linked] = first;
  const isKnown = (node) => Boolean(usual[node]);
  return roomsFor([focus, ...linked.filter(isKnown), ...linked, ...all.filter(isKnown)], usual);
}
