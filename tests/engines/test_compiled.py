"""Compiled weight functions, and layers in compiled models, give the same numbers."""

import shutil

import pytest
import torch
from torch import nn

from gattn.attention import graph_attention
from gattn.engines import edges, flex
from gattn.engines.call import attention_call
from gattn.engines.kernels.scores import kernel_score
from gattn.graph.token_graph import TokenGraph
from gattn.module import GraphAttention
from gattn.normalizers import Softmax
from gattn.weights import ALiBi, L1Distance, ScaledDotProduct, Softcap

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def distance(query, key, pairs):
    return -(query - key).abs().sum(-1)


@needs_compiler
def test_a_compiled_weight_function_gives_the_same(randn):
    graph = TokenGraph.causal(7)
    inputs = [randn(2, 7, 4).requires_grad_() for _ in range(3)]
    results = []
    for compile in (False, True):
        output = graph_attention(*inputs, graph, weight=distance, engine="tiles", compile=compile)
        results.append((output, *torch.autograd.grad(output.square().sum(), inputs)))
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain, atol=1e-10, rtol=1e-10)


class Block(nn.Module):
    """A layer of a transformer, as small as it gets."""

    def __init__(self, **options):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), GraphAttention(8, 4, heads=2, **options)

    def forward(self, x, graph):
        return x + self.attention(self.norm(x), graph).tanh()


def same_when_compiled(block, graph, x, **options):
    compiled = torch.compile(block, backend="aot_eager", **options)
    results = []
    for run in (block, compiled):
        output = run(x, graph)
        results.append((output, *torch.autograd.grad(output.square().sum(), block.parameters())))
    for plain, other in zip(*results, strict=True):
        torch.testing.assert_close(other, plain)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_model_with_a_causal_layer_compiles_whole(randn, batch):
    block, graph = Block(), TokenGraph.causal(6)
    same_when_compiled(block, graph, randn(*batch, 6, 8, dtype=torch.float32), fullgraph=True)


@pytest.mark.parametrize("weight", [None, distance, L1Distance() + ALiBi(2)])
def test_a_model_with_another_layer_compiles_in_parts(randn, weight):
    generator = torch.Generator().manual_seed(0)
    graph = TokenGraph.from_mask(torch.rand(6, 6, generator=generator) < 0.5)
    x = randn(6, 8, dtype=torch.float32)
    same_when_compiled(Block(weight=weight), graph, x)
    same_when_compiled(Block(weight=weight), TokenGraph.causal(6), x)


@needs_compiler
@pytest.mark.filterwarnings("ignore")  # of torch, about the kernel that it writes
def test_flex_attention_compiles_once_for_all_graphs_and_temperatures():
    """Forward and on a CPU: what it writes for a GPU is tested where there is one."""
    flex._kernel.cache_clear()
    counters = torch._dynamo.utils.counters
    counters.clear()
    query, key, value = torch.randn(3, 1, 2, 256, 32)
    for number in (1, 2, 3):
        graph = TokenGraph.window(256, 20 * number) | TokenGraph.prefix(256, number)
        weight = Softcap(ScaledDotProduct() + number * ALiBi(2), 5.0 * number)
        call, _ = attention_call(query, key, graph, weight, Softmax(number), value)
        with torch.no_grad():
            found, _ = flex._compiled(kernel_score(call), call.value, graph, False)
            wanted = edges.run(call)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1
    flex._kernel.cache_clear()
