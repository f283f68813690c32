"""Gives the dimensions of an einsum letters."""

from __future__ import annotations

from torch import Tensor


def labels_of(equation: str, one: Tensor, other: Tensor) -> tuple[str, str, str] | None:
    """Give each dimension of an einsum's two operands and its result a letter."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    given = left.split(",")
    if len(given) != 2:
        return None
    if not arrow:  # The letters that come once, in order, are kept.
        letters = left.replace("...", "").replace(",", "")
        out = "..." * ("..." in left) + "".join(n for n in sorted(letters) if letters.count(n) == 1)
    unused = [chr(n) for n in range(0x391, 0x3A9) if n != 0x3A2]
    most = 0
    found = []
    for labels, x in zip(given, (one, other), strict=True):
        more = x.dim() - len(labels.replace("...", ""))
        most = max(most, more if "..." in labels else 0)
        found.append(labels.replace("...", "".join(unused[:more][::-1])))
    found.append(out.replace("...", "".join(unused[:most][::-1])))
    if any(len(set(labels)) != len(labels) for labels in found):
        return None
    return found[0], found[1], found[2]
