"""Softmaxes over edges that are not followed, beside one that is: a warning names their layer."""

import warnings

import pytest
import torch
from torch import nn

import gattn


class Layer(nn.Module):
    """Attends over edges, by exponentials over their sums, which it writes in some way."""

    def __init__(self, weigh):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.weigh = weigh

    def forward(self, x, edge_index):
        source, target = edge_index
        scores = (self.query(x)[target] * self.key(x)[source]).sum(-1)

        def summed(numbers):
            return numbers.new_zeros(len(x), *numbers.shape[1:]).index_add(0, target, numbers)

        return x + self.weigh(scores, self.value(x)[source], target, summed)


def plain(scores, values, target, summed):
    powers = scores.exp()
    return summed((powers / summed(powers)[target])[:, None] * values)


def divided_after_the_sum(scores, values, target, summed):
    powers = scores.exp()
    return summed(powers[:, None] * values) / summed(powers)[:, None]


def masked(scores, values, target, summed):
    powers = scores.exp() * (scores > -9)
    return summed((powers / summed(powers)[target])[:, None] * values)


def powers_of_two(scores, values, target, summed):
    powers = scores.exp2()
    return summed((powers / summed(powers)[target])[:, None] * values)


def logarithm_of_the_sum(scores, values, target, summed):
    total = summed(scores.exp()).log()
    return summed((scores - total[target]).exp()[:, None] * values)


def put_and_added(scores, values, target, summed):
    powers = scores.exp()
    total = torch.zeros(7).index_put_((target,), powers, accumulate=True)
    return summed((powers / total[target])[:, None] * values)


def weighed_by_density(scores, values, target, summed):
    density = summed((-(scores**2)).exp())
    return summed(values) + density[:, None]


def largest_of_each_node(scores, values, target, summed):
    powers = torch.sigmoid(scores).exp()
    most = torch.zeros(7).scatter_reduce(0, target, powers, "amax")
    return summed(values) / most[:, None].clamp_min(1)


class Layers(nn.Module):
    def __init__(self, *ways):
        super().__init__()
        self.layers = nn.ModuleList(map(Layer, ways))

    def forward(self, x, edge_index):
        for layer in self.layers:
            x = layer(x, edge_index)
        return x


def captured(*ways):
    torch.manual_seed(0)
    model = Layers(*ways).eval()
    edges = torch.randint(0, 7, (2, 25)).unique(dim=1)
    with torch.no_grad(), gattn.capturing(model) as run:
        model(torch.randn(7, 8), edges)
    return len(list(run.trace.heads()))


@pytest.mark.parametrize(
    "way", [divided_after_the_sum, masked, powers_of_two, logarithm_of_the_sum, put_and_added]
)
def test_a_layer_whose_softmax_is_missed_is_named(way):
    with pytest.warns(UserWarning, match=r"layers\.1 .*does not show its attention"):
        assert captured(plain, way) == 1


def test_layers_that_are_all_seen_are_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert captured(plain, plain) == 2


@pytest.mark.parametrize("way", [weighed_by_density, largest_of_each_node])
def test_layers_that_sum_exponentials_up_for_something_else_are_not(way):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert captured(plain, way) == 1
