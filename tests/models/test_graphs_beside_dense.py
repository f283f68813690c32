"""Graph layers beside dense attention over the same nodes, as in graph transformers."""

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GPSConv
from torch_geometric.utils import to_dense_batch

import gattn

WIDTH, HEADS = 8, 2
EDGES = torch.tensor([[0, 1, 2, 3, 1, 4, 5, 6, 7, 8], [1, 2, 3, 0, 3, 5, 6, 7, 8, 4]])
BATCH = torch.tensor([0] * 4 + [1] * 5)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            GPSConv(WIDTH, GATConv(WIDTH, WIDTH // HEADS, heads=HEADS), heads=HEADS)
            for _ in range(2)
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, EDGES, BATCH)
        return x


def made():
    torch.manual_seed(0)
    return Model().double().eval(), torch.randn(9, WIDTH).double()


@torch.no_grad()
def test_both_kinds_of_attention_are_shown_on_the_nodes_of_the_data():
    model, x = made()
    plain = model(x)
    given = []
    handles = [
        layer.register_forward_pre_hook(lambda _, args: given.append(args[0]))
        for layer in model.layers
    ]
    model(x)
    for handle in handles:
        handle.remove()
    with gattn.capturing(model) as run:
        torch.testing.assert_close(model(x), plain, rtol=0, atol=1e-12)
    local, whole = run.trace.stacks.values()
    for number, (layer, x) in enumerate(zip(model.layers, given, strict=True)):
        _, (ends, alpha) = layer.conv(x, EDGES, return_attention_weights=True)
        dense, is_node = to_dense_batch(x, BATCH)
        _, weights = layer.attn(
            *(dense,) * 3, key_padding_mask=~is_node, average_attn_weights=False
        )
        for head in range(HEADS):
            wanted = torch.zeros(9, 9).double().index_put((ends[1], ends[0]), alpha[:, head])
            found = torch.tensor(local[number, head].to_dense())
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
            wanted = torch.block_diag(weights[0, head, :4, :4], weights[1, head])
            found = torch.tensor(whole[number, head].to_dense())
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("key", [2, 7])
@torch.no_grad()
def test_cutting_a_node_from_dense_attention_is_a_mask_of_it(key):
    model, x = made()
    stack = list(gattn.capture(lambda: model(x), model).stacks)[1]
    with gattn.edited(model, gattn.Cut(layer=[0, 1], key=key, stack=stack)):
        cut = model(x)

    def masked(module, args, kwargs):
        mask = kwargs["key_padding_mask"].clone()
        element = int(BATCH[key])
        mask[element, key - 4 * element] = True
        return args, kwargs | {"key_padding_mask": mask}

    for layer in model.layers:
        layer.attn.register_forward_pre_hook(masked, with_kwargs=True)
    wanted = model(x)
    assert not torch.allclose(wanted, made()[0](x), atol=1e-6)
    torch.testing.assert_close(cut, wanted, rtol=0, atol=1e-12)
