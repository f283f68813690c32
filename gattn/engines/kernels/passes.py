"""Passes over all scores on an accelerator, none of which ever writes a row of them.

Each program takes ROWS queries of one head, and walks the tiles of keys that they reach, a word of
each row at a time. What the arguments hold, `KernelScore` and `MaskTiles` say; tables that a score
does not have are None. Kept edges are few, so that most steps end with one comparison: does any
score reach the least one that its row can keep, less what rounding may take away?
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sums(
    query, key, scale, inside, cap, outside, pointer, column, bits, words,
    num_queries, num_keys, dim, heads, top, total, most, bound,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr,
    PRECISION: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Find each row's largest score, and the sum of all powers of e of what is below it.

    With SLOTS, also a `bound` that at least `most` scores of the row reach: the `most`-th largest
    of what the steps' largest scores are.
    """
    vectors, row = _queries(query, num_queries, dim, ROWS, WIDTH)
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    summed = tl.zeros([ROWS], tl.float32)
    if SLOTS > 0:
        slots = tl.arange(0, SLOTS)
        free = tl.where(slots < most, -float("inf"), float("inf"))
        best = tl.broadcast_to(free[None, :], [ROWS, SLOTS])
    first, last = _steps(pointer, ROWS, SIZE, WORD)
    for step in range(first, last):
        score, _ = _scores(
            vectors, row, step, key, scale, inside, cap, outside, column, bits, words,
            num_queries, num_keys, dim, heads, ROWS, WIDTH, SIZE, WORD, PRECISION,
        )  # fmt: skip
        here = tl.max(score, 1)
        larger = tl.maximum(largest, here)
        base = tl.where(larger == -float("inf"), 0.0, larger)
        summed = summed * tl.exp(largest - base) + tl.sum(tl.exp(score - base[:, None]), 1)
        largest = larger
        if SLOTS > 0:
            goes = slots[None, :] == tl.argmin(best, 1)[:, None]
            best = tl.where(goes, tl.maximum(best, here[:, None]), best)
    place = tl.program_id(1).to(tl.int64) * num_queries + row
    tl.store(top + place, largest, mask=row < num_queries)
    tl.store(total + place, summed, mask=row < num_queries)
    if SLOTS > 0:
        tl.store(bound + place, tl.min(best, 1), mask=row < num_queries)


@triton.jit
def count(
    query, key, scale, inside, cap, outside, pointer, column, bits, words,
    num_queries, num_keys, dim, heads, top, total, least, degree, reached,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Count each row's edges with attention of at least `least`; note between which steps."""
    vectors, row = _queries(query, num_queries, dim, ROWS, WIDTH)
    base, divisor, place = _row_sums(top, total, row, num_queries)
    floor = _floor(base + tl.log(tl.maximum(least * divisor, 1e-37)), base, row, num_queries)
    found = tl.zeros([ROWS], tl.int32)
    first, last = _steps(pointer, ROWS, SIZE, WORD)
    begin, end = last, first
    for step in range(first, last):
        score, _ = _scores(
            vectors, row, step, key, scale, inside, cap, outside, column, bits, words,
            num_queries, num_keys, dim, heads, ROWS, WIDTH, SIZE, WORD, PRECISION,
        )  # fmt: skip
        if _any(score >= floor[:, None]):
            edge = _edges(row, step, bits, words, SIZE, WORD)
            kept = edge & (_attention(score, base, divisor) >= least)
            found += tl.sum(kept.to(tl.int32), 1)
            begin, end = tl.minimum(begin, step), step + 1
    tl.store(degree + place, found, mask=row < num_queries)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(reached + 2 * program, begin)
    tl.store(reached + 2 * program + 1, end)


@triton.jit
def write(
    query, key, scale, inside, cap, outside, pointer, column, bits, words,
    num_queries, num_keys, dim, heads, top, total, least, start, reached, keys, attention,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the edges that `count` counted: those of each row from `start` on, by rising key."""
    vectors, row = _queries(query, num_queries, dim, ROWS, WIDTH)
    base, divisor, place = _row_sums(top, total, row, num_queries)
    floor = _floor(base + tl.log(tl.maximum(least * divisor, 1e-37)), base, row, num_queries)
    slot = tl.load(start + place, mask=row < num_queries, other=0)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    begin, end = tl.load(reached + 2 * program), tl.load(reached + 2 * program + 1)
    for step in range(begin, end):
        score, number = _scores(
            vectors, row, step, key, scale, inside, cap, outside, column, bits, words,
            num_queries, num_keys, dim, heads, ROWS, WIDTH, SIZE, WORD, PRECISION,
        )  # fmt: skip
        if _any(score >= floor[:, None]):
            found = _attention(score, base, divisor)
            edge = _edges(row, step, bits, words, SIZE, WORD)
            kept = edge & (found >= least) & (row < num_queries)[:, None]
            rank = tl.cumsum(kept.to(tl.int32), 1)
            target = slot[:, None] + rank - 1
            tl.store(keys + target, tl.broadcast_to(number[None, :], kept.shape), mask=kept)
            tl.store(attention + target, found, mask=kept)
            slot += tl.sum(kept.to(tl.int32), 1)


@triton.jit
def largest(
    query, key, scale, inside, cap, outside, pointer, column, bits, words,
    num_queries, num_keys, dim, heads, top, total, most, bound, keys, attention,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr,
    PRECISION: tl.constexpr, SLOTS: tl.constexpr, LOWEST: tl.constexpr,
):  # fmt: skip
    """Find the `most` largest of each row, in any order; among equals those of smaller keys.

    Attention and key of an edge are one number, so that no two are equal: attention, which is not
    negative, orders as its bits do, and comes first. The key of a slot without an edge is negative.
    """
    vectors, row = _queries(query, num_queries, dim, ROWS, WIDTH)
    base, divisor, place = _row_sums(top, total, row, num_queries)
    floor = -float("inf")
    if bound is not None:
        floor = tl.load(bound + place, mask=row < num_queries, other=0.0)
    floor = _floor(floor, base, row, num_queries)
    slots = tl.arange(0, SLOTS)
    empty = tl.where(slots < most, -1 - slots.to(tl.int64), -LOWEST)
    best = tl.broadcast_to(empty[None, :], [ROWS, SLOTS])
    first, last = _steps(pointer, ROWS, SIZE, WORD)
    for step in range(first, last):
        score, number = _scores(
            vectors, row, step, key, scale, inside, cap, outside, column, bits, words,
            num_queries, num_keys, dim, heads, ROWS, WIDTH, SIZE, WORD, PRECISION,
        )  # fmt: skip
        if _any(score >= floor[:, None]):
            edge = _edges(row, step, bits, words, SIZE, WORD)
            edge = edge & (score >= floor[:, None])
            high = _attention(score, base, divisor).to(tl.int32, bitcast=True).to(tl.int64) << 32
            code = tl.where(edge, high | (0x7FFFFFFF - number[None, :].to(tl.int64)), LOWEST)
            candidate, weakest = tl.max(code, 1), tl.min(best, 1)
            while tl.max((candidate > weakest).to(tl.int32), 0) > 0:
                goes = (candidate > weakest)[:, None] & (best == weakest[:, None])
                best = tl.where(goes, candidate[:, None], best)
                code = tl.where(code == candidate[:, None], LOWEST, code)
                candidate, weakest = tl.max(code, 1), tl.min(best, 1)
    is_edge = (best >= 0) & (slots < most)[None, :]
    found = (best >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    number = (0x7FFFFFFF - (best & 0xFFFFFFFF)).to(tl.int32)
    target = place[:, None] * most + slots[None, :]
    there = (row < num_queries)[:, None] & (slots < most)[None, :]
    tl.store(keys + target, tl.where(is_edge, number, -1), mask=there)
    tl.store(attention + target, tl.where(is_edge, found, 0.0), mask=there)


@triton.jit
def _queries(query, num_queries, dim, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Load the program's queries (ROWS, WIDTH); also say which these are."""
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    feature = tl.arange(0, WIDTH)
    place = (head * num_queries + row[:, None]) * dim + feature[None, :]
    there = (row < num_queries)[:, None] & (feature < dim)[None, :]
    return tl.load(query + place, mask=there, other=0.0), row


@triton.jit
def _steps(pointer, ROWS: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr):
    """Find the first and the last step: a word of each row of the tiles that are reached."""
    tile, words = tl.program_id(0) * ROWS // SIZE, SIZE // WORD
    return tl.load(pointer + tile) * words, tl.load(pointer + tile + 1) * words


@triton.jit
def _row_sums(top, total, row, num_queries):
    place = tl.program_id(1).to(tl.int64) * num_queries + row
    there = row < num_queries
    base = tl.load(top + place, mask=there, other=0.0)
    divisor = tl.load(total + place, mask=there, other=1.0)
    return tl.where(base == -float("inf"), 0.0, base), tl.where(divisor == 0, 1.0, divisor), place


@triton.jit
def _floor(score, base, row, num_queries):
    """Lower a score by more than rounding adds: none below it is kept.

    Scores so far below the largest that their attention may be 0 are all equal.
    """
    score = tl.where(score > base - 60.0, score, -float("inf"))
    score -= 1e-4 * tl.maximum(1.0, tl.maximum(tl.abs(score), tl.abs(base)))
    return tl.where(row < num_queries, score, float("inf"))


@triton.jit
def _any(conditions):
    return tl.max(tl.max(conditions.to(tl.int32), 1), 0) > 0


@triton.jit
def _attention(score, base, divisor):
    return tl.exp(score - base[:, None]) / divisor[:, None]


@triton.jit
def _scores(
    vectors, row, step, key, scale, inside, cap, outside, column, bits, words,
    num_queries, num_keys, dim, heads,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Score a step's pairs, -inf where no edge is; say of which keys."""
    tile, part = step // (SIZE // WORD), step % (SIZE // WORD)
    start = tl.load(column + tile) * SIZE + part * WORD
    bit, feature = tl.arange(0, WORD), tl.arange(0, WIDTH)
    head = tl.program_id(1).to(tl.int64)
    # Past the last key are no edges: any key does.
    inner = tl.minimum(bit, num_keys - 1 - start)
    place = inner[None, :] * dim + feature[:, None]
    first = key + (head * num_keys + start) * dim
    others = tl.load(first + place, mask=(feature < dim)[:, None], other=0.0)
    score = tl.dot(vectors, others, input_precision=PRECISION).to(tl.float32) * scale
    row_in = tl.minimum(row, num_queries - 1) - tl.program_id(0) * ROWS
    table = (head % heads) * (num_queries + num_keys - 1)
    table += start - tl.program_id(0) * ROWS + num_queries - 1
    offset = inner[None, :] - row_in[:, None]
    if inside is not None:
        score += tl.load(inside + table + offset)
    if cap is not None:
        score = cap * _tanh(score)
    if outside is not None:
        score += tl.load(outside + table + offset)
    if tl.load(bits + tile) != 1:  # else all pairs are edges
        score = tl.where(_edges(row, step, bits, words, SIZE, WORD), score, -float("inf"))
    return score, start + bit


@triton.jit
def _edges(row, step, bits, words, SIZE: tl.constexpr, WORD: tl.constexpr):
    """Say which of a step's pairs are edges."""
    tile, part = step // (SIZE // WORD), step % (SIZE // WORD)
    mask = tl.load(bits + tile).to(tl.int64)
    word = tl.load(words + mask * SIZE * (SIZE // WORD) + (row % SIZE) * (SIZE // WORD) + part)
    return ((word[:, None] >> tl.arange(0, WORD)[None, :].to(tl.int64)) & 1) == 1


@triton.jit
def _tanh(x):
    power = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - power) / (1.0 + power)
    square = x * x
    # Near 0 the difference above would cancel.
    near = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    return tl.where(tl.abs(x) < 0.1, near, tl.where(x < 0, -size, size))
