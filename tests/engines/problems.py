"""Problems for engines: graphs, weight functions and normalizers by name, and what they give."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from threading import Lock

import pytest
import torch
from oracle import expected, expected_of_list
from torch import nn
from torch.nn.functional import elu

from gattn.attention import graph_attention
from gattn.engines import NAMES, edges, tiles
from gattn.engines.call import EdgeList, attention_call
from gattn.engines.shared import blocks, scoring
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers import (
    Entmax,
    Entmax15,
    Identity,
    Proportional,
    ReLU,
    Sigmoid,
    Softmax,
    Sparsemax,
    TopKSoftmax,
)
from gattn.weights import (
    GAT,
    Additive,
    ALiBi,
    Bilinear,
    Cosine,
    Dot,
    DotForm,
    EdgeBias,
    EdgeProduct,
    GATv2,
    KernelFeatures,
    L1Distance,
    PerformerFeatures,
    Polynomial,
    RelativePosition,
    Rotary,
    ScaledDotProduct,
    Softcap,
    SquaredDistance,
    SwinCosine,
    T5RelativeBias,
    WeightFunction,
)

HEADS, DIM, FEATURES = 2, 4, 3
ONE_AT_A_TIME = Lock()  # torch has one source of random numbers for all threads


def listed(pairs, queries, keys):
    index = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
    return TokenGraph.from_edge_index(index, num_queries=queries, num_keys=keys)


def drawn_edges(queries, keys, share=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return TokenGraph.from_mask(torch.rand(queries, keys, generator=generator) < share)


GRAPHS = {
    "complete": TokenGraph.complete(5),
    "causal": TokenGraph.causal(6),
    "causal with an offset": TokenGraph.causal(3, num_keys=7, query_offset=4),
    "causal with few keys": TokenGraph.causal(6, num_keys=3),
    "causal with many keys": TokenGraph.causal(4, num_keys=7),
    "a decoding step": TokenGraph.causal(1, num_keys=6, query_offset=5),
    "few queries": TokenGraph.bipartite(2, 7),
    "few keys": TokenGraph.bipartite(7, 2),
    "window": TokenGraph.window(9, 3),
    "window to both sides": TokenGraph.window(9, 2, causal=False),
    "dilated": TokenGraph.dilated(9, 4, 2),
    "longformer": TokenGraph.longformer(10, 1, [0, 6]),
    "bigbird": TokenGraph.bigbird(14, 2, random_blocks=1),
    "documents": TokenGraph.documents([0, 0, 0, 1, 1, 2, 2, 2]),
    "interleaved documents": TokenGraph.documents([0, 1, 0, 2, 1, 0, 2]),
    "causal documents": TokenGraph.documents([3, 3, 1, 1, 1, 3], causal=True),
    "prefix": TokenGraph.prefix(7, 3),
    "strided": TokenGraph.strided(9, 3),
    "self-loops": TokenGraph.self_loops(4),
    "expander": TokenGraph.expander(12, 2),
    "disjoint union": TokenGraph.disjoint_union(
        [TokenGraph.causal(3), TokenGraph.window(4, 2), TokenGraph.complete(2)]
    ),
    "random edges": drawn_edges(7, 7),
    "random edges to other tokens": drawn_edges(4, 9, seed=1),
    "rows without edges": TokenGraph.window(6, 2) - TokenGraph.from_edges([(2, 2), (1, 2)], 6),
    "keys nobody reads": TokenGraph.causal(4) - TokenGraph.from_edges([(1, 1), (1, 2), (1, 3)], 4),
    "no edges": TokenGraph.from_edges([], 4),
    "one token": TokenGraph.causal(1),
    "no tokens": TokenGraph.causal(0),
    "no queries": listed([], 0, 3),
    "no keys": listed([], 3, 0),
    "no keys of all": TokenGraph.bipartite(3, 0),
    "joined": TokenGraph.window(8, 2) | TokenGraph.prefix(8, 1),
    "cut": TokenGraph.causal(7) & TokenGraph.window(7, 3) - TokenGraph.from_edges([(0, 1)], 7),
}

WIDE = {
    "window": TokenGraph.window(260, 30),
    "window over many": TokenGraph.window(400, 5),
    "documents": TokenGraph.documents([token // 40 for token in range(250)], causal=True),
    "longformer": TokenGraph.longformer(210, 3, [0, 100]),
    "rows without edges": TokenGraph.window(200, 9)
    - TokenGraph.from_edges([(key, 70) for key in range(60, 71)], 200),
}


class MeanOfHeads(WeightFunction):
    """All heads share one score: `prepare` gives one head."""

    def prepare(self, query, key, positions):
        return query.mean(1, keepdim=True), key.mean(1, keepdim=True)

    def forward(self, query, key, pairs):
        return (query * key).sum(-1)


class DotOfMeans(MeanOfHeads):
    """The same with a dot form."""

    def dot_form(self, query, key):
        return DotForm(query, key)


class Trees(WeightFunction):
    """Takes sides apart: a tuple in a tuple, one without a tensor, vectors of several sizes."""

    def prepare(self, query, key, positions):
        size = query.square().sum(-1, keepdim=True)
        return (query, (size, None)), ((key[..., :1].mean(1, keepdim=True), None), key)

    def forward(self, query, key, pairs):
        (vector, (size, _)), ((first, _), other) = query, key
        return ((vector - other).tanh() * first).sum(-1) - 0.1 * size[..., 0]


def capturing_lambda():
    """Captures a parameter, and a tensor made of one outside."""
    scale = nn.Parameter(torch.randn(HEADS, dtype=torch.float64))
    root = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
    slope = root.exp()
    weight = lambda q, k, pairs: (  # noqa: E731
        -scale * (q - k).abs().sum(-1) + slope * 0.1 * pairs.offset.to(q)
    )
    return weight, [scale, root]


WEIGHTS = {
    "dot": Dot,
    "scaled dot": ScaledDotProduct,
    "bilinear": lambda: Bilinear(HEADS, DIM),
    "cosine": lambda: Cosine(nn.Parameter(torch.tensor([0.5, 2.0]))),
    "swin": lambda: SwinCosine(HEADS),
    "squared distance": lambda: SquaredDistance(nn.Parameter(torch.tensor([0.5, 1.5]))),
    "L1 distance": lambda: L1Distance(0.5),
    "learned L1 distance": lambda: L1Distance(nn.Parameter(torch.tensor([0.5, 1.5]))),
    "polynomial": lambda: Polynomial(2, 0.5),
    "kernel": lambda: KernelFeatures(lambda x: elu(x) + 1),
    "performer": lambda: KernelFeatures(PerformerFeatures(DIM)),
    "additive": lambda: Additive(HEADS, DIM, 3),
    "GAT": lambda: GAT(HEADS, DIM),
    "GATv2": lambda: GATv2(HEADS, DIM, 3),
    "edge bias": lambda: EdgeBias(HEADS, FEATURES),
    "edge product": lambda: EdgeProduct(HEADS, DIM, FEATURES),
    "dot and edge bias": lambda: ScaledDotProduct() + EdgeBias(HEADS, FEATURES),
    "ALiBi": lambda: ScaledDotProduct() + ALiBi(HEADS),
    "positions alone": lambda: ALiBi(HEADS) + RelativePosition(HEADS, 2),
    "T5": lambda: Dot() + T5RelativeBias(HEADS, 8, 6),
    "relative": lambda: ScaledDotProduct() + RelativePosition(HEADS, 2),
    "additive and relative": lambda: Additive(HEADS, DIM, 3) + RelativePosition(HEADS, 2),
    "learned scale": lambda: nn.Parameter(torch.tensor([0.5, 2.0])) * ScaledDotProduct(),
    "scaled sum": lambda: 0.7 * (Dot() + T5RelativeBias(HEADS, 8, 6)),
    "rotary": lambda: Rotary(ScaledDotProduct()),
    "rotary with ALiBi": lambda: Rotary(Cosine(2.0), interleaved=True) + ALiBi(HEADS),
    "rotary distance": lambda: Rotary(L1Distance(), dim=2),
    "softcap": lambda: Softcap(ScaledDotProduct(), 1.5),
    "softcap and T5": lambda: Softcap(Dot() + T5RelativeBias(HEADS, 8, 6), 2.0) + ALiBi(HEADS),
    "lambda": lambda: lambda q, k, pairs: (q * k).sum(-1) / (1 + (q - k).abs().sum(-1)),
    "lambda of one head": lambda: lambda q, k, pairs: 0.3 * pairs.offset.abs().to(q),
    "capturing lambda": capturing_lambda,
    "dot and lambda": lambda: Dot() + (lambda q, k, pairs: -(q - k).abs().sum(-1)),
    "softcapped lambda": lambda: Softcap(lambda q, k, pairs: (q * k).sum(-1), 2.0),
    "mean of heads": MeanOfHeads,
    "dot of means": DotOfMeans,
    "dot of means and dot": lambda: DotOfMeans() + Dot(),
    "trees": Trees,
    "trees and relative": lambda: Trees() + RelativePosition(HEADS, 2),
}
NEEDS_FEATURES = {name for name in WEIGHTS if "edge" in name}

NORMALIZERS = {
    "softmax": Softmax,
    "temperature": lambda: Softmax(0.5),
    "sink": lambda: Softmax(sink=0.0),
    "sink per head": lambda: Softmax(1.5, sink=nn.Parameter(torch.tensor([0.5, -1.0]))),
    "entmax": lambda: Entmax(nn.Parameter(torch.tensor([1.3, 1.7]))),
    "entmax 1.5": Entmax15,
    "sparsemax": Sparsemax,
    "sigmoid": Sigmoid,
    "biased sigmoid": lambda: Sigmoid(-0.5),
    "relu": ReLU,
    "identity": Identity,
    "proportional": Proportional,
    "top k": lambda: TopKSoftmax(2),
}


@dataclass(frozen=True)
class Problem:
    """One call of attention, drawn anew and alike each time it is asked for."""

    graph: TokenGraph | EdgeList
    weight: str | Callable = "scaled dot"
    normalizer: str | Callable = "softmax"
    batch: int = 2
    key_heads: int = HEADS
    value_dim: int = DIM
    features: int = 0  # axes of the edge features; 2: (edges, F), 3: (queries, keys, F)
    learns: bool = True
    dtype: torch.dtype = torch.float64  # what all numbers are rounded to
    is_exact: bool = False  # whether they are brought back to float64 then
    size: float = 1.0
    seed: int = 0

    def tensors(self):
        generator = torch.Generator().manual_seed(self.seed)
        queries, keys = self.graph.num_queries, self.graph.num_keys
        shapes = {
            "query": (self.batch, HEADS, queries, DIM),
            "key": (self.batch, self.key_heads, keys, DIM),
            "value": (self.batch, self.key_heads, keys, self.value_dim),
        }
        if self.features:
            pairs = (self.graph.num_edges,) if self.features == 2 else (queries, keys)
            shapes["edge_features"] = (*pairs, FEATURES)
        draw = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64)
            for name, shape in shapes.items()
        }
        for name in ("query", "key"):
            draw[name] = draw[name] * self.size
        return {name: self._rounded(x).requires_grad_(self.learns) for name, x in draw.items()}

    def functions(self):
        """The weight function, the normalizer, and what they learn."""
        with ONE_AT_A_TIME, torch.random.fork_rng():
            torch.manual_seed(self.seed)
            weight, captured = _built(self.weight, WEIGHTS)
            normalizer, _ = _built(self.normalizer, NORMALIZERS)
        modules = [self._rounded(x) for x in (weight, normalizer) if isinstance(x, nn.Module)]
        learned = [p.requires_grad_(self.learns) for x in modules for p in x.parameters()]
        return weight, normalizer, [*learned, *captured]

    def _rounded(self, numbers):
        rounded = numbers.to(self.dtype)
        return rounded.double() if self.is_exact else rounded

    def direction(self, output):
        """What the output is multiplied by for its gradient."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        drawn = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        return drawn.to(self.dtype).to(output.dtype)


def _built(function, known):
    built = known[function]() if isinstance(function, str) else function()
    built, captured = built if isinstance(built, tuple) else (built, [])
    if isinstance(built, nn.Module):
        built.double()
        for parameter in built.parameters():
            if not bool(parameter.any()):  # what starts at 0 would hide what it does
                nn.init.normal_(parameter)
    return built, captured


@dataclass
class Found:
    """An output, and the gradients of all that was learned."""

    output: torch.Tensor
    gradients: dict


def solve(problem, attend):
    """Let `attend(tensors, weight, normalizer)` solve a problem."""
    tensors = problem.tensors()
    weight, normalizer, learned = problem.functions()
    output = attend(tensors, weight, normalizer)
    if not problem.learns:
        return Found(output, {})
    leaves = tensors | {f"parameter {number}": one for number, one in enumerate(learned)}
    if not output.requires_grad:
        return Found(output, {name: torch.zeros_like(one) for name, one in leaves.items()})
    loss = (output * problem.direction(output)).sum()
    gradients = torch.autograd.grad(
        loss, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return Found(output, dict(zip(leaves, gradients, strict=True)))


def by_engine(problem, engine, **options):
    """Solve a problem by an engine (a name or a module), or give None where it cannot run."""
    module = import_module(f"gattn.engines.{engine}") if isinstance(engine, str) else engine
    if module.can_run(call_of(problem)) is not None:
        return None

    def attend(tensors, weight, normalizer):
        arguments = {"graph": problem.graph, "weight": weight, "normalizer": normalizer}
        if isinstance(engine, str) and isinstance(problem.graph, TokenGraph):
            return graph_attention(**tensors, **arguments, engine=engine, **options)
        return module.run(attention_call(**tensors, **arguments, **options)[0])

    return solve(problem, attend)


def call_of(problem):
    """Build the call of a problem, as engines are asked."""
    weight, normalizer, _ = problem.functions()
    arguments = {"graph": problem.graph, "weight": weight, "normalizer": normalizer}
    return attention_call(**problem.tensors(), **arguments)[0]


def by_oracle(problem):
    """Solve a problem by dense algebra."""

    def attend(tensors, weight, normalizer):
        given, features = list(tensors.values())[:3], tensors.get("edge_features")
        if isinstance(problem.graph, TokenGraph):
            return expected(*given, problem.graph, weight, normalizer, features).output
        index = problem.graph.edge_index
        return expected_of_list(*given, index, weight, normalizer, features).output

    return solve(problem, attend)


def agree(found, wanted, name=""):
    """Hold an output to 1e-10 and its gradients to 1e-9."""
    close(found.output, wanted.output, 1e-10, f"{name}: the output")
    assert list(found.gradients) == list(wanted.gradients)
    for one, gradient in found.gradients.items():
        close(gradient, wanted.gradients[one], 1e-9, f"{name}: the gradient of {one}")


def close(found, wanted, tolerance, name):
    torch.testing.assert_close(
        found, wanted, atol=tolerance, rtol=tolerance, msg=lambda said: f"{name}: {said}"
    )


def hold(problem, engines=NAMES, **options):
    """Hold every engine that can run a problem to the oracle, and give their names."""
    wanted, ran = by_oracle(problem), []
    for engine in engines:
        found = by_engine(problem, engine, **options)
        if found is not None:
            agree(found, wanted, engine if isinstance(engine, str) else engine.__name__)
            ran.append(engine)
    return ran


@contextmanager
def small_pieces(numbers=1, block_bytes=8, block_edges=1, height=64):
    """Cut everything that engines compute into many pieces."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PIECE_NUMBERS", "DEVICE_NUMBERS"):
            patch.setattr(scoring, name, numbers)
        patch.setattr(tiles, "BLOCK_BYTES", block_bytes)
        patch.setattr(blocks, "HEIGHT", height)
        patch.setattr(edges, "BLOCK_EDGES", block_edges)
        yield
