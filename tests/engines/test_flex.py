"""What flex attention runs, why not, and that it looks at as few tiles as there are."""

from dataclasses import replace

import pytest
import torch
from problems import GRAPHS, WIDE, Problem, call_of, hold

from gattn.attention import graph_attention
from gattn.engines import choice, flex, tiles
from gattn.engines.call import EdgeList
from gattn.engines.kernels.mask_tiles import SIZE
from gattn.engines.kernels.scores import kernel_score
from gattn.errors import ContractError
from gattn.graph.token_graph import TokenGraph
from gattn.weights import ALiBi, ScaledDotProduct, Softcap

KNOWN = ["scaled dot", "T5", "relative", "ALiBi", "rotary", "softcap", "softcap and T5", "swin"]


@pytest.mark.parametrize("graph", [name for name in GRAPHS if not name.startswith("no ")])
def test_every_graph_with_pairs(graph):
    assert hold(Problem(GRAPHS[graph], "softcap and T5", "sink per head"), ["flex"])


@pytest.mark.parametrize("graph", WIDE)
def test_graphs_of_several_tiles(graph):
    assert hold(Problem(WIDE[graph], "relative", "sink", batch=1), ["flex"])


@pytest.mark.parametrize("weight", KNOWN)
@pytest.mark.parametrize("normalizer", ["temperature", "sink per head"])
def test_scores_with_caps_relative_biases_and_sinks(weight, normalizer):
    assert hold(Problem(GRAPHS["causal with an offset"], weight, normalizer), ["flex"])


def test_groups_and_value_dims():
    for key_heads, value_dim in ((1, 4), (2, 7)):
        problem = Problem(GRAPHS["prefix"], "ALiBi", key_heads=key_heads, value_dim=value_dim)
        assert hold(problem, ["flex"])


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (Problem(EdgeList(torch.tensor([[0], [1]]), 2, 2)), "a plain edge_index"),
        (Problem(TokenGraph.bipartite(3, 0)), "no pairs"),
        (Problem(GRAPHS["window"], normalizer="sparsemax"), "not a softmax"),
        (Problem(GRAPHS["window"], "additive"), "not a dot product"),
        (Problem(GRAPHS["window"], "softcapped lambda"), "not a dot product"),
        (Problem(GRAPHS["window"], "positions alone"), "no dot product"),
        (Problem(GRAPHS["window"], "dot and edge bias", features=3), "EdgeBias.* offsets alone"),
        (
            Problem(GRAPHS["window"], lambda: 2.0 * Softcap(ScaledDotProduct(), 2.0)),
            "not a dot product",
        ),
    ],
)
def test_it_says_why_not(problem, said):
    call = call_of(problem)
    assert flex.can_run(call) is not None
    if isinstance(problem.graph, TokenGraph):
        with pytest.raises(ContractError, match=f"engine flex cannot run this: .*{said}"):
            choice.named("flex", call)
    assert "dropout" in flex.can_run(replace(call_of(Problem(GRAPHS["window"])), dropout=0.5))


def test_scores_are_those_of_the_weight_function():
    """The form that kernels get, written out for all pairs."""
    problem = Problem(GRAPHS["causal with an offset"], "softcap and T5", "temperature")
    call = call_of(problem)
    score = kernel_score(call)
    queries, keys = call.query.shape[2], call.key.shape[2]
    offset = torch.arange(keys) - torch.arange(queries)[:, None] + queries - 1
    found = score.scale * score.query @ score.key.mT + score.inside[:, offset]
    found = score.cap * torch.tanh(found) + score.outside[:, offset]
    (block,) = tiles.row_blocks(call)
    wanted = block.scores / call.temperature
    edges = block.allowed.expand_as(wanted)
    torch.testing.assert_close(found[edges], wanted[edges])


def test_it_visits_the_tiles_that_hold_edges_and_masks_only_some():
    graph = TokenGraph.causal(4 * SIZE)
    mask = flex._block_mask(graph, torch.device("cpu"))
    assert mask.kv_num_blocks.flatten().tolist() == [1, 1, 1, 1]
    assert mask.full_kv_num_blocks.flatten().tolist() == [0, 1, 2, 3]
    assert mask is flex._block_mask(graph, torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: compiled kernels run nowhere")
@pytest.mark.parametrize("graph", ["window", "longformer", "documents"])
@pytest.mark.parametrize("weight", [None, ScaledDotProduct() + ALiBi(2)])
def test_the_compiled_kernel(graph, weight):
    draw = torch.Generator().manual_seed(0)
    tensors = [torch.randn(2, WIDE[graph].num_queries, 32, generator=draw) for _ in range(3)]
    found, wanted = ([x.to(device).requires_grad_() for x in tensors] for device in ("cuda", "cpu"))
    outputs = [
        graph_attention(*some, WIDE[graph], weight=weight and weight.to(device), engine=engine)
        for some, device, engine in ((found, "cuda", "flex"), (wanted, "cpu", "tiles"))
    ]
    torch.testing.assert_close(outputs[0].cpu(), outputs[1], atol=1e-2, rtol=1e-2)
    for output in outputs:
        output.sum().backward()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad, atol=1e-2, rtol=1e-2)
