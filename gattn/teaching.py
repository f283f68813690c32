"""Every step of attention as a labelled table, for teaching."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gattn.attention import attention_graphs
from gattn.errors import SelectionError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Steps(Mapping[str, "pd.DataFrame"]):
    """The tables of one attention head, from the tokens' features to its output.

    Parameters
    ----------
    tables : mapping of str to DataFrame
        ``x``, ``w_q``, ``w_k``, ``w_v``, ``q``, ``k``, ``v``, ``scores``, ``scaled``, ``masked``,
        ``attention`` and ``output``, in that order; rows are queries where the columns are keys.
    head : AttentionGraph
        The same head as a graph, with its scores.
    """

    tables: Mapping[str, pd.DataFrame]
    head: AttentionGraph

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Take a table."""
        if name not in self.tables:
            raise SelectionError(f"No table {name!r}; there are {', '.join(self.tables)}.")
        return self.tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)

    def __repr__(self) -> str:
        return "\n\n".join(
            f"{name} = {_FORMULAS[name]}\n{table.round(3)}" for name, table in self.tables.items()
        )

    def _repr_html_(self) -> str:
        return "".join(
            f"<p><b>{name}</b> = {_FORMULAS[name]}</p>{table.round(3).to_html()}"
            for name, table in self.tables.items()
        )


_FORMULAS = {
    "x": "the tokens' features",
    "w_q": "the matrix of queries",
    "w_k": "the matrix of keys",
    "w_v": "the matrix of values",
    "q": "x w_q",
    "k": "x w_k",
    "v": "x w_v",
    "scores": "q kᵀ",
    "scaled": "scores / √d",
    "masked": "scaled, -∞ where a query may not attend",
    "attention": "softmax of each row of masked",
    "output": "attention v",
}


def steps(
    x: Any,
    w_q: Any,
    w_k: Any,
    w_v: Any,
    mask: TokenGraph | Any | None = None,
    *,
    tokens: Sequence[str] = (),
) -> Steps:
    r"""Compute :math:`\mathrm{softmax}(QK^\top/\sqrt d + M) V` and show every step.

    Parameters
    ----------
    x : array (tokens, features)
        The tokens' features.
    w_q, w_k, w_v : array (features, dim)
        The matrices of queries, keys and values.
    mask : TokenGraph or array (tokens, tokens), optional
        Who may attend to whom: a token graph, booleans, or numbers that are 0 where a query may
        attend and -inf elsewhere. By default every token attends to every token.
    tokens : sequence of str
        The tokens' texts, for the labels.

    Returns
    -------
    Steps
        Tables in float64.

    Raises
    ------
    ShapeError
        If the shapes do not fit each other.
    """
    given = {"x": x, "w_q": w_q, "w_k": w_k, "w_v": w_v}
    arrays = {name: _numbers(name, values, torch.float64) for name, values in given.items()}
    shapes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in arrays.items())
    if any(array.dim() != 2 for array in arrays.values()) or any(
        arrays[name].shape[0] != arrays["x"].shape[1] for name in ("w_q", "w_k", "w_v")
    ):
        raise ShapeError(f"expected x (tokens, features) and w (features, dim), got {shapes}.")
    if arrays["w_q"].shape[1] != arrays["w_k"].shape[1]:
        raise ShapeError(f"queries and keys must have one dim, got {shapes}.")
    count = len(arrays["x"])
    if tokens and len(tokens) != count:
        raise ShapeError(f"expected {count} tokens, one per row of x, got {len(tokens)}.")
    graph = _graph(mask, count)
    q, k, v = (arrays["x"] @ arrays[name] for name in ("w_q", "w_k", "w_v"))
    head = attention_graphs(q[None], k[None], graph, scores=True, tokens=tokens)[0]
    scores = q @ k.T
    scaled = scores / q.shape[1] ** 0.5
    masked = scaled.masked_fill(~graph.mask(), -torch.inf)
    attention = torch.from_numpy(head.to_dense())
    later = {"q": q, "k": k, "v": v, "scores": scores, "scaled": scaled, "masked": masked}
    later |= {"attention": attention, "output": attention @ v}
    labels = list(tokens) or [str(i) for i in range(count)]
    tables = {name: _table(name, values, labels) for name, values in (arrays | later).items()}
    return Steps(tables, head)


def _numbers(name: str, values: Any, dtype: torch.dtype | None = None) -> Tensor:
    try:
        return torch.as_tensor(values, dtype=dtype).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(
            f"{name} must be an array of numbers with rows of one length, not {values!r:.60}."
        ) from error


def _graph(mask: TokenGraph | Any | None, count: int) -> TokenGraph:
    if mask is None:
        return TokenGraph.complete(count)
    if not isinstance(mask, TokenGraph):
        allowed = _numbers("mask", mask)
        mask = TokenGraph.from_mask(allowed if allowed.dtype == torch.bool else allowed == 0)
    if (mask.num_queries, mask.num_keys) != (count, count):
        raise ShapeError(
            f"the mask is {mask.num_queries} x {mask.num_keys}, but there are {count} tokens."
        )
    return mask.to("cpu")


def _table(name: str, values: Tensor, labels: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    is_square = name in ("scores", "scaled", "masked", "attention")
    is_matrix = name.startswith("w_")
    # Arrow, which pandas would choose, refuses lone surrogates.
    names = pd.Index(pd.Series(labels, dtype=object))
    return pd.DataFrame(
        values.numpy(), index=None if is_matrix else names, columns=names if is_square else None
    )
