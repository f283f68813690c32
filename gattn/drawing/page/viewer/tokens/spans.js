// Parts of the text, such as the sentences of a pair: which of them are in view, and how much each reads of each.

/** Parts are called A, B, C and so on. */
export const spanName = (n) => String.fromCharCode(65 + n);

/** The parts in view, as "0-1" for what the first reads of the second; "" if all tokens are, or others. */
export function pairInView(spans, { keys, queries }) {
  const [reader, read] = [queries, keys].map((range) => spans.findIndex((span) => String(span) === String(range)));
  return reader < 0 || read < 0 ? "" : `${reader}-${read}`;
}

/** The share of its attention that each part gives to each, as shares[reader][read]; NaN if a part reads nothing. */
export function sharesOf(head, spans) {
  const partOf = (token) => (token.virtual ? -1 : spans.findIndex(([from, to]) => token.index >= from && token.index < to));
  const onKeys = head.keys.map(partOf);
  const [sums, masses] = [spans.map(() => spans.map(() => 0)), spans.map(() => 0)];
  head.queries.forEach((query, row) => {
    const reader = partOf(query);
    if (reader < 0) return;
    masses[reader] += head.mass[row];
    for (let e = head.start[row]; e < head.start[row + 1]; e++) {
      const read = onKeys[head.key[e]];
      if (read >= 0) sums[reader][read] += Math.abs(head.values.attention[e]);
    }
  });
  return sums.map((row, reader) => row.map((sum) => sum / masses[reader]));
}
