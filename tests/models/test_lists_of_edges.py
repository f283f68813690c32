"""Which of the lists in a layer's code are the edges that its softmax over segments goes over."""

import numpy as np
import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError

pyg = pytest.importorskip("torch_geometric")

EDGES = torch.tensor([[0, 1, 2, 3, 4, 1, 0], [1, 2, 3, 4, 0, 1, 0]])
TYPES = torch.tensor([0, 2, 1, 0, 1, 2, 1])
LOOPS = torch.arange(5).repeat(2, 1)


class Listed(nn.Module):
    """Attends along edges, whose lists its code has in different forms."""

    def __init__(self, has_index, has_repeated=False):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(4, 8) for _ in range(3))
        self.has_index, self.has_repeated = has_index, has_repeated

    def forward(self, x, edge_index, edge_type=None):
        source, target = edge_index[0].clone(), edge_index[1].clone()
        if not self.has_index:
            del edge_index
        if self.has_repeated:
            both = torch.stack([target, target], 1)
        query, key, value = (
            one(x).view(len(x), 2, 4) for one in (self.query, self.key, self.value)
        )
        scores = (query[target] * key[source]).sum(-1)
        if edge_type is not None:
            scores = scores + edge_type[:, None]
        self.weights = pyg.utils.softmax(scores, target, num_nodes=len(x))
        if self.has_repeated:
            self.weights = self.weights * (both == both)
        messages = self.weights[..., None] * value[source]
        return torch.zeros(len(x), 2, 4).index_add(0, target, messages).flatten(1)


def captured(model, *inputs):
    with gattn.capturing(model.eval()) as run, torch.no_grad():
        model(torch.randn(5, 4, generator=torch.Generator().manual_seed(1)), *inputs)
    return run.trace


@pytest.mark.parametrize(
    ("model", "types"),
    [
        (Listed(has_index=True), None),
        (Listed(has_index=True), TYPES),  # no key, beside the edge_index
        (Listed(has_index=True, has_repeated=True), TYPES),
        (Listed(has_index=False), None),
        (Listed(has_index=False, has_repeated=True), None),  # its columns are no edges
    ],
    ids=["index", "index and types", "index and repeated", "lists", "lists and repeated"],
)
def test_the_surest_list_of_edges_counts(model, types):
    trace = captured(model, EDGES, types)
    for head in (0, 1):
        expected = np.zeros((5, 5))
        expected[EDGES[1], EDGES[0]] = model.weights[:, head]
        np.testing.assert_allclose(trace[0, head].to_dense(), expected, atol=1e-6)


def test_of_two_lists_beside_the_queries_none_is_surer():
    with pytest.raises(CaptureError, match="several lists of edges fit its softmax over segments"):
        captured(Listed(has_index=False), EDGES, TYPES)


def test_edges_whose_ends_are_the_same_lists_are_never_others():
    """A list of other numbers may be that of the keys, by which the values were not gathered."""
    model = Listed(has_index=True)
    np.testing.assert_array_equal(captured(model, LOOPS)[0, 0].to_dense(), np.eye(5))
    for types in (TYPES[:5], torch.arange(5).flip(0)):
        with pytest.raises(CaptureError, match="the values of the node at its other end"):
            captured(Listed(has_index=True), LOOPS, types)
