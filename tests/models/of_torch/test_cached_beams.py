"""Searches over decoders with caches of their own: rows are repeated, reordered and dropped."""

import pytest
import torch
from caching_models import in_tuples, made
from test_cached_memories import Translator, dense

import gattn
from gattn.errors import CaptureError, EditError


def taken(past, rows):
    """Take rows of a cache."""
    return [tuple(tuple(x[rows] for x in pair) for pair in layer) for layer in past]


def searched(model, source, target, rows, after):
    """Run one token, then take rows of the cache, and run the others one by one.

    `source` and `target` are those of the first call; `after` are the tokens that come then.
    """
    x, past, _ = model(source, target)
    past, found = taken(past, rows), [x[rows]]
    for token in after.unbind(1):
        x, past, _ = model(None, token[:, None], past)
        found.append(x)
    return torch.cat(found, 1)


def check(model, run, source, target):
    """Compare the traces with dense attention."""
    wanted, _ = dense(model, source, target)
    assert len(run.traces) == len(source)
    for n, trace in enumerate(run.traces):
        for stack, layers in wanted.items():
            for (layer, head), graph in trace[stack].items():
                attention = torch.tensor(graph.to_dense())
                torch.testing.assert_close(attention, layers[layer][n, head])


@pytest.mark.parametrize("batch", [1, 2])
def test_a_prompt_may_be_repeated_for_several_beams(batch):
    torch.manual_seed(0)
    model, beams = Translator("given").double().eval(), torch.arange(batch).repeat_interleave(3)
    source, target = torch.randint(0, 9, (batch, 7)), torch.randint(0, 9, (batch, 2))
    after = torch.randint(0, 9, (3 * batch, 3))
    texts = source[beams], torch.cat([target[beams], after], 1)
    with torch.no_grad():
        with gattn.capturing(model) as run:
            searched(model, source, target, beams, after)
        check(model, run, *texts)
        cut = gattn.Cut(stack="decoder.cross", layer=1, head=2, query=4, key=3)
        with gattn.edited(model, cut):
            x = searched(model, source, target, beams, after)
        torch.testing.assert_close(x, dense(model, *texts, (1, 2, 4, 3))[1])


@pytest.mark.parametrize("is_batch", [False, True])
def test_texts_that_only_their_sources_tell_apart_are_refused(is_batch):
    """Their first tokens are the same, so that the first layer's keys are the same."""
    torch.manual_seed(0)
    model, first = Translator("given").eval(), torch.zeros(2, 1, dtype=torch.long)
    source = torch.randint(0, 9, (2, 7))
    with torch.no_grad(), gattn.capturing(model):
        if is_batch:
            past = taken(model(source, first)[1], torch.tensor([1, 0]))
        else:
            past, _ = (model(one[None], first[:1])[1] for one in source)
        with pytest.raises(CaptureError, match="those of another text in this context"):
            model(None, first if is_batch else first[:1], past)


def test_a_batch_of_caches_that_were_filled_one_by_one_is_refused():
    torch.manual_seed(0)
    model, ids = made(in_tuples), torch.randint(0, 9, (2, 4))
    with torch.no_grad(), gattn.capturing(model):
        one, other = (model(row[None, :3], torch.arange(3))[1] for row in ids)
        past = [
            tuple(torch.cat(pair) for pair in zip(*layer, strict=True))
            for layer in zip(one, other, strict=True)
        ]
        with pytest.raises(CaptureError, match="joined from caches of several calls"):
            model(ids[:, 3:], torch.tensor([3]), past)


@pytest.mark.parametrize(
    "weight", [gattn.ALiBi(4), lambda q, k, pairs: (q * k).sum(-1) - pairs.offset.abs()]
)
def test_a_step_whose_prompt_is_not_known_has_no_positions_to_weigh(weight):
    torch.manual_seed(0)
    model, ids = made(in_tuples), torch.randint(0, 9, (1, 4))
    swap = gattn.Swap(layer=0, weight=weight)
    with torch.no_grad():
        past = model(ids[:, :3], torch.arange(3))[1]
        plain = model(ids[:, 3:], torch.tensor([3]), past)[0]
        with (
            pytest.raises(EditError, match="open the context before the prompt"),
            gattn.edited(model, swap),
        ):
            model(ids[:, 3:], torch.tensor([3]), past)
        with gattn.edited(model, gattn.Swap(layer=0, weight=1.0 * gattn.ModelScore())):
            x = model(ids[:, 3:], torch.tensor([3]), past)[0]
        torch.testing.assert_close(x, plain)
        with gattn.edited(model, gattn.Swap(layer=0, weight=2 * gattn.ModelScore())):
            assert not torch.allclose(model(ids[:, 3:], torch.tensor([3]), past)[0], plain)
