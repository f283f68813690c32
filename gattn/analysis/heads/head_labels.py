"""Labels heads in plain words, by their scores."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from gattn.errors import SelectionError
from gattn.heads.nouns import several

_PATTERNS = {
    "induction": "induction",
    "duplicate_token": "duplicate {token}",
    "previous_token": "previous {token}",
    "next_token": "next {token}",
    "same_token": "same {token}",
    "outside_sink": "sink outside of the {text}",
    "first_token": "first {token} (sink)",
}
"""What a head can look for, the most specific first."""

_MOST = 2
"""How many of them name a head."""

_GROUPS = {
    "special_tokens": "special tokens",
    "punctuation": "punctuation",
    "locality": "nearby {tokens}",
}
_WHOLES = {"token": "text", "patch": "image", "node": "graph"}
"""What has such points."""
LEAST, LEAST_EXCESS, LEAST_OF_GROUPS, LEAST_OF_EVEN = 1 / 3, 1 / 4, 0.6, 0.8

_ROUNDING = 1e-6
"""By how much two scores may differ that are the same: both are 1 where all keys are near."""


def head_labels(scores: pd.DataFrame) -> pd.Series[str]:
    """Say in words what each head of a table does, with the score that says so.

    A score s counts as far as it exceeds that of even attention e: (s - e) / (1 - e), at most 1.

    - The patterns that hold a third of the attention and exceed even attention by a quarter, the
      two most specific of them: induction, duplicate token, previous token, next token, same token,
      a sink outside of the text, first token; as in "previous token, 0.93", or
      "induction, 0.73; first token (sink), 0.63" of a head that rests where nothing came before.
    - Else the first of special tokens, punctuation, and tokens at most 2 away ("nearby tokens")
      that exceeds it by at least 0.6.
    - Else "even" if 90 % of the attention is on at least eight tenths of the edges that even
      attention would need, and "mixed" otherwise.

    A label says what the head does on this text. An induction head with no repeats to read mostly
    rests on the first token; labels of the mean of many texts say more
    (`gattn.analysis.over_texts`). Of an image they speak of patches, of a graph of nodes, as the
    table says in ``attrs["nouns"]``, by stack.

    Parameters
    ----------
    scores : DataFrame
        Columns of `gattn.analysis.head_table`, or their means over texts. Missing columns of even
        attention count as 0.

    Returns
    -------
    Series
        The labels; "no attention" without any.

    Raises
    ------
    SelectionError
        If it is not such a table.
    """
    if not isinstance(scores, pd.DataFrame):
        raise SelectionError(
            "head_labels takes the table of head_table, as in head_labels(trace.summary()), not "
            f"{type(scores).__name__}."
        )
    if missing := {"edges", "edges_for_90"} - {*scores.columns}:
        raise SelectionError(
            f"head_labels takes the columns of head_table; {sorted(missing)[0]!r} is not there, "
            f"only {list(map(str, scores.columns))!r:.200}."
        )
    numbers = scores.select_dtypes("number")
    rows = numbers.to_numpy(dtype=np.float64, na_value=np.nan).tolist()
    nouns = _nouns(scores)
    labels = [
        label_of(dict(zip(numbers.columns, row, strict=True)), noun)
        for row, noun in zip(rows, nouns, strict=True)
    ]
    return pd.Series(labels, index=scores.index, name="label", dtype=object)


def _nouns(scores: pd.DataFrame) -> list[str]:
    """Say what the points of each row's head are called, as the table knows by their stacks."""
    known = scores.attrs.get("nouns", {})
    if not known or "stack" not in scores.index.names:
        return ["token"] * len(scores)
    return [known.get(stack, "token") for stack in scores.index.get_level_values("stack")]


def label_of(row: Mapping[str, float], noun: str = "token") -> str:
    """Say in words what one head does, as `head_labels` does of each row.

    `noun` is what its points are called.
    """
    words = {"token": noun, "tokens": several(noun), "text": _WHOLES[noun]}
    edges = row.get("edges", np.nan)
    if not np.isfinite(edges):
        return "no attention"
    strong = [
        name
        for name in _PATTERNS
        if row.get(name, np.nan) >= LEAST and _excess(row, name) >= LEAST_EXCESS
    ]
    if "duplicate_token" in strong and "same_token" in strong:
        strong.remove("same_token")  # which holds the duplicates as well
    if strong:
        return "; ".join(
            f"{_PATTERNS[name].format(**words)}, {row[name]:.2f}" for name in strong[:_MOST]
        )
    for name, said in _GROUPS.items():
        if _excess(row, name) >= LEAST_OF_GROUPS:
            return f"{said.format(**words)}, {row[name]:.2f}"
    needed = row.get("even_edges_for_90", edges)
    return "even" if row["edges_for_90"] >= LEAST_OF_EVEN * needed else "mixed"


def _excess(row: Mapping[str, float], name: str) -> float:
    """Compute how far a score exceeds that of even attention, as a share of how far it could."""
    score, even = row.get(name, np.nan), row.get(f"even_{name}", np.nan)
    even = even if np.isfinite(even) else 0.0
    exceeds = score - even > _ROUNDING and even < 1
    return (score - even) / (1 - even) if exceeds else 0.0
