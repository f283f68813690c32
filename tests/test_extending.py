"""The base class of each thing that users write shows one, and what it shows is right."""

import doctest

import pytest
import torch
from torch import nn

import gattn
from gattn import keep
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
