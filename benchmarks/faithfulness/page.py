"""The page of the study: its tables, filled into page.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.faithfulness.models import NAMES

_COLUMNS = {"edge": ("correlation", "deletion", "insertion", "seconds"), "head": ("correlation",)}
_COLUMNS["token"] = _COLUMNS["edge"]


def page(table: pd.DataFrame, machine: str) -> str:
    """Fill the tables of each unit into the page."""
    text = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    for unit in _COLUMNS:
        text = text.replace(f"{{{unit}s}}", _of_unit(table[table["unit"] == unit], unit))
    return text.replace("{machine}", machine)


def _of_unit(table: pd.DataFrame, unit: str) -> str:
    parts = []
    for model in NAMES:
        some = table[table["model"] == model]
        if len(some):
            number = int(some["texts"].max())
            rows = [f"| {model}, {number} texts | {' | '.join(_COLUMNS[unit])} |"]
            rows.append("|---" * (len(_COLUMNS[unit]) + 1) + "|")
            rows += [
                f"| {one['ranking']} | {' | '.join(_cell(one, name) for name in _COLUMNS[unit])} |"
                for _, one in some.iterrows()
            ]
            parts.append("\n".join(rows))
    return "\n\n".join(parts)


def _cell(row: pd.Series, name: str) -> str:
    if np.isnan(row[name]):
        return ""
    if name == "seconds":
        return f"{row[name]:.2g}"
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:.2f} ({low:.2f} … {high:.2f})"
