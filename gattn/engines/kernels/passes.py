"""Passes over all scores on an accelerator, none of which ever writes a row of them.

Each program takes ROWS queries of one head, and walks the tiles of keys that they reach, a word of
each row at a time. What the arguments hold, `KernelScore` and `MaskTiles` say; tables that a score
does not have are None. Kept edges are few, so that a step looks closely only where a score reaches
its row's floor: the least one that may be kept, less what rounding may take away.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sums(
    query, key, scale, inside, cap, outside, pointer, column, bits, words,
    num_queries, num_keys, dim, heads, top, total, most, bound,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr,
    PRECISION: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Find each row's largest score, and the sum of all powers of e of what is below it.

    With GROUPS, also a `bound` that at least `most` scores of the row reach, if it is not -inf: the
    `most`-th largest of the largest scores of groups of keys, those of equal remainders.
    """
    vectors, row = _queries(query, num_queries, dim, ROWS, WIDTH)
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    summed = tl.zeros([ROWS], tl.float32)
    if GROUPS > 0:
        maxima = tl.full([ROWS, GROUPS], -float("inf"), tl.float32)
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
        if GROUPS > 0:
            parts = tl.reshape(score, [ROWS, WORD // GROUPS, GROUPS])
            maxima = tl.maximum(maxima, tl.max(parts, 1))
    place = tl.program_id(1).to(tl.int64) * num_queries + row
    tl.store(top + place, largest, mask=row < num_queries)
    tl.store(total + place, summed, mask=row < num_queries)
    if GROUPS > 0:
        reached = largest
        for _ in range(1, most):
            maxima = tl.where(maxima >= reached[:, None], -float("inf"), maxima)
            reached = tl.max(maxima, 1)
        tl.store(bound + place, reached, mask=row < num_queries)


@triton.jit
def collect(
    query, key, scale, inside, cap, outside, pointer, column, bits, words,
    num_queries, num_keys, dim, heads, floor, start, count, keys, scores,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr,
    PRECISION: tl.constexpr, IN_PTX: tl.constexpr,
):  # fmt: skip
    """List each row's edges that score at least its `floor`, in any order, and count them.

    Those of a row go where `start` says, up to the next row's; what has no room is only counted.
    """
    vectors, row = _queries(query, num_queries, dim, ROWS, WIDTH)
    first_row = tl.program_id(1).to(tl.int64) * num_queries + tl.program_id(0) * ROWS
    place, there = tl.program_id(1).to(tl.int64) * num_queries + row, row < num_queries
    least = tl.load(floor + place, mask=there, other=float("inf"))
    origin = tl.load(start + first_row)
    begin = tl.load(start + place, mask=there, other=0)
    room = (tl.load(start + place + 1, mask=there, other=0) - begin).to(tl.int32)
    begin = (begin - origin).to(tl.int32)
    first, last = _steps(pointer, ROWS, SIZE, WORD)
    for step in range(first, last):
        score, number = _scores(
            vectors, row, step, key, scale, inside, cap, outside, column, bits, words,
            num_queries, num_keys, dim, heads, ROWS, WIDTH, SIZE, WORD, PRECISION,
        )  # fmt: skip
        found = score >= least[:, None]
        if tl.max(tl.max(found.to(tl.int32), 1), 0) > 0:
            found = found & _edges(row, step, bits, words, SIZE, WORD)
            if IN_PTX:
                _append(
                    found, number, score, count + first_row, begin, room, keys + origin,
                    scores + origin, ROWS,
                )  # fmt: skip
            else:
                own = tl.reshape(
                    tl.broadcast_to(tl.arange(0, ROWS)[:, None], found.shape), [ROWS * WORD]
                )
                mask = tl.reshape(found, [ROWS * WORD])
                slot = tl.atomic_add(count + first_row + own, 1, mask=mask, sem="relaxed")
                slot = tl.reshape(slot, [ROWS, WORD])
                has_room = found & (slot < room[:, None])
                target = origin + begin[:, None] + slot
                tl.store(
                    keys + target, tl.broadcast_to(number[None, :], found.shape), mask=has_room
                )
                tl.store(scores + target, score, mask=has_room)


@triton.jit
def _append(found, number, score, count, begin, room, keys, scores, ROWS: tl.constexpr):
    """Append edges to their rows' lists: what else `collect` does, without moving the scores.

    Tensors of pointers would bring all scores into another layout, through shared memory.
    """
    row = tl.arange(0, ROWS)
    counter = (count + row).to(tl.int64, bitcast=True)
    key_list = (keys + begin).to(tl.int64, bitcast=True)
    score_list = (scores + begin).to(tl.int64, bitcast=True)
    tl.inline_asm_elementwise(
        """{
        .reg .pred is_found, has_room;
        .reg .s32 slot;
        .reg .s64 place;
        setp.ne.s32 is_found, $5, 0;
        mov.s32 slot, 0x7fffffff;
        @is_found atom.relaxed.gpu.global.add.u32 slot, [$1], 1;
        setp.lt.s32 has_room, slot, $4;
        mad.wide.s32 place, slot, 4, $2;
        @has_room st.global.b32 [place], $6;
        mad.wide.s32 place, slot, 4, $3;
        @has_room st.global.b32 [place], $7;
        mov.s32 $0, slot;
        }""",
        "=r,l,l,l,r,r,r,r",
        [
            counter[:, None], key_list[:, None], score_list[:, None], room[:, None],
            found.to(tl.int32), number[None, :], score.to(tl.int32, bitcast=True),
        ],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def largest(
    query, key, scale, inside, cap, outside, pointer, column, bits, words,
    num_queries, num_keys, dim, heads, top, total, most, floor, wanted, keys, attention,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, WORD: tl.constexpr,
    PRECISION: tl.constexpr, SLOTS: tl.constexpr, LOWEST: tl.constexpr,
):  # fmt: skip
    """Find the `most` largest of each row, in any order; among equals those of smaller keys.

    Programs of which no row is `wanted` write nothing.

    Attention and key of an edge are one number, so that no two are equal: attention, which is not
    negative, orders as its bits do, and comes first. The key of a slot without an edge is negative.
    """
    vectors, row = _queries(query, num_queries, dim, ROWS, WIDTH)
    base, divisor, place = _row_sums(top, total, row, num_queries)
    is_wanted = tl.load(wanted + place, mask=row < num_queries, other=0)
    if tl.max(is_wanted, 0) == 0:
        return
    lowest = tl.load(floor + place, mask=row < num_queries, other=float("inf"))
    slots = tl.arange(0, SLOTS)
    empty = tl.where(slots < most, -1 - slots.to(tl.int64), -LOWEST)
    best = tl.broadcast_to(empty[None, :], [ROWS, SLOTS])
    first, last = _steps(pointer, ROWS, SIZE, WORD)
    for step in range(first, last):
        score, number = _scores(
            vectors, row, step, key, scale, inside, cap, outside, column, bits, words,
            num_queries, num_keys, dim, heads, ROWS, WIDTH, SIZE, WORD, PRECISION,
        )  # fmt: skip
        edge = score >= lowest[:, None]
        if tl.max(tl.max(edge.to(tl.int32), 1), 0) > 0:
            edge = edge & _edges(row, step, bits, words, SIZE, WORD)
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
    return base, divisor, place


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
