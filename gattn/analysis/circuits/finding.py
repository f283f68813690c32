"""Finds the circuit of one text: prepares the runs, searches, tests, and builds the graph."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from gattn.analysis.circuits.building import built
from gattn.analysis.circuits.edge_lists import EdgeList, Grouping, Units, check_units
from gattn.analysis.circuits.found import Circuit
from gattn.analysis.circuits.measuring.runs import Runs
from gattn.analysis.circuits.measuring.searching import FEW, Limits, Search
from gattn.analysis.circuits.measuring.testing import Proof, tested
from gattn.analysis.circuits.paths.lists import AMONG, PathList
from gattn.analysis.circuits.paths.path_circuits import PathCircuit, built_of_paths
from gattn.analysis.reading.results import told_in_graph
from gattn.errors import CaptureError
from gattn.keep import All
from gattn.models.edit.kept.kept import are_texts, is_zero
from gattn.models.effects.asking import asked
from gattn.models.effects.metrics import Metric, Position
from gattn.models.run.capturing import capturing
from gattn.models.run.editing import open_edits
from gattn.models.run.functions import Runnable
from gattn.models.run.names.naming import Naming
from gattn.models.run.patching import Sources
from gattn.models.watch.contexts import Context
from gattn.progress import announce, bar

if TYPE_CHECKING:
    from tqdm import tqdm
    from transformers import PreTrainedTokenizerBase

    from gattn.heads.trace import AttentionTrace
    from gattn.models.effects.runner import Runner
    from gattn.models.load.loading import Model

_TESTS = 4
"""How many runs test a circuit, besides random ones."""
_ROUGH = 1e-3
"""The rounding of shares that is worth a note."""


@dataclass(frozen=True)
class Wanted:
    """What is kept of which answer, and how it is searched; `gattn.circuit` explains each."""

    metric: Metric | None
    position: Position
    units: Units
    limits: Limits
    random: int
    seed: int
    progress: bool
    naming: Naming


@torch.inference_mode(False)
def find(
    text: Runnable,
    model: Model,
    tokenizer: PreTrainedTokenizerBase | None,
    target: Any,
    other: Any,
    ablation: Any,
    wanted: Wanted,
) -> Circuit | PathCircuit:
    """Find the circuit of one text."""
    goal = wanted.metric, wanted.position, target, other
    runner, measure = asked(text, model, tokenizer, *goal, "kl", wanted.naming)
    check_units(wanted.units)
    trace, sources = plain_run(runner), Sources(runner.model, runner.tokenizer)
    groups: Grouping | PathList
    if wanted.units in AMONG:
        groups = PathList.of(trace, wanted.units)
        messages = None if is_zero(ablation) else sources.parts(ablation)
    else:
        groups = Grouping.of(EdgeList.of(trace), wanted.units)
        messages = sources.messages(ablation)
    runs = Runs(runner, measure, groups, messages)
    with bar(desc="circuit", unit="run", progress=wanted.progress) as shown:
        proof, notes = _found(runs, wanted, shown)
    facts = {
        "metric": str(measure),
        "ablation": _written(ablation),
        "full": runs.full,
        "empty": runs.empty,
        "keep": wanted.limits.keep,
        "runs": runs.count,
        "seconds": runs.seconds,
        "has_stream": runs.has_stream,
        "order": json.dumps(runs.order),
        "positions": json.dumps(runner.read_at or []),
        **told_in_graph(open_edits(runner.model)),
    }
    if isinstance(groups, PathList):
        return built_of_paths(groups, proof, notes, facts)
    return built(groups, proof, notes, facts)


def _written(ablation: Any) -> str:
    """Write an ablation as JSON: null if it is none of "zero", "mean", texts and token ids."""

    def is_text(given: Any) -> bool:
        is_ids = isinstance(given, (list, tuple)) and all(isinstance(n, int) for n in given)
        return isinstance(given, str) or is_ids

    is_told = is_text(ablation) or (are_texts(ablation) and all(map(is_text, ablation)))
    return json.dumps(ablation if is_told else None)


def plain_run(runner: Runner) -> AttentionTrace:
    """Capture all edges of the plain run."""
    naming = runner.prompt.naming
    how: dict[str, Any] = {"keep": All(), "tokens": naming.tokens, "grid": naming.grid}
    with torch.no_grad(), capturing(runner.model, runner.tokenizer, **how) as run:
        run.encodings = runner.prompt.encodings
        runner.run(Context())
    if len(run.traces) != 1:
        raise CaptureError(
            "A circuit is of one run on one sequence or graph; the function runs the model on "
            f"{len(run.traces)}: expected a function that calls it once, and no batch of several."
        )
    return run.trace


def _found(runs: Runs, wanted: Wanted, shown: tqdm[NoReturn]) -> tuple[Proof, list[str]]:
    """Search, and test what was found."""
    limits, random = wanted.limits, wanted.random
    if runs.is_constant:
        note = f"the answer does not depend on {runs.groups.said}, so the circuit is empty"
        if runs.is_patched:
            note = f"other {runs.groups.lost} give the same answer, so the circuit is empty"
        nan, no_edge = float("nan"), np.zeros(len(runs.groups.edges), dtype=bool)
        no_unit = np.zeros(len(runs.groups), dtype=bool)
        return Proof(nan, nan, no_unit, np.zeros(0), np.zeros(0), no_edge), [note]

    def ran(count: int) -> None:
        shown.update(count)

    def tell(units: int) -> None:
        if runs.seconds_of_run and not shown.disable:
            what, fewer = "circuit, each round of leaving out units", "for less, pass seconds="
            announce(what, "run", min(units, FEW), runs.seconds_of_run, fewer)

    runs.ran = ran
    search = Search(runs, limits, random + _TESTS, tell)
    search.run()
    proof = tested(runs, search, random, wanted.seed)
    notes = []
    reached = f"it keeps {round(proof.faithfulness, 3) + 0.0:.3f}, not {limits.keep:g}"
    if proof.faithfulness < search.least:
        most = f"{limits.max_edges} edge{'s' * (limits.max_edges != 1)}"
        notes.append(f"{reached}, with at most {most}")
    elif proof.faithfulness < limits.keep - _ROUGH:
        notes.append(f"{reached}: within rounding, that is enough")
    notes += _spare(proof, search)
    if not runs.has_gradient:
        notes.append("the answer has no finite gradient: units were ranked by runs without each")
    if len(proof.random) == 0 and random and runs.seconds < limits.stop and proof.units.any():
        notes.append("no other set has as many units of each layer, so there is no random one")
    if runs.slack > _ROUGH:
        notes.append(f"shares are rounded by {runs.slack:.1g}: load the model in float32")
    if runs.shows_what_follows:
        notes.append(
            "messages that are left out carry the mean over later tokens, too, which are those to "
            "be predicted: pass ablation= a list of texts, or 'zero'"
        )
    notes += beyond(proof, max(runs.slack, _ROUGH), runs.groups.said)
    return proof, notes


def beyond(proof: Proof, slack: float, ablated: str) -> list[str]:
    """Say what shares mean that are more than all, or less than nothing, beyond rounding."""
    notes = []
    if proof.faithfulness > 1 + slack:
        notes.append("it keeps more than all: some of what is left out works against the answer")
    shares = [proof.faithfulness, 1 - proof.completeness]
    shares += [float(proof.random.mean())] if len(proof.random) else []
    if min(shares) < -slack:
        notes.append(f"a share below 0: the metric is less than with all {ablated} ablated")
    return notes


def _spare(proof: Proof, search: Search) -> list[str]:
    """Say that some units may not be needed, or that some are not."""
    if proof.faithfulness < search.least:
        return []
    late = "time ran out: " * search.is_late
    if np.isnan(proof.losses).any():
        return [f"{late}not every unit was left out alone, so some may not be needed"]
    if count := int((proof.faithfulness - proof.losses >= search.least).sum()):
        units = f"any one of {count} units" if count > 1 else "one unit"
        return [f"{late}it would keep enough without {units}, too"]
    return []
