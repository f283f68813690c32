"""The base class of each thing that users write shows one, and what it shows is right."""

import doctest

import pytest
import torch
from torch import nn

import gattn
from gattn import keep
from gattn.errors import GraphError
from gattn.graph import token_graph
from gattn.graph.rules import base as rules
from gattn.normalizers import base as normalizers
from gattn.weights import base as weights


@pytest.mark.parametrize("module", [rules, weights, normalizers, keep, token_graph])
def test_examples_run(module) -> None:
    names = {"gattn": gattn, "nn": nn, "torch": torch, "TokenGraph": gattn.TokenGraph}
    failed, attempted = doctest.testmod(module, extraglobs=names)
    assert attempted >= 3
    assert not failed


class Wide(rules.Rule):
    """A rule that reads keys alone, and says so with one row for all queries."""

    def allowed(self, query, key):
        return key < 2


class Shares(rules.Rule):
    def allowed(self, query, key):
        return (key <= query).float()


@pytest.mark.parametrize(
    ("rule", "got"),
    [(Wide(), r"bool \(1, 3\)"), (Shares(), r"float32 \(2, 3\)")],
    ids=["row", "float"],
)
def test_a_rule_that_does_not_answer_for_each_pair_is_refused(rule, got) -> None:
    with pytest.raises(GraphError, match=f"must return booleans .* not {got}"):
        gattn.TokenGraph(rule, 6, 6)


class Documents(rules.Rule):
    """A rule that knows only the tokens that it was made for."""

    ids = torch.tensor([7, 7])

    def allowed(self, query, key):
        return self.ids[query - 5] == self.ids[key]


def test_a_rule_is_asked_only_about_the_tokens_of_its_graph() -> None:
    graph = gattn.TokenGraph(Documents(), 2, 2, query_offset=5)
    assert graph.num_edges == 4
    assert gattn.TokenGraph(Documents(), 0, 2).num_edges == 0
