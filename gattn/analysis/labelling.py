"""Labels heads in plain words, by their scores."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

_PATTERNS = {
    "previous_token": "previous token",
    "next_token": "next token",
    "first_token": "first token (sink)",
    "outside_sink": "sink outside of the text",
    "same_token": "same token",
    "induction": "induction",
}
"""Each at most some edges of a query: what is strongest names the head."""

_GROUPS = {
    "special_tokens": "special tokens",
    "punctuation": "punctuation",
    "locality": "nearby tokens",
}
LEAST, LEAST_EXCESS, LEAST_OF_GROUPS, LEAST_OF_EVEN = 1 / 3, 1 / 4, 0.6, 0.8


def head_labels(scores: pd.DataFrame) -> pd.Series[str]:
    """Say in words what each head of a table does, with the score that says so.

    A score s counts as far as it exceeds that of even attention e: (s - e) / (1 - e), 1 at most.

    - The pattern that exceeds it most, by a quarter at least, of those that hold a third of the
      attention: previous, next, first, same token, induction and a sink outside of the text, as in
      "previous token, .93". "Same token" is "duplicate token" where most of it is on earlier ones.
    - Else special tokens, punctuation, or tokens at most 2 away ("nearby tokens"), the first of
      them that exceeds it by 0.6 at least.
    - Else "even" where 90 % of the attention take eight tenths of the edges that even attention
      would need, and "mixed" where not.

    A label says what the head does on this text. An induction head without repeats to read mostly
    rests on the first token; labels of many texts' mean say more (`gattn.analysis.over_texts`).

    Parameters
    ----------
    scores : DataFrame
        Columns of `gattn.analysis.head_table`, or their means over texts. Where those of even
        attention are missing, they are taken to be 0.

    Returns
    -------
    Series
        The labels; "no attention" where there is none.
    """
    numbers = scores.select_dtypes("number")
    rows = numbers.to_numpy(dtype=np.float64, na_value=np.nan).tolist()
    labels = [label_of(dict(zip(numbers.columns, row, strict=True))) for row in rows]
    return pd.Series(labels, index=scores.index, name="label", dtype=object)


def label_of(row: Mapping[str, float]) -> str:
    """Say in words what one head does, as `head_labels` does of each row."""
    edges = row.get("edges", np.nan)
    if not np.isfinite(edges):
        return "no attention"
    strong = {name: _excess(row, name) for name in _PATTERNS if row.get(name, np.nan) >= LEAST}
    name = max(strong, key=strong.__getitem__, default="")
    if name and strong[name] >= LEAST_EXCESS:
        words = _PATTERNS[name]
        if name == "same_token" and row["duplicate_token"] > row[name] / 2:
            words = "duplicate token"
        return f"{words}, {_short(row[name])}"
    for name, words in _GROUPS.items():
        if _excess(row, name) >= LEAST_OF_GROUPS:
            return f"{words}, {_short(row[name])}"
    needed = row.get("even_edges_for_90", edges)
    return "even" if row["edges_for_90"] >= LEAST_OF_EVEN * needed else "mixed"


def _excess(row: Mapping[str, float], name: str) -> float:
    """Compute how far a score exceeds that of even attention, as a share of how far it could."""
    score, even = row.get(name, np.nan), row.get(f"even_{name}", 0.0)
    return (score - even) / (1 - even) if score > even and even < 1 else 0.0


def _short(share: float) -> str:
    return f"{share:.2f}".removeprefix("0")
