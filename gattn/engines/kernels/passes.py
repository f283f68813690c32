"""Passes over all scores on an accelerator, none of which ever writes a row of them.

Each program takes ROWS queries of one head, and walks the tiles of keys that they reach, a word of
each row at a time. What the arguments hold, `KernelScore` and `MaskTiles` say; tables that a score
does not have are None.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sums(
    query, key, scale, inside, cap, outside, pointer, column, bits, words,
    num_queries, num_keys, dim, heads, top, total,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Find each row's largest score, and the sum of all powers of e of what is below it."""
    vectors, row = _queries(query, num_queries, dim, ROWS, WIDTH)
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    summed = tl.zeros([ROWS], tl.float32)
    first, last = _steps(pointer, ROWS, SIZE, WORD)
    for step in range(first, last):
        score, _, _ = _scores(
            vectors, row, step, key, scale, inside, cap, outside, column, bits, words,
            num_queries, num_keys, dim, heads, ROWS, WIDTH, SIZE, WORD, PRECISION,
        )  # fmt: skip
        larger = tl.maximum(largest, tl.max(score, 1))
        base = tl.where(larger == -float("inf"), 0.0, larger)
        summed = summed * tl.exp(largest - base) + tl.sum(tl.exp(score - base[:, None]), 1)
        largest = larger
    place = tl.program_id(1).to(tl.int64) * num_queries + row
    tl.store(top + place, largest, mask=row < num_queries)
    tl.store(total + place, summed, mask=row < num_queries)


@triton.jit
def count(
    query, key, scale, inside, cap, outside, pointer, column, bits, words,
    num_queries, num_keys, dim, heads, top, total, least, degree,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Count each row's edges with attention of at least `least`."""
    vectors, row = _queries(query, num_queries, dim, ROWS, WIDTH)
    base, divisor, place = _row_sums(top, total, row, num_queries)
    found = tl.zeros([ROWS], tl.int32)
    first, last = _steps(pointer, ROWS, SIZE, WORD)
    for step in range(first, last):
        score, edge, _ = _scores(
            vectors, row, step, key, scale, inside, cap, outside, column, bits, words,
            num_queries, num_keys, dim, heads, ROWS, WIDTH, SIZE, WORD, PRECISION,
        )  # fmt: skip
        kept = edge & (_attention(score, base, divisor) >= least)
        found += tl.sum(kept.to(tl.int32), 1)
    tl.store(degree + place, found, mask=row < num_queries)


@triton.jit
def write(
    query, key, scale, inside, cap, outside, pointer, column, bits, words,
    num_queries, num_keys, dim, heads, top, total, least, degree, start, keys, attention,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the edges that `count` counted: those of each row from `start` on, by rising key."""
    vectors, row = _queries(query, num_queries, dim, ROWS, WIDTH)
    base, divisor, place = _row_sums(top, total, row, num_queries)
    there = row < num_queries
    left = tl.load(degree + place, mask=there, other=0)
    slot = tl.load(start + place, mask=there, other=0)
    step, last = _steps(pointer, ROWS, SIZE, WORD)
    while (step < last) & (tl.max(left, 0) > 0):
        score, edge, number = _scores(
            vectors, row, step, key, scale, inside, cap, outside, column, bits, words,
            num_queries, num_keys, dim, heads, ROWS, WIDTH, SIZE, WORD, PRECISION,
        )  # fmt: skip
        found = _attention(score, base, divisor)
        kept = edge & (found >= least)
        rank = tl.cumsum(kept.to(tl.int32), 1)
        target = slot[:, None] + rank - 1
        tl.store(keys + target, tl.broadcast_to(number[None, :], kept.shape), mask=kept)
        tl.store(attention + target, found, mask=kept)
        here = tl.sum(kept.to(tl.int32), 1)
        slot += here
        left -= here
        step += 1


@triton.jit
def largest(
    query, key, scale, inside, cap, outside, pointer, column, bits, words,
    num_queries, num_keys, dim, heads, top, total, most, keys, attention,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr,
    PRECISION: tl.constexpr, SLOTS: tl.constexpr, LOWEST: tl.constexpr,
):  # fmt: skip
    """Find the `most` largest of each row, in any order; among equals those of smaller keys.

    Attention and key of an edge are one number, so that no two are equal: attention, which is not
    negative, orders as its bits do, and comes first. The key of a slot without an edge is negative.
    """
    vectors, row = _queries(query, num_queries, dim, ROWS, WIDTH)
    base, divisor, place = _row_sums(top, total, row, num_queries)
    slots = tl.arange(0, SLOTS)
    empty = tl.where(slots < most, -1 - slots.to(tl.int64), -LOWEST)
    best = tl.broadcast_to(empty[None, :], [ROWS, SLOTS])
    first, last = _steps(pointer, ROWS, SIZE, WORD)
    for step in range(first, last):
        score, edge, number = _scores(
            vectors, row, step, key, scale, inside, cap, outside, column, bits, words,
            num_queries, num_keys, dim, heads, ROWS, WIDTH, SIZE, WORD, PRECISION,
        )  # fmt: skip
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
def _attention(score, base, divisor):
    return tl.exp(score - base[:, None]) / divisor[:, None]


@triton.jit
def _scores(
    vectors, row, step, key, scale, inside, cap, outside, column, bits, words,
    num_queries, num_keys, dim, heads,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Score a step's pairs, -inf where no edge is; say which are edges, and of which keys."""
    tile, part = step // (SIZE // WORD), step % (SIZE // WORD)
    bit = tl.arange(0, WORD)
    number = tl.load(column + tile) * SIZE + part * WORD + bit
    head = tl.program_id(1).to(tl.int64)
    feature = tl.arange(0, WIDTH)
    there = (number < num_keys)[None, :] & (feature < dim)[:, None]
    place = (head * num_keys + number[None, :]) * dim + feature[:, None]
    others = tl.load(key + place, mask=there, other=0.0)
    score = tl.dot(vectors, others, input_precision=PRECISION).to(tl.float32) * scale
    known = (row < num_queries)[:, None] & (number < num_keys)[None, :]
    table = (head % heads) * (num_queries + num_keys - 1)
    offset = table + number[None, :] - row[:, None] + num_queries - 1
    if inside is not None:
        score += tl.load(inside + offset, mask=known, other=0.0)
    if cap is not None:
        score = cap * _tanh(score)
    if outside is not None:
        score += tl.load(outside + offset, mask=known, other=0.0)
    mask = tl.load(bits + tile).to(tl.int64)
    word = tl.load(words + (mask * SIZE + row % SIZE) * (SIZE // WORD) + part)
    edge = ((word[:, None] >> bit[None, :].to(tl.int64)) & 1) == 1
    return tl.where(edge, score, -float("inf")), edge, number


@triton.jit
def _tanh(x):
    power = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - power) / (1.0 + power)
    square = x * x
    # Near 0 the difference above would cancel.
    near = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    return tl.where(tl.abs(x) < 0.1, near, tl.where(x < 0, -size, size))
