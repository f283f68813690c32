"""What a circuit loses without each of its units is measured on the circuit as it is returned."""

from typing import Any

import pytest
import torch

import gattn

TARGET, OTHER = 5, 7


def _metric(model: Any, inputs: dict[str, torch.Tensor], edges: list[list[int]]) -> float:
    only = gattn.Only({"decoder": edges})
    with torch.no_grad(), gattn.edited(model, only):
        logits = model(**inputs).logits[0, -1]
    return float(logits[TARGET] - logits[OTHER])


@pytest.mark.parametrize("units", ["tokens", "heads", "edges"])
@pytest.mark.parametrize("seed", range(3))
def test_losses_are_those_of_the_circuit_returned(units: Any, seed: int) -> None:
    # In random models, edges without a path to the answer are often dropped after the search.
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
    inputs = {"input_ids": torch.randint(3, 40, (1, 5))}
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
