"""Engines on a complete graph, beside torch's fused attention and torch-geometric's layer.

python benchmarks/attention.py --sizes 128 512
"""

from collections.abc import Callable

import torch
from measure import main, timed
from torch.nn.functional import scaled_dot_product_attention

from gattn import ScaledDotProduct, SquaredDistance, TokenGraph
from gattn.attention import attention_call
from gattn.engines import dense, fused, message_passing

HEADS, DIM = 8, 64


def tensors(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, key, value = torch.randn(3, HEADS, size, DIM)
    return query, key, value


def torch_fused(size: int, repeats: int) -> dict[str, float]:
    # torch takes its fast kernel for a batch axis only.
    query, key, value = (x[None] for x in tensors(size))
    return timed(lambda: scaled_dot_product_attention(query, key, value), repeats)


def engine(run: Callable[..., torch.Tensor], weight: object) -> Callable[..., dict[str, float]]:
    def case(size: int, repeats: int) -> dict[str, float]:
        query, key, value = tensors(size)
        graph = TokenGraph.complete(size)
        graph.edge_index  # noqa: B018 - listing the edges is not what is measured

        def once() -> torch.Tensor:
            call, _ = attention_call(query, key, graph, weight, None, value)
            return run(call)

        return timed(once, repeats)

    return case


def transformer_conv(size: int, repeats: int) -> dict[str, float]:
    from torch_geometric.nn import TransformerConv

    layer = TransformerConv(HEADS * DIM, DIM, HEADS, root_weight=False)
    x, edge_index = torch.randn(size, HEADS * DIM), TokenGraph.complete(size).edge_index
    return timed(lambda: layer(x, edge_index), repeats)


if __name__ == "__main__":
    dot, distance = ScaledDotProduct(), SquaredDistance()
    with torch.no_grad():
        main(
            __file__,
            f"Attention on a complete graph, {HEADS} heads of {DIM}, forward, float32",
            {
                "torch scaled_dot_product_attention": torch_fused,
                "gattn fused": engine(fused.run, dot),
                "gattn dense": engine(dense.run, dot),
                "gattn dense, squared distance": engine(dense.run, distance),
                "gattn message passing": engine(message_passing.run, dot),
                "torch-geometric TransformerConv (with its projections)": transformer_conv,
            },
        )
