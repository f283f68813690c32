"""Says what is wrong with texts that name tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod

from gattn.errors import CaptureError
from gattn.heads.stack import Stack
from gattn.models.read.seen_call import extra_of

SIDES = ("query", "key")
PLURAL = {"query": "queries", "key": "keys"}

MOVED = "the model moved, picked or mixed its tokens before, so that it is not known which are here"
"""Why tokens have no names."""


def enough_texts(others: int) -> str:
    """Say how many texts are enough where so many tokens are no patches."""
    return f" ({others}, for those that are no patches, are enough)" if others else ""


def other_count(
    given: int, stack: str, count: int, what: str, enough: str = "", link: str = "but"
) -> str:
    """Say that texts are not as many as the tokens of a stack."""
    return (
        f"tokens= gives {given} texts, {link} the stack {stack!r} has {count} {what}: give one "
        f"text per token{enough}"
    )


def other_texts(given: int, stack: str, what: str) -> str:
    """Say that calls read texts of which texts for tokens name only one."""
    return (
        f"tokens= gives {given} texts, and the {what} of the stack {stack!r} were not those of one "
        "text, of which each call's ids begin the next call's: give positions, or edit each text "
        "in a context of its own"
    )


def other_grid(grid: tuple[int, int], stack: str, count: int, what: str = "tokens") -> str:
    """Say that patches are not the tokens of a stack, and what to give."""
    others = count - prod(grid)
    says = "give the rows and columns of its patches, or tokens="
    if others > 0:
        says = f"if the first {others} are no patches, name these, by tokens= with {others} texts"
    return (
        f"grid= gives {' × '.join(map(str, grid))} patches, which are not the {count} {what} of "
        f"the stack {stack!r}, or not these alone: {says}"
    )


def unclear_owner(size: int, named: str, stack: str) -> str:
    """Say that texts are as many as the tokens of one stack, and as others of another's."""
    return (
        f"tokens= gives {size} texts: as many as the stack {named!r} has tokens, and as {stack!r} "
        f"has beside its patches. Say whose they are, as in tokens={{{stack!r}: [...]}}"
    )


def misfit(
    stack: str,
    names: Mapping[str, Sequence[str]],
    heads: Stack,
    tokens: object,
    others: Callable[[int], int],
) -> CaptureError:
    """Say that texts are not as many as the tokens of a stack, of which `others` are no patches."""
    graphs = [(head.graph, len(extra_of(head.tokens))) for head in heads.values()]
    side, given = next(iter(names.items()))
    if len(names) == 1 and side == "query" and not any(one.is_bipartite for one, _ in graphs):
        return CaptureError(
            f"tokens= names the queries of the stack {stack!r}, whose queries and keys are the "
            "same tokens: give one list of texts."
        )
    are_queries = len(names) == 1 and side == "query"
    sizes = sorted(
        {one.num_queries if are_queries else one.num_keys - extra for one, extra in graphs}
    )
    lists = tokens if isinstance(tokens, Sequence) else []
    each = [len(one) for one in lists if isinstance(one, list | tuple)]
    if len(each) == len(lists) > 1 and sizes == [sum(each)]:
        return CaptureError(
            f"tokens= gives lists of {', '.join(map(str, each))} texts, but the stack {stack!r} "
            f"has {sizes[0]} tokens: give one flat list for all graphs of the batch."
        )
    sides = PLURAL[side] if len(names) == 1 else "tokens"
    padding = "without padding"
    if not are_queries and any(one.is_bipartite for one, _ in graphs):
        padding = (
            "without padding; where a decoder reads padded keys step by step, these count, and "
            "need names, too, such as '<pad>'"
        )
    enough = "" if are_queries or len(sizes) > 1 else enough_texts(others(sizes[0]))
    return CaptureError(
        f"tokens= gives {len(given)} texts, but the stack {stack!r} has "
        f"{', '.join(map(str, sizes))} {sides}: give one text per token{enough}, or for a batch "
        f"one list per sequence, {padding}."
    )


def unknown_stack(name: str, stacks: Collection[str]) -> str:
    """Say that texts are given for a stack that is none; it may be a side of one."""
    if name in SIDES:
        return (
            f"tokens= names the side {name!r} of no stack: sides go under the name of a stack of "
            "cross-attention, as in tokens={stack: {'query': [...], 'key': [...]}}; the stacks "
            f"are {sorted(stacks)}."
        )
    return f"tokens= names the stack {name!r}; the stacks are {sorted(stacks)}."


def of_both_sides(stack: str) -> str:
    """Say that the same texts name queries and keys that are other tokens."""
    return (
        f"tokens= gives one list of texts that names both the queries and the keys of {stack!r}, "
        "which is cross-attention, whose queries are other tokens than its keys: name each stack, "
        f"and these by side, as in tokens={{{stack!r}: {{'query': [...], 'key': [...]}}, ...}}"
    )
