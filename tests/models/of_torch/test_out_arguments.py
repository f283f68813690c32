"""Edits reach the tensors that a model gives for results, as `torch.matmul(..., out=output)`."""

import pytest
import torch
from hand_written import DIM, ROOT, check


def by_matmul(q, k, v):
    output = torch.empty_like(v)
    torch.matmul((q @ k.mT / ROOT).softmax(-1), v, out=output)
    return output


def by_bmm(q, k, v):
    output = torch.empty_like(v).flatten(0, 1)
    attention = (q @ k.mT / ROOT).softmax(-1).flatten(0, 1)
    torch.bmm(attention, v.flatten(0, 1), out=output)
    return output.view_as(v)


def by_sum(q, k, v):
    attention, output = (q @ k.mT / ROOT).softmax(-1), torch.empty_like(v)
    torch.sum(attention[..., None] * v[:, :, None], 3, out=output)
    return output


def by_softmax(q, k, v):
    scores = q @ k.mT / DIM**0.5
    attention = torch.empty_like(scores)
    torch.softmax(scores, -1, out=attention)
    return attention @ v


def over_scores(q, k, v):
    scores = q @ k.mT / DIM**0.5
    torch.softmax(scores, -1, out=scores)
    return scores @ v


@pytest.mark.parametrize("way", [by_matmul, by_bmm, by_sum, by_softmax, over_scores])
def test_results_in_given_tensors_are_edited(way):
    check(way)
