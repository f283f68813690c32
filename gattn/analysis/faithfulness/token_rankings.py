"""Rankings of tokens, and the edits that cut tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from gattn.analysis.faithfulness.same_text import check_texts, text_order
from gattn.errors import SelectionError, ShapeError
from gattn.heads.head import Ints
from gattn.heads.stack import Stack
from gattn.models.edit.base import Edit
from gattn.models.edit.edges import Cut

Scores: TypeAlias = NDArray[np.float64]
"""One number for each of what may be cut; NaN where a ranking leaves it out."""

PLACE = ["layer", "head", "query", "key"]
"""The columns of tables that say where an edge is."""

_AXES = ("token", "key")
_LEVELS = ("position", "token", "query", "key")


@dataclass(frozen=True, eq=False)
class TokenSet:
    """Tokens that may be cut: all of their edges to queries, in all layers and heads.

    Parameters
    ----------
    positions : array of int
        The tokens.
    stack : str, optional
        Their stack, if the model has several.
    scores : mapping of str to array
        What each ranking says of them.
    """

    positions: Ints
    stack: str | None
    scores: Mapping[str, Scores]

    unit = "token"

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def units(self) -> Ints:
        """Number the tokens."""
        return np.arange(len(self))

    def without(self, cut: NDArray[np.bool_], renormalize: bool) -> list[Edit]:
        """Return the edits that cut some of the tokens."""
        some = self.positions[cut].tolist()
        return [Cut(key=some, renormalize=renormalize, stack=self.stack)] if some else []

    def cut(self, number: int, renormalize: bool) -> Cut:
        """Cut one token."""
        position = int(self.positions[number])
        return Cut(key=position, renormalize=renormalize, stack=self.stack)

    def effects(self, table: pd.DataFrame) -> Scores:
        """Find the tokens' effects in a table."""
        whole = table[["layer", "head", "query"]].isna().all(axis=1)
        known = table[whole & table["key"].notna() & table["effect"].notna()]
        check_unique("effects", known)
        found = known.set_index("key")["effect"].reindex(self.positions)
        return found.to_numpy(dtype=np.float64, na_value=np.nan)


class TokenNumbers(NamedTuple):
    """One number per token; if known, the tokens' labels (positions or texts) and their texts."""

    values: Scores
    labels: list[Any] | None = None
    texts: list[str] | None = None


def token_numbers(name: str, ranking: Any) -> TokenNumbers | None:
    """Read a ranking that has one number per token; None if it ranks edges."""
    if isinstance(ranking, xr.DataArray):
        return _of_labelled(name, ranking) if ranking.ndim == 1 else None
    if isinstance(ranking, pd.Series):
        return TokenNumbers(_numbers(name, ranking), _positions_of(name, ranking.index))
    if isinstance(ranking, Tensor) and ranking.dim() == 1:
        plain = ranking.detach().cpu()
        return TokenNumbers(_numbers(name, plain if plain.dtype == torch.bool else plain.double()))
    if isinstance(ranking, np.ndarray) and ranking.ndim == 1:
        return TokenNumbers(_numbers(name, ranking))
    if isinstance(ranking, (list, tuple)) and all(
        isinstance(x, (int, float, np.number, np.bool_)) for x in ranking
    ):
        return TokenNumbers(_numbers(name, ranking))
    return None


def _of_labelled(name: str, ranking: xr.DataArray) -> TokenNumbers:
    axis = ranking.dims[0]
    if axis not in _AXES:
        raise ShapeError(
            f"An array of tokens has the axis {' or '.join(_AXES)}, not {axis!r}: select one layer "
            "and query, as in .sel(layer=3, query=7)."
        )
    labels, texts = (
        ranking[one].to_numpy().tolist() if one in ranking.coords else None
        for one in (axis, f"{axis}_token")
    )
    return TokenNumbers(_numbers(name, ranking.to_numpy()), labels, texts)


def _numbers(name: str, values: Any) -> Scores:
    is_bool = getattr(values, "dtype", None) in (bool, torch.bool)
    if is_bool or any(isinstance(x, (bool, np.bool_)) for x in values):
        raise SelectionError(f"{name!r} holds True and False: rank tokens by numbers.")
    try:
        if isinstance(values, pd.Series):
            return values.to_numpy(dtype=np.float64, na_value=np.nan)
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise SelectionError(f"{name!r} must hold one number per token: {error}.") from error


def _positions_of(name: str, index: pd.Index[Any]) -> list[Any]:
    if index.nlevels == 1:
        return index.tolist()
    level = next((one for one in _LEVELS if one in index.names), None)
    if level is None:
        raise SelectionError(
            f"{name!r} is indexed by {list(index.names)}, of which none is {', '.join(_LEVELS)}: "
            "index it by the positions of the tokens."
        )
    return index.get_level_values(level).tolist()


def read_tokens(rankings: Mapping[str, TokenNumbers], inside: Stack, stack: str | None) -> TokenSet:
    """Put the numbers of several rankings in the order of a text's tokens."""
    tokens = inside.tokens
    scores = {}
    for name, (values, labels, texts) in rankings.items():
        if len(values) != len(tokens):
            raise SelectionError(
                f"{name!r} ranks {len(values)} tokens, but the text has {len(tokens)}: rank each "
                "of the text's tokens, special ones too."
            )
        order = np.arange(len(tokens)) if labels is None else text_order(name, labels, tokens)
        if texts is not None:
            check_texts(name, [texts[n] for n in order], tokens)
        scores[name] = values[order]
        if np.isnan(values).all():
            raise SelectionError(f"{name!r} ranks none of the tokens: all of its numbers are NaN.")
    ranked = np.flatnonzero(~np.isnan(np.stack(list(scores.values()))).all(0))
    return TokenSet(ranked, stack, {name: values[ranked] for name, values in scores.items()})


def check_unique(name: str, table: pd.DataFrame) -> None:
    """Refuse a table that has an edge or a token twice."""
    twice = table.duplicated(PLACE)
    if twice.any():
        place = table.loc[twice, PLACE].iloc[0].dropna()
        shown = ", ".join(f"{axis} {number}" for axis, number in place.items())
        raise SelectionError(
            f"{name!r} has several rows for {shown}: keep one, as in "
            f"table.drop_duplicates({PLACE})."
        )
