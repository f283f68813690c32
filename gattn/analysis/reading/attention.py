"""What analyses take: whatever holds attention, and the texts of arrays' tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union

from numpy.typing import NDArray
from torch import Tensor

from gattn.errors import SelectionError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.given.edge_lists import texts
from gattn.heads.given.labelled import has_names
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, eq=False)
class Named:
    """Arrays of attention, and the texts of their tokens."""

    arrays: Any
    tokens: tuple[str, ...]


Attention: TypeAlias = Union[
    AttentionTrace,
    Stack,
    AttentionGraph,
    Named,
    "xr.DataArray",
    Tensor,
    NDArray[Any],
    Sequence[Tensor],
]
"""What analyses take.

A trace with one stack, a stack, one head, an array with axes (layer, head, query, key) of which the
first ones may be missing, or a model's ``attentions``: one (1, heads, queries, keys) per layer."""

Heads: TypeAlias = Union[Attention, Sequence[AttentionGraph]]  # noqa: UP007 - a name as well
"""What holds attention, or a list of graphs, one per head, such as `attention_graphs` gives."""

Held = TypeVar("Held")

_KNOWING = (AttentionTrace, Stack, AttentionGraph, TokenGraph, Named)


def named(attention: Held, tokens: Sequence[str]) -> Held | Named:
    """Attach token texts to arrays of attention, which do not know them.

    `gattn.analysis.reading.layers_of.layers_of` refuses texts that are not one per token.

    Raises
    ------
    SelectionError
        If the attention knows its tokens, as a trace does.
    """
    words = texts(tokens, "tokens")
    if not words:
        return attention
    parts = attention if isinstance(attention, (list, tuple)) else [attention]
    if any(isinstance(part, _KNOWING) or _has_texts(part) for part in parts):
        raise SelectionError(
            "tokens= names the tokens of plain arrays of attention; leave it out with "
            f"{type(attention).__name__}, which has its own or none."
        )
    return Named(attention, words)


def _has_texts(part: object) -> bool:
    return has_names(part) and not part.coords.keys().isdisjoint(("query_token", "key_token"))
