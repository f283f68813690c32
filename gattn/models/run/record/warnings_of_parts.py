"""Warns of parts of a model that are not shown as they are, all in one form.

A warning names the module first, then says what it does, what gattn makes of that, and what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import nn

from gattn.checks import warn
from gattn.models.doors.proof.layouts.plan import Plan

CHANNELS = (
    "over channels, or over tokens that were mixed before, as by a norm or a gate over all of them"
)
PARAMETERS = "to parameters or buffers, as to a codebook"
_SCALED = "multiplies its attention with other numbers"
_MIXES = "mixes the attention of its heads", "mixes the attention of several softmaxes"


def named(model: nn.Module, name: str) -> str:
    """Name a module by its path and class."""
    return f"{name or 'the model itself'} ({type(model.get_submodule(name)).__name__})"


def of_missed(missed: Sequence[str]) -> None:
    """Name what does not show its attention."""
    _warn(
        missed,
        "does not show its attention",
        "gattn can neither show nor edit it, and numbers layers without it. What is seen are "
        "torch's attention functions, and a softmax of scores that is multiplied with values",
        more="nor",
    )


def of_others(model: nn.Module, left: Sequence[str], over: str) -> None:
    """Name what attends over something else than tokens."""
    _warn(
        [named(model, name) for name in left],
        f"attends {over}",
        "gattn neither shows nor edits this attention, and layers are counted without it",
    )


def of_uses(model: nn.Module, again: Sequence[str]) -> None:
    """Name what uses attention that another module computed."""
    _warn(
        [named(model, name) for name in again],
        "multiplies the attention of another module with values of its own",
        "this attention is shown once, as that of the module which used it first",
    )


def of_untold(model: nn.Module, untold: Mapping[str, str]) -> None:
    """Name what sums by a softmax, and may or may not weigh tokens."""
    names = sorted(untold)
    _warn(
        [named(model, name) for name in names],
        "sums with the weights of a softmax, which may be attention, but was not proved",
        f"{untold[names[0]]}. gattn neither shows nor edits it, and layers are counted without it",
    )


def of_altered(model: nn.Module, plans: Iterable[Plan], shown: Collection[str]) -> None:
    """Say which softmaxes are not yet the attention that meets the values."""
    softmaxes = {(*place, how) for plan in plans for place, how in plan.altered.items()}
    counts = Counter((name, how) for name, _, how in softmaxes if name in shown)
    does = {
        name: _SCALED if how == "scaled" else _MIXES[count > 1]
        for (name, how), count in sorted(counts.items())
    }
    for what in dict.fromkeys(does.values()):
        _warn(
            [named(model, name) for name, found in does.items() if found == what],
            f"{what} before it meets the values",
            "what is shown and edited are the softmaxes",
        )


def of_apart(model: nn.Module, name: str, stack: str, earlier: str) -> None:
    """Name what attends in two ways."""
    _warn(
        [named(model, name)],
        "attends in a later call in another way, as where its queries are the newest tokens alone",
        f"that is the stack {stack!r}, which continues no text, and which edits of {earlier!r} do "
        f"not reach. Edit {stack!r} as well",
    )


def of_padding(model: nn.Module, padded: Mapping[str, str]) -> None:
    """Name the cross-attention whose queries may hold padding."""
    names = sorted(padded)
    _warn(
        [named(model, name) for name in names],
        "attends from as many tokens as have padding among them where "
        f"{named(model, padded[names[0]])} attends; whether they are the same is not known",
        "all of them are shown, and numbered by their slots, padding included",
    )


def of_unread(model: nn.Module, names: Sequence[str]) -> None:
    """Name what attends among tokens that may be padding which reads itself."""
    _warn(
        [named(model, name) for name in names],
        "attends among tokens of which some of the first or last are read by no other, which may "
        "mean padding that reads itself",
        "they are shown, and positions count them. They are left out where an input of the model, "
        "(sequences, tokens), marks them: attention_mask, mask, one with 'pad' in its name, or "
        "positions, which are negative there",
    )


def of_holes(model: nn.Module, names: Sequence[str]) -> None:
    """Name what attends to tokens between which a mask takes others away."""
    _warn(
        [named(model, name) for name in names],
        "has a mask that takes tokens between others, which are left out",
        "positions count those that are left, from 0: where the mask takes token 3, position 3 is "
        "token 4. Give tokens= a name for each that is left",
    )


def of_exchangeable(model: nn.Module, names: Sequence[str]) -> None:
    """Name what attends from queries that may as well be heads."""
    _warn(
        [named(model, name) for name in names],
        "attends from queries that are no tokens, in heads that share their keys and values, so "
        "that which of the two are heads cannot be told",
        "the last dimension but one is shown as queries, and the one before as heads. Where they "
        "are the other way round, put heads before queries",
    )


def of_picks(model: nn.Module, picked: Sequence[str]) -> None:
    """Name what picks or orders tokens."""
    _warn(
        [named(model, name) for name in picked],
        "picks or orders tokens, by their values or at random, or moves and mixes them",
        "they are numbered in the order in which the modules that attend are given them, and have "
        "no names. To name them, capture these modules by themselves",
    )


def of_switched(model: nn.Module, switched: Sequence[str]) -> None:
    """Name what picks tokens otherwise under edits."""
    _warn(
        [named(model, name) for name in switched],
        "chooses otherwise under the edits than without them, such as other experts or another "
        "order of tokens",
        "the edits take effect, and attention is shown as it is. But where tokens are afterwards "
        "was proved for the other choice: so stacks with later layers have no names, and these "
        "layers number tokens in the order in which they are given them",
        about="other choices",
    )


def of_nodes(model: nn.Module, unknown_nodes: Mapping[str, str]) -> None:
    """Name the layers whose nodes are not known, and say why."""
    whys = sorted({why for why in unknown_nodes.values() if why})
    why = f"since {whys[0]}" if whys else "as the model may move, pick or make them itself"
    _warn(
        [named(model, name) for name in sorted(unknown_nodes)],
        "attends over nodes, or tokens, of which it cannot be proved which nodes of the data they "
        f"are, {why}",
        "they are numbered in the order in which the module is given them, and have no names. To "
        "name them, capture this module by itself",
    )


def _warn(who: Sequence[str], does: str, then: str, more: str = "and so", about: str = "") -> None:
    count = len(who) - 1
    others = f", {more} does 1 more module" if count == 1 else f", {more} do {count} more modules"
    first = who[0][0].upper() + who[0][1:] if who[0].startswith("the model itself") else who[0]
    warn(f"{first} {does}{others if count else ''}: {then}.", about)
