"""Says why a step with a cache of the model's own is refused."""

from __future__ import annotations

from gattn.models.read.seen_call import SeenCall

_AT_ONCE = (
    "Open the context before the prompt runs, and keep keys in the cache as they are, or run the "
    "whole text at once, without a cache."
)
SEVERAL_PARTS = (
    "The model continues a cache that may hold several parts of a text, since its "
    "tokens repeat: their positions are not known. Run the whole text at once, without "
    "a cache."
)


def unknown(call: SeenCall) -> str:
    """Refuse keys of no text that is known."""
    return (
        f"{call.where} reads keys that are neither of its own tokens nor exactly those of texts "
        "that ran together in this context, so which text it continues, and where, cannot be "
        "proved: its cache was filled outside of the context, or joined from caches of several "
        "calls, or the keys in it were changed, compressed, dropped or computed anew. Open the "
        "context before the prompt runs, run the texts of a batch together from the start, and "
        "keep keys in the cache as they are, or run the whole text at once, without a cache."
    )


def other(call: SeenCall) -> str:
    """Refuse keys of another text than those of the layers before."""
    return (
        f"{call.where} reads keys of other tokens than the layers before it, or computes those of "
        f"earlier tokens anew, so which text it continues, and where, cannot be proved. {_AT_ONCE}"
    )


def too_early(call: SeenCall, name: str) -> str:
    """Refuse tokens of a text that goes on in a later layer only."""
    return (
        f"{call.where} continues a text whose earlier keys it holds, but {name} ran before it in "
        "the same call and holds none, so at which positions its tokens are was not known. Run the "
        "whole text at once, without a cache."
    )


def moved(call: SeenCall, is_known: bool) -> str:
    """Refuse keys beside the text that are others than in its first call."""
    found = f"{call.where} attends from a text that continues to other keys than from its first "
    if is_known:
        return (
            f"{found}tokens, which are those of another text in this context. Several texts have "
            "the same keys so far in the first layer with a cache, and which of them a step "
            "continues must be known there. Run them one after the other, each to its end, or each "
            "in a context of its own, and keep rows in their order."
        )
    return (
        f"{found}tokens, or computes these anew, so they are not one graph. Run the whole text at "
        "once, without a cache."
    )
