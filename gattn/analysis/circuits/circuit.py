"""Finds the smallest graph of attention that keeps a model's answer."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, overload

from gattn.analysis.circuits.edge_lists import Units
from gattn.analysis.circuits.finding import Wanted, find
from gattn.analysis.circuits.found import Circuit
from gattn.analysis.circuits.measuring.searching import Limits
from gattn.analysis.circuits.paths.path_circuits import PathCircuit
from gattn.analysis.circuits.several import Circuits
from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.models.effects.metrics import Metric, Position, Token
from gattn.models.load.loading import resolved
from gattn.models.run.functions import Runnable
from gattn.models.run.names.naming import Naming, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model


class Options(TypedDict, total=False):
    """What is kept, and how it is searched; `circuit` explains each."""

    metric: Metric | None
    position: Position
    keep: float
    ablation: Any
    units: Units
    max_edges: int | None
    seconds: float | None
    random: int
    seed: int
    progress: bool
    tokens: Tokens | None
    grid: tuple[int, int] | None


@overload
def circuit(
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    target: Token = None,
    other: Token = None,
    **options: Unpack[Options],
) -> Circuit | PathCircuit: ...
@overload
def circuit(
    text: list[str] | tuple[str, ...],
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    target: Token | Sequence[Token] = None,
    other: Token | Sequence[Token] = None,
    **options: Unpack[Options],
) -> Circuits: ...
def circuit(
    text: Runnable | list[str] | tuple[str, ...],
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    metric: Metric | None = None,
    position: Position = None,
    target: Token | Sequence[Token] = None,
    other: Token | Sequence[Token] = None,
    keep: float = 0.9,
    ablation: Any = "zero",
    units: Units = "edges",
    max_edges: int | None = None,
    seconds: float | None = None,
    random: int = 20,
    seed: int = 0,
    progress: bool = True,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
) -> Circuit | PathCircuit | Circuits:
    r"""Find a smallest set of attention edges on which alone a model keeps its answer.

    The model runs with the attention of all other edges, in all layers and heads, set to zero after
    normalizing, so that each edge that is kept adds its message :math:`A_{ij} v_j` to its query,
    and no other does. With m(C) for the metric on the edges C alone, they keep the share

    .. math::

        F(C) = \frac{m(C) - m(\emptyset)}{m(\text{all}) - m(\emptyset)}

    of the metric: 0 is the model without attention, 1 the plain model. What does not run through
    attention, such as the residual stream and MLPs, always stays.

    Parameters
    ----------
    text, model, tokenizer
        As in `gattn.effect`; a function must call the model once, on one sequence or graph. A list
        of texts has a circuit for each.
    metric, position, target, other
        As in `gattn.effect`.
        For several texts, `target`, `other` and `ablation` may be lists, one for each; an entry
        of the latter may be a list of texts.
    keep : float
        The share F to keep, above 0, at most 1.
    ablation : "zero", "mean", list of texts, or a text, or whatever else `gattn.capture` takes
        What takes the place of the messages :math:`A_{ij} v_j` of other edges: nothing;
        :math:`A_{ij} \bar v`, with the head's mean value over all positions of the same run, later
        ones too, or over those of a list of texts (mean ablation); or the messages of the same
        edges on another text of as many tokens, such as a corrupted one (resample ablation,
        activation patching).
        Then :math:`m(\emptyset)` is the model in which all edges have such messages.
    units : "edges", "pairs", "tokens", "heads", "paths" or "all paths"
        What is kept or left out as a whole: an edge of one head; the edges from one token to
        another in all layers and heads, as of a graph network; those from one token; those of a
        head. Or a path: what one head wrote, as the queries, keys or values of a later head read
        it, in all tokens; "all paths" are also those from embeddings and MLPs to heads. Then
        attention itself stays, and what else reads the residual stream, such as MLPs, hears all;
        heads do not hear of parts whose paths are left out, as with `gattn.Without`. What takes
        their place is ``ablation``, as ``by`` there.
    max_edges : int, optional
        How many edges the circuit may have. If too few keep enough, those that lose least go, and
        the notes say how far it is from `keep`.
    seconds : float, optional
        How long it may take, but for the first runs, without which nothing is known. The search
        stops with the best circuit so far, in time to test it.
    random : int
        How many random sets, other than it, with as many units of each layer, the circuit is
        compared with.
    seed : int
        Seed for drawing them.
    progress : bool
        Whether to print an estimate of the time and a progress bar on stderr, if it takes over a
        second.
    tokens, grid
        The tokens' texts, and where patches lie, as in `gattn.capturing`.

    Returns
    -------
    Circuit, PathCircuit, or Circuits of several texts
        A `networkx.DiGraph` that draws itself and lists its edges and heads: on (depth, position),
        or of paths on the names of heads;
        its ``faithfulness`` F(C), ``completeness`` and ``minimality`` were measured by running the
        model. Each of its units is needed to keep enough unless the notes say that time ran out. It
        is a smallest set that was found; that none is smaller is not proved.

    Raises
    ------
    SelectionError
        If there is no such metric, position, token or unit, or keep or a limit is out of range.
    CaptureError, ModelError, ContractError, EditError
        As in `gattn.effect`.

    Notes
    -----
    The search ranks units by integrated gradients of the metric with respect to a weight on their
    attention, or on what a head's queries, keys or values hear of a part. It takes the fewest from
    the top that keep enough, by bisection, ranks these on themselves, and so on. Then it leaves out
    units as long as a run without them keeps enough, and tries to exchange two for one. All sets
    that it compares are measured by running the model.

    References
    ----------
    Wang et al. (2023), Interpretability in the wild: a circuit for indirect object identification
    (faithfulness, completeness, minimality). Conmy et al. (2023), Towards automated circuit
    discovery. Hanna et al. (2024), Have faith in faithfulness (integrated gradients, and F). Marks
    et al. (2025), Sparse feature circuits. Goldowsky-Dill et al. (2023), Localizing model behavior
    with path patching.

    Examples
    --------
    >>> text = "The river tall green lamp river tall green lamp river tall green"
    >>> found = gattn.circuit(text, target=" lamp", other=" river")
    >>> found.heads()
    >>> with gattn.edited(model, found.only()):
    ...     model(**inputs)
    """
    wanted = Wanted(
        metric,
        position,
        units,
        _limits(keep, max_edges, seconds),
        whole("random, a number of sets,", random, 0, SelectionError),
        whole("seed", seed, 0, SelectionError),
        progress,
        Naming(tokens, grid),
    )
    if getattr(getattr(text, "dtype", None), "kind", "") in {"O", "U", "T"}:
        text = cast("Any", text).tolist()
    texts = list(text) if isinstance(text, (list, tuple)) else []
    if isinstance(text, (list, tuple)) and not texts:
        raise SelectionError("The list of texts is empty: expected at least one text.")
    if not texts or not all(isinstance(one, str) for one in texts):
        return find(cast("Runnable", text), model, tokenizer, target, other, ablation, wanted)
    known = resolved(model, tokenizer)
    given = {"target": target, "other": other, "ablation": ablation}
    each = zip(texts, *(_each(name, one, texts) for name, one in given.items()), strict=True)
    found = [find(one, *known, goal, rival, rest, wanted) for one, goal, rival, rest in each]
    return Circuits(found, wanted.seed)


def _each(name: str, given: Any, texts: Sequence[Any]) -> Sequence[Any]:
    """Give each text its token, or its ablation."""
    if name != "ablation" and hasattr(given, "tolist"):
        given = given.tolist()
    if not isinstance(given, (list, tuple)):
        return [given] * len(texts)
    if len(given) != len(texts):
        raise SelectionError(
            f"{name}= has {len(given)} entries for {len(texts)} texts: give one, or one for each."
        )
    return given


def _limits(keep: float, max_edges: int | None, seconds: float | None) -> Limits:
    """Check what a search must reach, and must not exceed."""
    for name, given, range_ in (
        ("keep", keep, "above 0, at most 1"),
        ("seconds", seconds, "above 0"),
    ):
        is_number = isinstance(given, Real) and not isinstance(given, bool)
        is_right = is_number and 0 < float(given) <= (1 if name == "keep" else float("inf"))  # type: ignore[arg-type]
        if not is_right and (name == "keep" or given is not None):
            raise SelectionError(f"{name} is a number {range_}, not {given!r:.80}.")
    most = None if max_edges is None else whole("max_edges", max_edges, 0, SelectionError)
    return Limits(float(keep), most, float("inf") if seconds is None else float(seconds))
