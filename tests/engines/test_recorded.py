"""Functions that are recorded on one piece and replayed on others give what they give."""

import random

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.nn.functional import leaky_relu
from torch.utils.dlpack import to_dlpack

from gattn import TokenGraph, graph_attention
from gattn.engines.tensors import piecewise
from gattn.engines.tensors.recorded import record
from gattn.weights import Additive

VECTOR = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def filled(query, key):
    scores = torch.zeros(len(query), dtype=query.dtype)
    scores[1:] = (query * key).sum(-1)[1:]
    return scores.clamp_(min=-0.5)


RECORDABLE = {
    "gatv2": lambda q, k: (VECTOR * leaky_relu(q + k, 0.2)).sum(-1),
    "one tensor, two shapes": lambda q, k: ((x := q + k) * x.flip(0)).sum(-1) + (x @ x.T).sum(-1),
    "several results": lambda q, k: (q * k).max(-1).values - torch.stack([q, k]).std(0).sum(-1),
    "written in place": filled,
    "only a view": lambda q, k: k[:, 0],
    "nothing of its inputs": lambda q, k: VECTOR.sum().exp().expand(len(q)),
    "choice of numbers": lambda q, k: torch.where(q > k, q, k.tanh()).prod(-1),
    "a broken network": lambda q, k: (q / (k - k)).sum(-1),
}


def inputs(count=2):
    return [[torch.randn(5, 3, dtype=torch.float64) for _ in "qk"] for _ in range(count)]


@pytest.mark.parametrize("name", RECORDABLE)
def test_a_program_gives_what_the_function_gives(name):
    function = RECORDABLE[name]
    with torch.no_grad():
        program, captured = record(lambda q, k: (function(q, k),), *inputs())
    assert not captured
    for query, key in inputs(3):
        for target, x in zip(program.inputs, (query, key), strict=True):
            if target is not None:
                target.copy_(x)
        torch.testing.assert_close(program()[0], function(query, key), equal_nan=True)


@pytest.mark.parametrize("name", ["gatv2", "several results", "choice of numbers"])
def test_a_gradient_is_a_program_too(name):
    def gradient(query, key):
        sides = [x.detach().requires_grad_() for x in (query, key)]
        with torch.enable_grad():
            return torch.autograd.grad(RECORDABLE[name](*sides).square().sum(), sides)

    program, _ = record(gradient, *inputs())
    for query, key in inputs(3):
        for target, x in zip(program.inputs, (query, key), strict=True):
            target.copy_(x)
        torch.testing.assert_close(program(), gradient(query, key))


def test_elementwise_operations_share_one_tensor():
    with torch.no_grad():
        program, _ = record(lambda q, k: ((VECTOR * (q + k).exp().sin()).sum(-1),), *inputs())
    targets = {run.keywords["out"].data_ptr() for run in program._runs[:-1]}
    assert len(program._runs) == 5
    assert len(targets) == 1
    assert targets.isdisjoint(x.data_ptr() for x in program.inputs)


def test_captured_tensors_with_a_gradient_are_found():
    vector, other = VECTOR.clone().requires_grad_(), torch.randn(3)
    with torch.no_grad():
        found = record(lambda q, k: ((q * k * vector[None] * other).sum(-1),), *inputs())
    assert [x is vector for x in found[1]] == [True]


def masked(scores, key):
    """Leave out some keys as models do, with a score beside which all others are small."""
    return scores + torch.where(key[:, 0] > 0, -1e9, 0.0)


def writes_to(x):
    x.mul_(2)
    return x.sum(-1)


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k: q.sum(-1) * torch.rand(5),
        lambda q, k: q.sum(-1) if q.sum() > 0 else k.sum(-1),
        lambda q, k: q.sum(-1) + max(q[:, 0].tolist()),
        lambda q, k: torch.from_numpy(np.exp(q.numpy())).sum(-1),
        lambda q, k: q[q > 0].sum() + k.sum(-1),
        lambda q, k: q.sum(-1) * random.random(),
        lambda q, k: writes_to(q),
        lambda q, k: writes_to(q + k) + VECTOR.mul_(1.0).sum(),
        lambda q, k: VECTOR.mul_(1.0) is VECTOR and (q * k).sum(-1),
        lambda q, k: masked((torch.complex(q, k) * torch.complex(k, q).conj()).imag.sum(-1), k),
        lambda q, k: masked(torch.complex(q, k).conj().imag.sum(-1), k),
        lambda q, k: masked((q[:3] * k[:3]).transpose_(0, 1).sum(-1), k[:3]),
        lambda q, k: masked(torch.from_dlpack(to_dlpack(q * k)).sum(-1), k),
    ],
    ids=[
        "random",
        "branch",
        "tolist",
        "numpy",
        "nonzero",
        "Python's random",
        "input",
        "captured",
        "captured, not read",
        "conjugate",
        "negative",
        "turned in place",
        "another library",
    ],
)
def test_what_depends_on_more_than_shapes_is_not_replayed(function):
    with torch.no_grad():
        assert record(lambda q, k: (function(q, k),), *inputs()) is None


@pytest.fixture
def small_pieces(monkeypatch):
    """Let calls be cut into many pieces; list which of them were replayed."""
    recorded = []

    def seen(*arguments):
        found = record(*arguments)
        recorded.append(found is not None)
        return found

    monkeypatch.setattr("gattn.engines.shared.scoring.PIECE_NUMBERS", 48)
    monkeypatch.setattr(piecewise, "FEWEST", 2)
    monkeypatch.setattr(piecewise, "record", seen)
    return recorded


@pytest.mark.parametrize("engine", ["tiles", "edges"])
def test_gradients_of_any_order_of_what_is_replayed(small_pieces, engine):
    graph, sides = TokenGraph.causal(6), [torch.randn(1, 6, 3, dtype=torch.float64) for _ in "qkv"]
    given = [x.requires_grad_() for x in (*sides, VECTOR.clone())]

    def attend(query, key, value, vector):
        def weight(q, k, pairs):
            return (vector * torch.tanh(q + k)).sum(-1) / (1 + pairs.offset.abs())

        return graph_attention(query, key, value, graph, weight=weight, engine=engine)

    assert gradcheck(attend, given, fast_mode=True)
    assert small_pieces
    assert all(small_pieces)
    assert gradgradcheck(attend, given, fast_mode=True)


@pytest.mark.parametrize("engine", ["tiles", "edges"])
def test_a_function_that_looks_at_positions_is_called_on_each_piece(small_pieces, engine):
    graph, query = TokenGraph.complete(12), torch.randn(1, 12, 3, dtype=torch.float64)

    def late(q, k, pairs):
        factors = [2.0 if position > 10 else 1.0 for position in pairs.query.flatten().tolist()]
        return (q * k).sum(-1) * torch.tensor(factors, dtype=q.dtype).view(pairs.query.shape)

    found = graph_attention(query, query, query, graph, weight=late, engine=engine)
    scores = query @ query.mT
    scores[:, 11] *= 2
    assert small_pieces == [False]
    torch.testing.assert_close(found, scores.softmax(-1) @ query)


def test_gradients_computed_forwards_are_not_lost(small_pieces):
    graph, (query, key, tangent) = TokenGraph.causal(12), torch.randn(3, 1, 12, 3).double()

    def attend(query):
        def weight(q, k, pairs):
            return torch.tanh(q + k).sum(-1)

        return graph_attention(query, key, key, graph, weight=weight, engine="tiles")

    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(attend(forward_ad.make_dual(query, tangent))).tangent
    step = 1e-5
    expected = (attend(query + step * tangent) - attend(query - step * tangent)) / (2 * step)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("engine", ["tiles", "edges"])
@pytest.mark.parametrize("is_global", [False, True])
def test_hooks_see_all_pairs(small_pieces, engine, is_global):
    weight, graph = Additive(1, 3, 2), TokenGraph.causal(12)
    query, seen = torch.randn(1, 12, 3), []

    def hear(module, arguments, result):
        if module is weight.heard:
            seen.append(result.numel())

    weight.heard = torch.nn.Identity()
    forward = weight.forward
    weight.forward = lambda *sides: weight.heard(forward(*sides))
    add = torch.nn.modules.module.register_module_forward_hook
    handle = add(hear) if is_global else weight.heard.register_forward_hook(hear)
    with handle:
        graph_attention(query, query, query, graph, weight=weight, engine=engine)
    assert not small_pieces
    assert sum(seen) == (graph.num_edges if engine == "edges" else 12 * 12)
