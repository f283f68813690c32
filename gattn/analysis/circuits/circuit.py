"""Finds the smallest graph of attention that keeps a model's answer."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import torch
from tqdm import tqdm

from gattn.analysis.circuits.building import built
from gattn.analysis.circuits.edge_lists import EdgeList, Grouping, Units
from gattn.analysis.circuits.found import Circuit
from gattn.analysis.circuits.runs import Masks, Runs
from gattn.analysis.circuits.searching import FEW, Limits, Search
from gattn.analysis.circuits.testing import Proof, tested
from gattn.analysis.reading.results import told_in_graph
from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.keep import All
from gattn.models.effects.asking import asked
from gattn.models.effects.metrics import Metric, Named, Token
from gattn.models.run.capturing import capturing
from gattn.models.run.editing import open_edits
from gattn.models.run.functions import Runnable
from gattn.models.run.naming import Tokens
from gattn.models.watch.contexts import Context
from gattn.progress import announce

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.heads.trace import AttentionTrace
    from gattn.models.effects.runner import Runner
    from gattn.models.load.loading import Model


_TESTS = 4
"""How many runs test a circuit, besides random ones."""


def circuit(
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    metric: Metric | None = None,
    position: int | str = -1,
    target: Token = None,
    other: Token = None,
    keep: float = 0.9,
    units: Units = "edges",
    max_edges: int | None = None,
    seconds: float | None = None,
    random: int = 20,
    seed: int = 0,
    progress: bool = True,
    tokens: Tokens | None = None,
) -> Circuit:
    r"""Find a smallest set of attention edges on which alone a model keeps its answer.

    The model runs with the attention of all other edges, in all layers and heads, set to zero after
    normalizing, so that each edge that is kept adds the same message :math:`A_{ij} v_j` to its
    query. With m(C) for the metric on the edges C alone, they keep the share

    .. math::

        F(C) = \frac{m(C) - m(\emptyset)}{m(\text{all}) - m(\emptyset)}

    of the metric: 0 is the model without attention, 1 the plain model. What does not run through
    attention, such as the residual stream and MLPs, always stays.

    Parameters
    ----------
    text, model, tokenizer
        As in `gattn.effect`; a function must call the model once, on one sequence or graph.
    metric, position, target, other
        As in `gattn.effect`. The default is "logit_difference" with a target and an other token,
        "probability" with a target, otherwise "kl", or the number that a function returns.
    keep : float
        The share F to keep, above 0, at most 1.
    units : "edges", "pairs", "tokens" or "heads"
        What is kept or left out as a whole: an edge of one head; the edges from one token to
        another in all layers and heads, as of a graph network; those from one token; those of a
        head.
    max_edges : int, optional
        How many edges the circuit may have. If too few keep enough, those that lose least go, and
        the notes say how far it is from `keep`.
    seconds : float, optional
        How long it may take, but for the first runs, without which nothing is known. The search
        stops with the best circuit so far, in time to test it.
    random : int
        How many random sets, with as many units of each layer, the circuit is compared with.
    seed : int
        Seed for drawing them.
    progress : bool
        Whether to print an estimate of the time and a progress bar on stderr, if it takes over a
        second.
    tokens : sequence of str, or mapping of str to sequence of str, optional
        The tokens' texts, as in `gattn.capturing`.

    Returns
    -------
    Circuit
        A `networkx.DiGraph` on (depth, position) that draws itself and lists its edges and heads;
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
    attention, takes the fewest from the top that keep enough, by bisection, ranks these on
    themselves, and so on. Then it leaves out units as long as a run without them keeps enough, and
    tries to exchange two for one. All sets that it compares are measured by running the model.

    References
    ----------
    Wang et al. (2023), Interpretability in the wild: a circuit for indirect object identification
    (faithfulness, completeness, minimality). Conmy et al. (2023), Towards automated circuit
    discovery. Hanna et al. (2024), Have faith in faithfulness (integrated gradients, and F). Marks
    et al. (2025), Sparse feature circuits.

    Examples
    --------
    >>> text = "The river tall green lamp river tall green lamp river tall green"
    >>> found = gattn.circuit(text, target=" lamp", other=" river")
    >>> found.heads()
    >>> with gattn.edited(model, found.only()):
    ...     model(**inputs)
    """
    limits = _limits(keep, max_edges, seconds)
    random = whole("random, a number of sets,", random, 0, SelectionError)
    seed = whole("seed", seed, 0, SelectionError)
    default: Named = "logit_difference"
    if target is None or other is None:
        default = "kl" if target is None else "probability"
    runner, measure = asked(text, model, tokenizer, metric, position, target, other, default)
    edges = EdgeList.of(_plain(runner, tokens))
    groups = Grouping.of(edges, units)
    runs = Runs(runner, measure, groups)
    with tqdm(desc="circuit", unit="run", delay=1, disable=not progress) as bar:
        mask, proof, notes = _found(runs, limits, random, seed, bar)
    facts = {
        "metric": str(measure),
        "full": runs.full,
        "empty": runs.empty,
        "keep": limits.keep,
        "runs": runs.count,
        "seconds": runs.seconds,
        "has_stream": runs.has_stream,
        **({} if runner.read_at is None else {"position": runner.read_at}),
        **told_in_graph(open_edits(runner.model)),
    }
    return built(groups, mask, proof, notes, facts)


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


def _plain(runner: Runner, tokens: Tokens | None) -> AttentionTrace:
    """Capture all edges of the plain run."""
    with (
        torch.no_grad(),
        capturing(runner.model, runner.tokenizer, keep=All(), tokens=tokens) as run,
    ):
        run.encodings = runner.prompt.encodings
        runner.run(Context())
    return run.trace


def _found(
    runs: Runs, limits: Limits, random: int, seed: int, bar: tqdm[NoReturn]
) -> tuple[Masks, Proof, list[str]]:
    """Search, and test what was found."""
    if runs.is_constant:
        note = "the answer does not depend on attention, so the circuit is empty"
        nan, no_edge = float("nan"), np.zeros(len(runs.groups.edges), dtype=bool)
        nothing = Proof(nan, nan, np.zeros(0), np.zeros(0), no_edge)
        return np.zeros(len(runs.groups), dtype=bool), nothing, [note]

    def ran(count: int) -> None:
        bar.update(count)

    def tell(units: int) -> None:
        if not bar.disable:
            each = (runs.seconds - begun) / max(runs.count - counted, 1)
            announce(
                "circuit", "run", 3 * min(units, FEW) + random, each, "for less, pass seconds="
            )

    runs.ran, begun, counted = ran, runs.seconds, runs.count
    search = Search(runs, limits, random + _TESTS, tell)
    mask = search.run()
    proof = tested(runs, mask, search.least, random, seed, limits.stop)
    notes = []
    if proof.faithfulness < search.least:
        reached = f"it keeps {proof.faithfulness:.3f}, not {limits.keep:g}"
        notes.append(f"{reached}, with at most {limits.max_edges} edges")
    elif not search.is_minimal:
        notes.append("not every unit was left out alone, so some may not be needed")
    if proof.faithfulness > 2 - limits.keep:
        notes.append("it keeps more than all: some of what is left out works against the answer")
    return mask, proof, notes
