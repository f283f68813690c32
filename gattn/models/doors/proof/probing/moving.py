"""Notes where a model may move tokens between its calls of attention."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gattn.models.doors.proof.probing.one_run.walking import Run

_ANYWHERE = frozenset(("flip", "roll", "rot90", "cat", "constant_pad_nd"))
_ANYWHERE |= {"index", "index_select", "gather", "take", "index_put", "index_put_", "scatter"}
_ANYWHERE |= {"sort", "topk"}
_OUTSIDE = frozenset(("permute", "transpose", "as_strided", "convolution", "unfold", "im2col"))
MOVES = _ANYWHERE | _OUTSIDE
"""The kernels that may move tokens."""


class Moves:
    """Where kernels ran that may move tokens, and after how many calls of attention."""

    def __init__(self) -> None:
        self._found: list[tuple[int, bool, Run]] = []
        self._sites: list[Run] = []

    def note(self, kernel: str, running: Sequence[Run]) -> None:
        """Look at a kernel that ran."""
        if running and kernel in MOVES:
            self._found.append((len(self._sites), kernel in _ANYWHERE, running[-1]))

    @property
    def are_any(self) -> bool:
        """Whether any kernel ran that may move ids, or tokens, wherever it runs."""
        return any(is_anywhere for _, is_anywhere, _ in self._found)

    def attended(self, run: Run) -> None:
        """Note a call of attention in a run of a module."""
        self._sites.append(run)

    def between(self, first: int, last: int, attending: Collection[str]) -> bool:
        """Return whether tokens may have moved between two calls of attention, by their numbers.

        What the modules that are `attending` do before they attend is proved with their calls, and
        that they bring heads together afterwards moves no tokens.
        """
        return any(
            first < count <= last
            and (
                not any(one.name in attending for one in run.chain)
                or (is_anywhere and run in self._sites[:count])
            )
            for count, is_anywhere, run in self._found
        )
