"""What a run recorded goes with the run: no cycle keeps it until the next garbage collection."""

import gc
from collections.abc import Iterator
from weakref import ref

import pytest
import torch
from torch import nn

from gattn.graph.token_graph import TokenGraph
from gattn.keep import All, Keep, Threshold, TopK
from gattn.models.load.walking import modules_of, names_of
from gattn.models.run.capturing import capture, capturing


@pytest.fixture(autouse=True)
def _without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("contributions", [False, True, "value"])
def test_a_recording_goes_with_its_context(tiny, contributions) -> None:
    model = tiny("gpt2")
    with capturing(model, contributions=contributions) as run, torch.no_grad():
        model(torch.tensor([[5, 6, 7]]))
    gone, trace = ref(run), run.trace
    del run
    assert gone() is None
    assert trace[0, 0].graph.num_queries == 3


def test_a_recording_of_another_library_goes_too() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x = torch.randn(1, 4, 8)
    with capturing(model) as run, torch.no_grad():
        model(x)
    gone = ref(run)
    del run
    assert gone() is None


def left_to_collect(kind: type) -> int:
    """Count what only a garbage collection frees."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return sum(isinstance(one, kind) for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize("keep", [All(), TopK(2), Threshold(0.2)], ids=str)
def test_attention_and_edges_go_with_their_trace(tiny, keep: Keep) -> None:
    model = tiny("gpt2")
    capture([5, 6, 7], model, keep=keep)
    assert left_to_collect(torch.Tensor) == 0
    trace = capture([5, 6, 7], model, keep=keep)
    graph = trace[0, 0].graph
    assert graph.num_edges == len(trace[0, 0].attention)
    gone = [ref(trace[0, 0]), ref(graph), ref(graph.rule)]
    del trace, graph
    assert [one() for one in gone] == [None] * 3
    assert left_to_collect(torch.Tensor) == 0


@pytest.mark.parametrize(
    "graph",
    [TokenGraph.causal(4), TokenGraph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3)],
    ids=["rule", "edges"],
)
def test_a_token_graph_that_was_counted_goes_at_once(graph: TokenGraph) -> None:
    part = graph & graph
    assert part.num_edges == graph.num_edges
    assert part.edge_index.shape[1] == part.num_edges
    assert part.on_host is part
    gone = ref(part)
    del part
    assert gone() is None


def test_listing_modules_leaves_nothing_that_holds_the_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    assert modules_of(model) == list(model.modules())
    assert names_of(model) == dict(model.named_modules())
    gone = ref(model)
    del model
    assert gone() is None
