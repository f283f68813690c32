"""Edits that put what heads give elsewhere into a run: patches and ablations."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Self, cast

from torch import Tensor

from gattn.errors import EditError
from gattn.models.edit.base import Edit, edit_class
from gattn.models.edit.edges import AtTokens
from gattn.models.edit.tensors.activations import KINDS, Activations, What
from gattn.models.edit.tensors.patched import Patched, check_heads
from gattn.models.edit.where.heads import Numbers
from gattn.models.edit.where.tokens import Tokens
from gattn.models.read.places import Place


class Given(AtTokens):
    """The base of edits that replace `what` heads give by that of a `source`, the first field."""

    what: What
    is_after = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.what not in KINDS:
            raise EditError(f"what is one of {KINDS}, not {self.what!r}.")
        wrong = {"values": "query", "outputs": "key"}.get(self.what)
        if wrong and getattr(self, wrong) is not None:
            other = "key" if wrong == "query" else "query"
            raise EditError(f"{self.what!r} belong to a {other}: leave out {wrong}=.")

    @property
    def gives_values(self) -> bool:  # type: ignore[override]
        """Whether it changes more than attention."""
        return self.what != "attention"

    @property
    def is_run(self) -> bool:
        """Whether the model has run on its texts."""
        return isinstance(self.source, Activations)

    def in_call(self, place: Place) -> Edit | None:
        """Return its part in a call."""
        here = cast("Given | None", super().in_call(place))
        if here is None:
            return None
        given = here.tensor(place)
        if given is not None and place.heads:
            check_heads(self, given, [place.head])
            given = given[place.head][None]
        names = "layer", "head", "query", "key", "what", "stack"
        return Patched(repr(self), self.source, given, *(getattr(here, name) for name in names))

    def tensor(self, place: Place) -> Tensor | None:
        """Return what is given instead in a call, for all heads; None if it depends on the call."""
        if isinstance(self.source, Activations):
            return self.source.of(self.what, place.stack, place.layer)
        raise EditError(f"{self} was not run: use it in gattn.edited or gattn.effect.")

    @property
    def source(self) -> Any:
        """Where it comes from."""
        return getattr(self, _source_of(self))

    def with_source(self, source: Any) -> Self:
        """Return it with another source."""
        return replace(self, **{_source_of(self): source})  # type: ignore[type-var]

    def as_given(self) -> Self:
        """Return it with its texts in place of what the model gave on them."""
        return self.with_source(self.source.given) if self.is_run else self


def _source_of(edit: Given) -> str:
    """Name the field that holds the source."""
    return fields(edit)[0].name  # type: ignore[arg-type]


@edit_class
class Patch(Given):
    r"""Patch in what heads give on another text: attention, values or outputs.

    Parameters
    ----------
    from_ : text, or whatever else `gattn.capture` takes, or AttentionTrace
        Where it comes from. The model runs on it once, without edits, when the edit is first used.
        Positions correspond one by one, so it has all those that are patched: the queries, and the
        keys that they attend to here. A trace holds attention alone: that of all tokens and edges,
        so capture it with ``keep=gattn.All()``.
        This is resample ablation where the text has nothing to do with the other.
    layer, head : int or sequence of int, optional
        Where, as in `Cut`.
    query, key : int, str, slice, range or sequence of int or str, optional
        Of attention, the edges from which keys to which queries; of values, which keys; of
        outputs, which queries. All by default; see `Cut`.
    what : "attention", "values" or "outputs"
        The attention :math:`A_{ij}` after normalizing, (queries, keys) of each head; the values
        :math:`v_j`, (keys, dim); or the outputs :math:`o_i = \sum_j A_{ij} v_j`, (queries, dim),
        before the output projection.
    stack : str, optional
        Which stack, where the model has several.

    Raises
    ------
    EditError
        If `what` does not have the `query` or `key`; when the edit is used, if the other text lacks
        a position that is patched, or attends where no edge is here, if a trace lacks edges or one
        of the heads, or if a layer does not show its values.

    References
    ----------
    Vig et al. (2020), Investigating gender bias using causal mediation analysis. Zhang and Nanda
    (2024), Towards best practices of activation patching in language models.

    Examples
    --------
    >>> patch = gattn.Patch("The lake tall green lamp", layer=2, head=1, what="outputs")
    >>> gattn.effect("The river tall green lamp", [patch])
    """

    from_: Any
    layer: Numbers = None
    head: Numbers = None
    query: Tokens = None
    key: Tokens = None
    what: What = "attention"
    stack: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.from_ is None or isinstance(self.from_, (bool, int, float)):
            raise EditError(
                "Patch takes the text that it is from, or whatever else gattn.capture takes, or a "
                f"trace, not {self.from_!r}. gattn.Ablate puts in zero or a mean."
            )


@edit_class
class Ablate(Given):
    r"""Replace what heads give by zero or by a mean: mean ablation.

    Parameters
    ----------
    by : "zero", "mean", or sequence of texts
        Zero; the mean over the positions of the same run; or the mean over a corpus, on each of
        whose texts the model runs once, without edits (the texts of a survey are
        ``list(survey.texts.text)``). The mean of values and outputs is over all positions; with a
        cache, that of values is over all keys so far. That of attention is over a query's edges,
        which then have the same attention, or, of a corpus, over its texts, edge by edge, so that
        they have as many tokens as the text.
    layer, head, query, key, what, stack
        As in `Patch`. ``Ablate("zero")`` of attention is ``Cut(renormalize=False)``.

    Raises
    ------
    EditError
        If `by` is something else; when the edit is used, as for `Patch`, and if a layer attends in
        windows or chunks, so that one call has only some of the positions of a mean.

    References
    ----------
    Wang et al. (2023), Interpretability in the wild: mean ablation. Li and Janson (2024), Optimal
    ablation for interpretability, compare zero, mean and resample ablation.

    Examples
    --------
    >>> gattn.effect(text, [gattn.Ablate("mean", layer=2, head=1, what="outputs")])
    """

    by: Any
    layer: Numbers = None
    head: Numbers = None
    query: Tokens = None
    key: Tokens = None
    what: What = "outputs"
    stack: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.by, (list, tuple)):
            is_right = bool(self.by) and not any(isinstance(one, (int, float)) for one in self.by)
        else:
            is_name = isinstance(self.by, str) and self.by in ("zero", "mean")
            is_right = is_name or isinstance(self.by, Activations)
        if not is_right:
            raise EditError(
                f"by is 'zero', 'mean' or a list of texts, over which the mean is taken, not "
                f"{self.by!r:.60}. One text of token ids is [ids]; the texts of a survey are "
                "list(survey.texts.text). gattn.Patch takes what one text gives."
            )

    def tensor(self, place: Place) -> Tensor | None:
        """Return the mean over a corpus in a call's layer; None for zero, or a call's own mean."""
        if self.by == "mean" and self.what != "attention":
            self._check_whole(place)
        return None if isinstance(self.by, str) else super().tensor(place)

    def _check_whole(self, place: Place) -> None:
        """Refuse the mean over some positions in place of all."""
        sides = place.queries if self.what == "outputs" else place.keys
        for one in sides:
            if len(one) and len(one) != one.end:
                raise EditError(
                    f"{self} takes the mean over all positions, and one call has only the "
                    f"{len(one)} from {int(one.at.min())} to {int(one.at.max())}: it takes a layer "
                    "that attends without windows or chunks, and a text that is run at once."
                )
