"""Says how attention is changed between its softmax and its values, and which ways are read."""

from __future__ import annotations

ANOTHER_SOFTMAX = "a product with another softmax"
_SUMS = frozenset(("linear", "einsum", "matmul", "__matmul__", "bmm", "mm", "tensordot"))
_SUMS |= {"conv1d", "conv2d", "conv3d", "mean", "sum"}
_SHAPES = frozenset(("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as"))


def changed(by: str) -> str:
    """Say that attention is changed, and what to do."""
    if by in _SHAPES:
        return (
            f"put into another shape by {by} between its softmax and its values, in which keys are "
            "no dimension of their own (a softmax over all pairs of tokens at once is no attention "
            "of single queries; else leave keys in the dimension of the softmax)"
        )
    return (
        f"changed by {by} between its softmax and its values, so what a head attends to is not the "
        f"softmax alone ({_instead(by)})"
    )


def _instead(by: str) -> str:
    if by == ANOTHER_SOFTMAX:
        return "A @ (B @ v) is read, (A @ B) @ v is not"
    if by in _SUMS:
        return (
            "mixtures of heads are read where keys are the last dimension of attention, and "
            "queries the one before, as in (batch, heads, queries, keys)"
        )
    return (
        "if it is a router's softmax, over experts or heads, its weights are no attention between "
        "tokens"
    )
