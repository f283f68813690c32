"""What is made of an edge_index is kept while it lives, and never outlives its numbers."""

import gc

import numpy as np
import pytest
import torch

from gattn.engines.call import edge_list
from gattn.module import GraphAttention

INDEX = [[2, 0, 4, 3, 2, 1, 2, 2], [3, 1, 0, 3, 1, 0, 2, 3]]
OTHER = [[1, 1, 4, 0, 2, 3, 2, 2], [0, 1, 1, 3, 4, 0, 2, 1]]


@pytest.fixture(params=[False, True], ids=["", "self-loops"])
def layer(request):
    torch.manual_seed(0)
    return GraphAttention(4, 3, heads=2, add_self_loops=request.param).double()


@pytest.fixture
def x(randn):
    return randn(5, 4)


def by_numpy(index):
    array = np.array(INDEX)
    given = torch.from_numpy(array)

    def change():
        array[:] = OTHER

    return given, change


def in_place(index):
    given = torch.tensor(INDEX)
    return given, lambda: given.copy_(torch.tensor(OTHER))


def by_data(index):
    given = torch.tensor(INDEX)
    return given, lambda: given.data.copy_(torch.tensor(OTHER))


def by_set(index):
    given = torch.tensor(INDEX)
    return given, lambda: given.set_(torch.tensor(OTHER))


@pytest.mark.parametrize("way", [by_numpy, in_place, by_data, by_set])
def test_changed_edges_are_seen(layer, x, way):
    given, change = way(INDEX)
    first = layer(x, given)
    torch.testing.assert_close(first, layer(x, torch.tensor(INDEX)))
    version = given._version
    change()
    torch.testing.assert_close(layer(x, given), layer(x, torch.tensor(OTHER)))
    assert not torch.allclose(layer(x, given), first)
    if way is by_numpy:
        assert given._version == version  # so a version would not have told


def test_gradients_are_those_of_the_edges_that_were_read(layer, x):
    given = torch.tensor(INDEX)
    x = x.requires_grad_()
    (expected,) = torch.autograd.grad(layer(x, torch.tensor(INDEX)).sum(), x)
    output = layer(x, given).sum()
    given.copy_(torch.tensor(OTHER))
    torch.testing.assert_close(torch.autograd.grad(output, x)[0], expected)


def test_they_are_forgotten_with_the_edge_index(layer, x):
    gc.collect()
    before = len(edge_list._KNOWN)
    given = torch.tensor(INDEX)
    layer(x, given)
    assert len(edge_list._KNOWN) == before + 1
    made = edge_list._KNOWN[id(given)].made
    assert len(made) == 1
    layer(x, given)
    assert edge_list._KNOWN[id(given)].made is made
    del given
    gc.collect()
    assert len(edge_list._KNOWN) == before


def test_other_sizes_and_kinds_of_numbers_are_other_lists(layer, randn):
    given = torch.tensor(INDEX)
    small = layer(randn(5, 4), given)
    assert layer(randn(7, 4), given).shape == (7, *small.shape[1:])
    with pytest.raises(ValueError, match="must lie in 0"):
        layer(randn(3, 4), given)
    x = randn(5, 4)
    torch.testing.assert_close(layer(x, given.int()), layer(x, given))


def test_what_is_returned_may_be_written_to(layer, x):
    given = torch.tensor(INDEX)
    first = layer(x, given)
    _, (index, _) = layer(x, given, return_attention_weights=True)
    index.zero_()
    torch.testing.assert_close(layer(x, torch.tensor(INDEX)), first)
    if layer.add_self_loops:
        torch.testing.assert_close(layer(x, given), first)


def test_lists_made_in_inference_mode_give_gradients_later(layer, x):
    given = torch.tensor(INDEX)
    with torch.inference_mode():
        first = layer(x, given)
    x = x.requires_grad_()
    again = layer(x, given)
    torch.testing.assert_close(again.detach(), first.clone())
    assert torch.autograd.grad(again.sum(), x)[0].any()


def test_few_lists_of_one_edge_index_are_kept(layer, randn):
    given = torch.tensor(INDEX)
    for nodes in range(5, 15):
        x = randn(nodes, 4)
        torch.testing.assert_close(layer(x, given), layer(x, given.clone()))
    assert len(edge_list._KNOWN[id(given)].made) <= edge_list._MOST_MADE
