"""What a circuit loses without each of its units is measured on the circuit as it is returned."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import gattn
from gattn.analysis.circuits.finding import _spare
from gattn.analysis.circuits.measuring import testing
from gattn.analysis.circuits.measuring.testing import Proof, _drawn

TARGET, OTHER = 5, 7


def _metric(model: Any, inputs: dict[str, torch.Tensor], edges: list[list[int]]) -> float:
    only = gattn.Only({"decoder": edges})
    with torch.no_grad(), gattn.edited(model, only):
        logits = model(**inputs).logits[0, -1]
    return float(logits[TARGET] - logits[OTHER])


def _random_model(seed: int) -> tuple[Any, dict[str, torch.Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        initializer_range=0.5,
    )
    model = LlamaForCausalLM(config).double().eval()
    return model, {"input_ids": torch.randint(3, 40, (1, 5))}


@pytest.mark.parametrize("units", ["tokens", "heads", "edges"])
@pytest.mark.parametrize("seed", range(3))
def test_losses_are_those_of_the_circuit_returned(units: Any, seed: int) -> None:
    # In random models, edges without a path to the answer are often dropped after the search.
    model, inputs = _random_model(seed)
    found = gattn.circuit(
        inputs,
        model,
        target=TARGET,
        other=OTHER,
        units=units,
        keep=0.7,
        random=0,
        progress=False,
    )
    edges = found.table()[["layer", "head", "query", "key"]].to_numpy().tolist()
    empty, full = found.graph["empty"], found.graph["full"]

    def share(rows: list[list[int]]) -> float:
        return (_metric(model, inputs, rows) - empty) / (full - empty)

    assert found.faithfulness == pytest.approx(share(edges), abs=1e-9)
    names = ["layer", "head", "query", "key"]
    kept = [name for name in found.units().columns if name in names]
    for _, unit in found.units().iterrows():
        ours = [int(unit[name]) for name in kept]
        rest = [row for row in edges if [row[names.index(name)] for name in kept] != ours]
        assert unit["edges"] == len(edges) - len(rest) > 0
        without = share(rest)
        assert unit["loss"] == pytest.approx(found.faithfulness - without, abs=1e-9)
        assert without < 0.7


def test_random_sets_have_as_many_units_as_the_circuit_returned(monkeypatch: Any) -> None:
    sizes = []

    def spied(profile: Any, mask: Any, *rest: Any) -> Any:
        sizes.append(int(mask.sum()))
        return _drawn(profile, mask, *rest)

    monkeypatch.setattr(testing, "_drawn", spied)
    model, inputs = _random_model(0)
    found = gattn.circuit(inputs, model, target=TARGET, seconds=1e-6, progress=False)
    assert sizes == [len(found.units())]
    assert sizes[0] < found.graph["all_edges"], "edges without a path go"


@pytest.mark.parametrize("has_gradient", [False, True])
def test_a_note_says_that_an_answer_has_no_gradient(has_gradient: bool) -> None:
    model, inputs = _random_model(0)

    def answer() -> Any:
        logits = model(**inputs).logits[0, -1]
        return logits[TARGET] if has_gradient else logits[TARGET].item()

    found = gattn.circuit(answer, model, units="heads", random=0, progress=False)
    assert any("no finite gradient" in note for note in found.notes) != has_gradient


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([0.5, 0.4], None),
        ([0.5, np.nan], "some may not be needed"),
        ([0.5, 0.1], "without one unit, too"),
        ([0.0, 0.1], "without any one of 2 units, too"),
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_notes_say_which_units_may_not_be_needed(losses: Any, said: str, is_late: bool) -> None:
    nothing = np.zeros(0)
    proof = Proof(0.95, 1.0, nothing, np.array(losses), nothing, nothing)
    notes = _spare(proof, cast("Any", SimpleNamespace(least=0.8, is_late=is_late)))
    assert len(notes) == (said is not None)
    assert all(note.startswith("time ran out") == is_late and said in note for note in notes)
