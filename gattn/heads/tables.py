"""Tables of the edges of several heads as traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gattn.errors import GattnError, GraphError, SelectionError
from gattn.heads.arrays import Texts
from gattn.heads.frames import from_pandas as from_frame
from gattn.heads.given.columns import check_columns
from gattn.heads.given.edge_lists import Duplicates
from gattn.heads.given.weights import warn_of_weights
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack

if TYPE_CHECKING:
    import pandas as pd

    from gattn.heads.trace import AttentionTrace


def from_pandas(
    cls: type[AttentionTrace],
    frame: pd.DataFrame,
    tokens: Texts = (),
    *,
    query_tokens: Texts = (),
    num_tokens: int | None = None,
    num_queries: int | None = None,
    num_keys: int | None = None,
    query: str = "query",
    key: str = "key",
    attention: str = "attention",
    layer: str = "layer",
    head: str = "head",
    stack: str = "stack",
    duplicates: Duplicates = "error",
    model: str = "",
) -> AttentionTrace:
    """Read a table of the edges of several heads, one edge per row, in any order.

    This is the table of a survey's ``edges(text_id=...)``, or the joined tables of several heads.
    No edge counts as dropped.

    Parameters
    ----------
    frame : DataFrame
        Its rows are edges, as `AttentionGraph.from_pandas` reads them.
    tokens, query_tokens : sequence of str, or mapping of stack to these
        The tokens' texts; in cross-attention those of the keys, and of the queries.
    num_tokens, num_queries, num_keys : int, optional
        How many tokens there are, if they have no texts.
    query, key, attention : str
        The columns of the queries, the keys, and the attention.
    layer, head : str
        The columns of layers and heads. A frame without one of them has one layer, or one head,
        numbered 0.
    stack : str
        The column of the stacks' names; a frame without it has one stack, "attention".
    duplicates : "error" or "sum"
        Whether an edge given several times is an error, or has the sum of its attention.
    model : str
        The model's name.

    Raises
    ------
    GraphError, ShapeError, CaptureError
        As `AttentionGraph.from_pandas` does; also if the frame has several texts or no rows.
    SelectionError
        If tokens are given for a stack that is not there.

    Examples
    --------
    >>> rows = {"layer": [0, 1], "head": [0, 0], "query": [1, 1], "key": [0, 1], "weight": [1, 1]}
    >>> frame = pd.DataFrame(rows)
    >>> AttentionTrace.from_pandas(frame, ["the", "dog"], attention="weight")
    AttentionTrace(no model; attention: 2 layers x 1 heads)
    """
    check_columns(frame, query, key, attention)
    by = [name for name in (stack, layer, head) if name in frame.columns]
    if not {layer, head} & set(by):
        raise GraphError(
            f"The frame has neither a column {layer!r} nor {head!r}: name yours with layer= and "
            "head=, or read one head with AttentionGraph.from_pandas."
        )
    if not len(frame) or frame[by].isna().any(axis=None):
        raise GraphError(
            f"Every row must have a value in the columns {by}, and there must be one row at least."
        )
    names = frame[stack].unique().tolist() if stack in by else ["attention"]
    for option, value in (("tokens", tokens), ("query_tokens", query_tokens)):
        if isinstance(value, Mapping) and (unknown := sorted(set(value) - set(names))):
            raise SelectionError(f"{option} names the stack {unknown[0]!r}; there are {names}.")
    how: dict[str, Any] = {
        "num_tokens": num_tokens,
        "num_queries": num_queries,
        "num_keys": num_keys,
    }
    how |= {"query": query, "key": key, "attention": attention, "duplicates": duplicates}
    stacks: dict[str, dict[tuple[int, int], AttentionGraph]] = {}
    for place, part in frame.groupby(by, sort=True):
        where = dict(zip(by, place, strict=True))
        name = str(where.get(stack, "attention"))
        spot = where.get(layer, 0), where.get(head, 0)
        given: dict[str, Any] = {
            "tokens": _of(tokens, name), "query_tokens": _of(query_tokens, name),
            "layer": spot[0], "head": spot[1], "model": model,
        }  # fmt: skip
        # The facts of one head must not be taken for those of another.
        part = part.drop(columns=by)
        part.attrs.pop("gattn", None)
        try:
            graph = from_frame(AttentionGraph, part, **how, **given)
        except GattnError as error:
            raise type(error)(f"{name} {spot[0]}.{spot[1]}: {error}") from error
        stacks.setdefault(name, {})[graph.layer or 0, graph.head or 0] = graph
    warn_of_weights(head for heads in stacks.values() for head in heads.values())
    return cls({name: Stack(name, heads) for name, heads in stacks.items()}, model)


def _of(texts: Texts, stack: str) -> Any:
    return texts.get(stack, ()) if isinstance(texts, Mapping) else texts
