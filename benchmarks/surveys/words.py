"""Writes numbers and tables."""

from collections.abc import Sequence


def table(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Write a table as Markdown."""
    rule = "|---" + "|--:" * (len(heading) - 1) + "|"
    body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(heading)} |", rule, *body, ""])


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def count(value: float) -> str:
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.1f} s"


def bytes_of(value: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def large(value: float, unit: str = "") -> str:
    """Write a large number in its unit."""
    if unit.startswith("bytes"):
        return bytes_of(value) + unit.removeprefix("bytes")
    if unit == "seconds":
        return f"{value / 3600:,.1f} hours"
    if value >= 1e6:
        for word, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
            if value >= size:
                return f"{value / size:,.3g} {word}"
    return f"{value:,.0f} {unit}".rstrip()
