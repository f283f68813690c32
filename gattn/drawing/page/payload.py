"""The data of a page: a header, and a block of numbers per graph.

The header is JSON. It has ``format``, which the script must know; ``levels`` (see `packing`);
``ramps``, the colours of attention; ``notes``; ``edits``, what was edited between two traces, in
the caller's words; ``edited``, the edits that the traces record; ``traces``; ``thumbnails``, the
block with the thumbnails of all graphs in the header's order, followed by those of the changes if
there are two traces; ``image``, the block with the image in grey, if there is one; ``circuit`` (see
`circuits`) or null; and ``why``, heads whose edges can be asked why (see `why`). A trace has
``stacks``; a stack has its tokens, what is told of them (see `tokens.telling`) and ``graphs``; a
graph says which ``block`` has its numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from typing import Any

import numpy as np

from gattn import __version__
from gattn.analysis.circuits.found import Circuit
from gattn.analysis.heads.compare import pairs
from gattn.analysis.scores.taken_apart import Why
from gattn.drawing.canvas.colours import RAMPS
from gattn.drawing.over_image.images import Fit
from gattn.drawing.page.circuits import circuit_entry
from gattn.drawing.page.entries import are_alike, labels_and_scores, text_of, trace_entry
from gattn.drawing.page.packing import LEVELS, block, deflated, pack, rounded_up
from gattn.drawing.page.places import image_bytes
from gattn.drawing.page.thumbnails import SIZE, Shades, thumbnail, thumbnail_of_change
from gattn.drawing.page.tokens.telling import Told
from gattn.drawing.page.why import why_entries
from gattn.edit_records import between, in_words
from gattn.errors import FileError, SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

_FORMAT = 1
_ROOM = 20_000_000
"""The bytes of compressed numbers above which precision is reduced: about 27 MB of base64."""
_CODES = [LEVELS, *((LEVELS + 1) >> coarser for coarser in range(1, 5))]
_MOST_BYTES = 100_000_000
_MOST_VALUES = 150_000_000
_SAMPLES = 12


@dataclass(frozen=True)
class Payload:
    """The title, the header and the blocks of a page."""

    title: str
    header: dict[str, Any]
    blocks: list[str]

    def header_text(self) -> str:
        """Write the header as JSON that HTML reads as plain text."""
        return _json(self.header)

    def text(self) -> str:
        """Write the header and the blocks as one such JSON."""
        return _json({"header": self.header, "blocks": self.blocks})


def _json(data: Any) -> str:
    r"""Write ASCII JSON that HTML reads as plain text: no ``<``, no NUL."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def payload(
    traces: Sequence[AttentionTrace],
    edits: str,
    image: Any = None,
    fit: Fit | None = None,
    circuit: Circuit | None = None,
    why: Why | Sequence[Why] | None = None,
    said: Told | None = None,
    *,
    first: int = 0,
    share: int = 1,
) -> Payload:
    """Pack one trace, or two of the same tokens and what was edited between them.

    An image, a circuit, heads whose edges can be asked why, and what is `said` of tokens, are
    packed with them. Blocks count from `first`; `share` texts share the room that a page has.
    """
    heads = [head for trace in traces for head in trace.heads()]
    check_size(heads)
    _check_same(traces)
    told = None if circuit is None else circuit_entry(circuit, traces[0])
    asked = why_entries(why, traces[0])
    with ThreadPoolExecutor(2) as pool:  # zlib and NumPy let go of the interpreter
        levels, packed = _fitting(heads, pool, share)
        described = [dict(chain(*pool.map(labels_and_scores, _layers(trace)))) for trace in traces]
    entries = iter([entry | {"block": i} for i, (entry, _, _) in enumerate(packed, first)])
    header = {
        "format": _FORMAT,
        "version": __version__,
        "levels": levels,
        "ramps": RAMPS,
        "edits": edits,
        "edited": _edited(traces, edits),
        "notes": [_precision([entry for entry, *_ in packed], levels)],
        "traces": [
            trace_entry(trace, entries, found, circuit, said)
            for trace, found in zip(traces, described, strict=True)
        ],
        "thumbnails": {"block": first + len(packed), "size": SIZE},
        "circuit": told,
    }
    thumbnails = chain((one for *_, one in packed), _changes(traces))
    shades = b"".join(one.tobytes() for one in thumbnails)
    blocks = [*(text for _, text, _ in packed), block(shades)]
    if fit is not None and image is None:
        raise SelectionError(
            f"fit={fit!r:.80} says how an image became what the model read: pass image=."
        )
    if image is not None:
        pixels, size = image_bytes(image, heads, fit)
        header["image"] = {"block": first + len(blocks), **size}
        blocks.append(block(pixels))
    next_block = first + len(blocks)
    header["why"] = [entry | {"block": next_block + n} for n, (entry, _) in enumerate(asked)]
    blocks += [text for _, text in asked]
    return Payload(titled(traces[0]), header, blocks)


def titled(trace: AttentionTrace) -> str:
    """Name a page after the beginning of its text and the model."""
    text = text_of(trace, next(trace.heads()))
    edited = "edited" if trace.edits else ""
    return " · ".join(filter(None, [text[:80].strip(), trace.model, edited]))


def _edited(traces: Sequence[AttentionTrace], said: str) -> str:
    """Describe the edits of the runs, unless the caller's words do."""
    if len(traces) == 1:
        return in_words(traces[0].edits)
    before, after = (trace.edits for trace in traces)
    return between(before, after) if before or not said else ""


def _packed(head: AttentionGraph, levels: int) -> tuple[dict[str, Any], str, Shades]:
    packed = pack(head, levels)
    return packed.entry, block(packed.data), thumbnail(head)


def _values(head: AttentionGraph) -> int:
    return head.graph.num_edges * len(head.edge_values)


def check_size(heads: Sequence[AttentionGraph]) -> None:
    """Refuse no heads, and more numbers than browsers open."""
    if not heads:
        raise SelectionError("There is nothing to show: this trace holds no heads.")
    values = sum(map(_values, heads))
    if values > _MOST_VALUES:
        raise _too_large(f"{values:,} numbers")


def _too_large(size: str) -> FileError:
    return FileError(
        f"A page of {size} is too large for browsers, which open about {_MOST_VALUES:,} numbers or "
        f"{_MOST_BYTES / 1e6:.0f} MB: pass keep=TopK(16) or keep=Threshold(0.01), or capture fewer "
        "layers, heads or values."
    )


def _check_same(traces: Sequence[AttentionTrace]) -> None:
    for other in traces[1:]:
        for (stack, *_), before, after in pairs(traces[0], other):
            if not are_alike(before, after):
                raise SelectionError(
                    f"Before and after have different tokens in the {stack} stack, but a page "
                    "compares two runs on the same tokens: make a page of each."
                )


def estimated_bytes(heads: Sequence[AttentionGraph], levels: int = LEVELS) -> float:
    """Estimate the compressed size of all heads in bytes from a few of them."""
    places = np.unique(np.linspace(0, len(heads) - 1, _SAMPLES).astype(int)).tolist()
    some = [heads[place] for place in places]
    share = sum(map(_values, heads)) / max(sum(map(_values, some)), 1)
    return share * sum(len(deflated(pack(head, levels).data)) for head in some)


def _fitting(
    heads: Sequence[AttentionGraph], pool: ThreadPoolExecutor, share: int
) -> tuple[int, list[tuple[dict[str, Any], str, Shades]]]:
    """Pack with the finest code that fits, starting from an estimate."""
    codes, room = iter(_CODES), _ROOM // share
    if 2 * sum(map(_values, heads)) > room:
        fine = [code for code in _CODES if estimated_bytes(heads, code) <= room]
        codes = iter(_CODES[_CODES.index(fine[0]) :] if fine else _CODES[-1:])
    for levels in codes:
        packed = list(pool.map(partial(_packed, levels=levels), heads))
        size = sum(len(text) for _, text, _ in packed)
        if 3 * size <= 4 * room:
            return levels, packed
    if size > _MOST_BYTES // share:
        raise _too_large(f"{share * size / 1e6:,.0f} MB")
    return levels, packed


def _precision(entries: Sequence[dict[str, Any]], levels: int) -> str:
    """State the largest rounding error of each kind of number, over all heads."""
    scales = [scale for entry in entries for scale in entry["values"].items()]
    scales += [("attention", entry["sink"]) for entry in entries if entry["sink"]]
    widest: dict[str, float] = {}
    for name, (low, high) in scales:
        widest[name] = max(widest.get(name, 0.0), high - low)
    return "rounded: " + ", ".join(
        f"{name.replace('_', ' ')} to within {rounded_up(width / levels / 2)}"
        for name, width in widest.items()
    )


def _layers(trace: AttentionTrace) -> Iterator[Stack]:
    for stack in trace.stacks.values():
        for _, places in groupby(sorted(stack), lambda place: place[0]):
            yield Stack(stack.name, {place: stack[place] for place in places})


def _changes(traces: Sequence[AttentionTrace]) -> Iterator[Shades]:
    """Make the thumbnails of the changes, in the order of the first trace."""
    for other in traces[1:]:
        for name, stack in traces[0].stacks.items():
            for place in sorted(stack):
                yield thumbnail_of_change(stack[place], other[name][place])
