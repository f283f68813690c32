"""What a call computed without gradients does not serve where they are wanted."""

from contextlib import nullcontext
from importlib import import_module

import pytest
import torch
from pairs import all_pairs

from gattn import Dot, Rotary, ScaledDotProduct, Softcap, SquaredDistance, TokenGraph
from gattn.engines import tiles
from gattn.engines.call import attention_call

ENGINES = ("tiles", "edges", "message_passing")
FUSED = ("dot", "rotary")  # what the kernel can score
MODES = (torch.no_grad, torch.inference_mode)
WEIGHTS = {
    "dot": ScaledDotProduct,
    "rotary": lambda: Rotary(Dot(), dim=4),
    "distance": SquaredDistance,
    "softcap": lambda: Softcap(Dot(), 3.0),
    "pair": lambda: lambda q, k, pairs: (q - k).square().sum(-1).sqrt(),
}
GRAPHS = {
    "causal": lambda: TokenGraph.causal(12),
    "documents": lambda: TokenGraph.documents(torch.tensor([0] * 5 + [1] * 7)),
    "globals": lambda: TokenGraph.longformer(12, 2, [0, 7]),
}


def gradients(call, engine, leaves):
    output = import_module(f"gattn.engines.{engine}").run(call)
    fixed = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return torch.autograd.grad((output * fixed).sum(), leaves)


@pytest.mark.parametrize(
    ("engine", "weight", "graph", "mode"),
    all_pairs(ENGINES, WEIGHTS, GRAPHS, MODES)
    + [("fused", weight, "causal", mode) for weight, mode in zip(FUSED, MODES, strict=True)],
)
def test_looking_first_changes_no_gradient(randn, engine, weight, graph, mode):
    leaves = [randn(1, 2, 12, 4).requires_grad_() for _ in range(3)]
    query, key, value = leaves
    found = []
    for look in (nullcontext, mode):
        call, _ = attention_call(query, key, GRAPHS[graph](), WEIGHTS[weight](), value=value)
        assert import_module(f"gattn.engines.{engine}").can_run(call) is None
        if look is mode:
            with look():
                import_module(f"gattn.engines.{engine}").run(call)
                list(tiles.row_blocks(call, scores=False))
                list(tiles.row_blocks(call))
        found.append(gradients(call, engine, leaves))
    for plain, after in zip(*found, strict=True):
        assert bool(plain.any())
        torch.testing.assert_close(after, plain)
