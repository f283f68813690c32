"""What was found in each library, kept as JSON, and its part of the page."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.coverage.libraries.verdict import (
    ALL,
    CAPTURED,
    EXACT,
    LEFT_OUT,
    NO_ATTENTION,
    NOT_RUN,
    REFUSED,
    WRONG,
    Verdict,
)
from benchmarks.zoo.libraries import FILES, NOTES, PACKAGES

PATH = Path(__file__).with_name("results.json")


def put(library: str, verdicts: Iterable[Verdict]) -> None:
    """Keep verdicts on models of a library in place of earlier ones on the same models."""
    kept = read()
    known = {one["name"]: one for one in kept.get(library, [])}
    packages = ", ".join(f"{name} {_version(name)}" for name in ("torch", *PACKAGES[library]))
    measured = f"on {date.today().isoformat()} with {packages}"
    for one in verdicts:
        told = {key: value for key, value in asdict(one).items() if value}
        known[one.name] = {**told, "measured": measured}
    _write({**kept, library: list(known.values())})


def keep_only(library: str, names: Sequence[str]) -> None:
    """Forget models of a library that it has no longer, and list the others in its order."""
    kept = read()
    known = {one["name"]: one for one in kept.get(library, [])}
    _write({**kept, library: [known[name] for name in names if name in known]})


def _write(kept: Mapping[str, Any]) -> None:
    text = json.dumps({name: kept[name] for name in FILES if name in kept}, indent=1)
    PATH.write_text(text + "\n")


def read() -> dict[str, Any]:
    return json.loads(PATH.read_text()) if PATH.exists() else {}


def _version(package: str) -> str:
    try:
        return version(package).split("+")[0]
    except PackageNotFoundError:
        return "not installed"


def summary() -> str:
    """Write a table of all libraries: how many models are exact, refused and so on."""
    lines = ["| library | " + " | ".join(ALL) + " |", "|---" * (len(ALL) + 1) + "|"]
    for library, found in read().items():
        verdicts = [one["verdict"] for one in found]
        lines.append(f"| {library} | " + " | ".join(str(verdicts.count(one)) for one in ALL) + " |")
    return "\n".join(lines) + "\n"


def parts() -> str:
    """Write each library's part of the page."""
    return "\n".join(_part(library, found) for library, found in read().items())


def _part(library: str, found: list[dict[str, Any]]) -> str:
    verdicts = [Verdict(**{name: one[name] for name in one if name != "measured"}) for one in found]
    groups = {name: [one for one in verdicts if one.verdict == name] for name in ALL}
    lines = [f"## {library}\n", f"{NOTES[library]} {_measured(found)}\n"]
    if groups[EXACT]:
        layers = sum(one.attentions for one in groups[EXACT])
        edits = sum(one.edits for one in groups[EXACT])
        lines += [
            f"Exact ({len(groups[EXACT])} models, {layers:,} layers, {edits:,} edits):\n",
            _names(groups[EXACT]),
        ]
    for name in (CAPTURED, REFUSED, WRONG, NOT_RUN):
        if groups[name]:
            lines += [
                f"{name[0].upper()}{name[1:]} ({len(groups[name])}):\n",
                _reasons(groups[name]),
            ]
    for name in (NO_ATTENTION, LEFT_OUT):
        if groups[name]:
            lines += [f"{name[0].upper()}{name[1:]} ({len(groups[name])}): {_names(groups[name])}"]
    return "\n".join(lines)


def _measured(found: list[dict[str, Any]]) -> str:
    """Say when models were measured, and in which versions; those of smaller runs by name."""
    runs: dict[str, list[str]] = {}
    for one in found:
        runs.setdefault(one["measured"], []).append(one["name"])
    largest, *others = sorted(runs, key=lambda run: -len(runs[run]))
    apart = "".join(f"; {', '.join(runs[run])} {run}" for run in others)
    return f"Measured {largest}{apart}."


def _names(verdicts: Sequence[Verdict]) -> str:
    """List names; of many variants, A/b and A/c, only how many there are."""
    counts = Counter(one.name.partition("/")[0] for one in verdicts)
    names = dict.fromkeys(
        f"{first} ({counts[first]} variants)" if counts[first] > 200 else one.name
        for one in verdicts
        for first in [one.name.partition("/")[0]]
    )
    return textwrap.fill(", ".join(names), 110, break_on_hyphens=False) + "\n"


def _reasons(verdicts: Sequence[Verdict]) -> str:
    lines = ["| model | reason |", "|---|---|"]
    lines += [f"| {one.name} | {one.reason.replace('|', '/')} |" for one in verdicts]
    return "\n".join(lines) + "\n"
