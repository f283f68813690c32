"""Products over edges, and their gradients of any order."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from gattn.engines.tensors.sparse import edge_products, neighbour_sums
from gattn.graph.rules.neighbourhoods import Neighbourhoods

EDGES = {
    "some": [(0, 2), (0, 4), (1, 0), (1, 2), (3, 2), (3, 3)],
    "in another order": [(0, 4), (0, 0), (0, 2), (2, 3), (2, 1), (3, 4)],
    "doubled": [(0, 1), (0, 1), (1, 3), (2, 0), (2, 3), (2, 0)],
    "one row": [(2, 0), (2, 1), (2, 4)],
    "none": [],
}
QUERIES, KEYS, HEADS, DIM = 4, 5, 3, 2


def neighbourhoods(name):
    index = torch.tensor(EDGES[name], dtype=torch.long).reshape(-1, 2)
    edges = Neighbourhoods.from_pairs(*index.T, QUERIES, KEYS)
    assert edges.order is None
    return index.T, edges


def vectors(randn, tokens):
    return randn(HEADS, tokens, DIM).requires_grad_()


@pytest.mark.parametrize("name", EDGES)
def test_products_are_those_of_the_ends(randn, name):
    (rows, columns), edges = neighbourhoods(name)
    query, key = vectors(randn, QUERIES), vectors(randn, KEYS)
    found = edge_products(query, key, edges)
    torch.testing.assert_close(found, (query[:, rows] * key[:, columns]).sum(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # each has a kernel of its own
@pytest.mark.parametrize("groups", [1, HEADS])
@pytest.mark.parametrize("name", EDGES)
def test_sums_are_those_of_the_neighbours(randn, name, groups, dtype, monkeypatch):
    (rows, columns), edges = neighbourhoods(name)
    if groups > 1:
        monkeypatch.setattr("gattn.engines.tensors.sparse.GROUPED_EDGES", max(len(rows), 1))
    share, value = randn(HEADS, len(rows)).to(dtype), vectors(randn, KEYS).detach().to(dtype)
    value[:, [key for key in range(KEYS) if key not in columns]] = torch.nan
    wanted = torch.zeros(HEADS, QUERIES, DIM, dtype=dtype)
    for number, (row, column) in enumerate(EDGES[name]):
        wanted[:, row] += share[:, number, None] * value[:, column]
    torch.testing.assert_close(neighbour_sums(share, value, edges), wanted)


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_products_have_gradients_of_any_order(randn, name, check):
    _, edges = neighbourhoods(name)
    given = vectors(randn, QUERIES), vectors(randn, KEYS)
    assert check(lambda query, key: edge_products(query, key, edges), given, fast_mode=True)


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_sums_have_gradients_of_any_order(randn, name, check):
    _, edges = neighbourhoods(name)
    given = randn(HEADS, edges.num_edges).requires_grad_(), vectors(randn, KEYS)
    assert check(lambda share, value: neighbour_sums(share, value, edges), given, fast_mode=True)


def test_third_derivatives_are_those_of_finite_differences(randn):
    _, edges = neighbourhoods("some")

    def second(query, key):
        (first,) = torch.autograd.grad(
            edge_products(query, key, edges).tanh().sum(), query, create_graph=True
        )
        return torch.autograd.grad(first.square().sum(), key, create_graph=True)

    assert gradgradcheck(second, (vectors(randn, QUERIES), vectors(randn, KEYS)), fast_mode=True)


@pytest.mark.parametrize("needed", [(True, False), (False, True), (False, False)])
def test_only_the_gradients_that_are_needed(randn, needed):
    _, edges = neighbourhoods("some")
    query, key = (
        randn(HEADS, tokens, DIM).requires_grad_(one)
        for tokens, one in zip((QUERIES, KEYS), needed, strict=True)
    )
    found = edge_products(query, key, edges)
    assert found.requires_grad == any(needed)
    if found.requires_grad:
        found.sum().backward()
    assert [query.grad is not None, key.grad is not None] == list(needed)


@pytest.mark.parametrize("dim", [0, 1])
def test_vectors_may_be_short(randn, dim):
    _, edges = neighbourhoods("some")
    query, key = randn(HEADS, QUERIES, dim), randn(HEADS, KEYS, dim)
    assert edge_products(query, key, edges).shape == (HEADS, 6)
    assert neighbour_sums(randn(HEADS, 6), key, edges).shape == (HEADS, QUERIES, dim)


def test_vectors_need_not_be_contiguous(randn):
    (rows, columns), edges = neighbourhoods("some")
    query, key = randn(QUERIES, HEADS, DIM).transpose(0, 1), randn(HEADS, DIM, KEYS).mT
    wanted = (query[:, rows] * key[:, columns]).sum(-1)
    torch.testing.assert_close(edge_products(query, key, edges), wanted)
    share = randn(6, HEADS).T
    dense = torch.zeros(HEADS, QUERIES, KEYS, dtype=torch.float64)
    dense[:, rows, columns] = share
    torch.testing.assert_close(neighbour_sums(share, key, edges), dense @ key)
