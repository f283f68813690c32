"""Generation loops with a cache of the model's own: steps continue the text of their prompt."""

import copy
import warnings

import pytest
import torch
from caching_models import (
    WIDTH,
    Attending,
    Text,
    check,
    dense,
    in_attributes,
    in_buffers,
    in_dicts,
    in_objects,
    in_tuples,
    made,
    stepped,
)
from torch import nn

import gattn
from gattn.errors import CaptureError, EditError


def compare(model, ids, first, is_given=True):
    """Compare the trace of prompt and steps with the whole text, and edits of it at each step."""
    with torch.no_grad():
        start = copy.deepcopy(model)  # It may hold its cache.
        wanted, _ = dense(model, ids)
        with gattn.capturing(model) as run:
            stepped(model, ids, first, is_given)
        assert len(run.traces) == len(ids)
        for n, trace in enumerate(run.traces):
            assert list(trace.stacks) == ["layers"]
            assert trace.generated == ids.shape[1] - first
            check(trace, wanted, n)
        last = ids.shape[1] - 1
        for cut in ((1, 2, slice(None), 0), (0, 1, last, 1), (0, 3, 0, slice(None))):
            layer, head, query, key = cut
            _, wanted = dense(model, ids, cut)
            again = copy.deepcopy(start)
            with gattn.edited(again, gattn.Cut(layer=layer, head=head, query=query, key=key)):
                outputs = stepped(again, ids, first, is_given)
            torch.testing.assert_close(torch.cat(outputs, 1), wanted)
    return run


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("extended", [in_tuples, in_dicts])
def test_steps_continue_the_text_whose_cache_is_given(extended, is_fused, batch):
    compare(made(extended, is_fused), torch.randint(0, 9, (batch, 5)), 3)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_text_may_begin_with_one_token(batch):
    compare(made(in_tuples), torch.randint(0, 9, (batch, 3)), 1)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("is_fused", [False, True])
def test_modules_may_hold_the_cache(is_fused, batch):
    ids = torch.randint(0, 9, (batch, 5))
    model = made(in_attributes, is_fused)
    compare(model, ids, 3, is_given=False)
    assert model.layers[0].held[0].shape[2] == 5
    model = made(in_objects, is_fused)
    compare(model, ids, 3, is_given=False)
    assert model.layers[0].held.pair[0].shape[2] == 5


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("is_fused", [False, True])
def test_a_cache_may_have_room_for_more(is_fused, batch):
    compare(made(in_buffers, is_fused), torch.randint(0, 9, (batch, 5)), 3, is_given=False)


@pytest.mark.parametrize("extended", [in_tuples, in_buffers])
def test_a_text_may_come_in_chunks(extended):
    """Where a chunk lies in a cache with room for more is an input, not a shape."""
    model, ids = made(extended), torch.randint(0, 9, (1, 6))

    def run():
        past, found = None, []
        for at in torch.arange(6).split(2):
            x, past = model(ids[:, at], at, past if extended is in_tuples else None)
            found.append(x)
        return torch.cat(found, 1)

    with torch.no_grad():
        with gattn.capturing(model) as seen:
            run()
        wanted, _ = dense(model, ids)
        check(seen.trace, wanted)
        assert seen.trace.generated == 0
        with gattn.edited(model, gattn.Cut(layer=0, head=1, query=3, key=[0, 2])):
            got = run()
        torch.testing.assert_close(got, dense(model, ids, (0, 1, 3, [0, 2]))[1])


class Stacked(nn.Module):
    """Is given its cache first, as one tensor whose first dimension is not the batch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList((Attending(in_tuples), Attending(in_tuples)))

    def forward(self, past, x, at):
        found = []
        for n, layer in enumerate(self.layers):
            y, kept = layer(x, None if past is None else tuple(past[n]), at)
            x = x + y
            found.append(torch.stack(kept))
        return x, torch.stack(found)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_refused_step_says_what_to_do(batch):
    model, x = Stacked().eval(), torch.randn(batch, 4, WIDTH)
    with torch.no_grad(), gattn.capturing(model):
        _, past = model(None, x[:, :3], torch.arange(3))
        with pytest.raises(CaptureError, match="run the whole text at once"):
            model(past, x[:, 3:], torch.tensor([3]))


@pytest.mark.parametrize("given", [4, 6, 7])
def test_tokens_name_the_prompt_or_the_whole_text(given):
    """A generated text ends with a token that the model did not read any more."""
    model, ids = made(in_tuples), torch.randint(0, 9, (1, 6))
    words = [f"w{n}" for n in range(given)]
    cut = gattn.Cut(layer=1, head=2, key="w1")
    with torch.no_grad():
        with gattn.capturing(model, tokens=words) as run:
            stepped(model, ids, 4, True)
        with gattn.edited(model, cut, tokens=words):
            outputs = stepped(model, ids, 4, True)
    named = (*words, "4", "5") if given == 4 else tuple(words[:6])
    assert run.trace[0, 0].tokens == named
    wanted = dense(model, ids, (1, 2, slice(None), 1))[1]
    torch.testing.assert_close(torch.cat(outputs, 1), wanted)


def test_texts_of_another_number_of_tokens_are_refused():
    model, ids = made(in_tuples), torch.randint(0, 9, (1, 6))
    words, cut = [f"w{n}" for n in range(8)], gattn.Cut(layer=1, head=2, key="w1")
    with torch.no_grad():
        with (
            pytest.raises(CaptureError, match="8 texts, but the stack 'layers' has 6"),
            gattn.capturing(model, tokens=words),
        ):
            stepped(model, ids, 4, True)
        with (
            pytest.raises(EditError, match="8 texts, and the stack 'layers' has 6"),
            gattn.edited(model, cut, tokens=words),
        ):
            stepped(model, ids, 4, True)


def test_ids_are_named_by_a_tokenizer_in_all_steps(tokenizer):
    class Named(Text):
        def forward(self, input_ids, at, past=None):
            return super().forward(input_ids, at, past)

    model = Named(Attending(in_tuples), Attending(in_tuples)).eval()
    ids = torch.tensor([[3, 1, 4, 1, 5, 2]])
    with torch.no_grad(), gattn.capturing(model, tokenizer=tokenizer) as run:
        stepped(model, ids, 4, True)
    assert run.trace[1, 0].tokens == tuple(tokenizer.convert_ids_to_tokens(ids[0].tolist()))


def test_negative_positions_count_from_the_end_of_the_prompt():
    model, ids = made(in_tuples), torch.randint(0, 9, (1, 6))
    with torch.no_grad():
        with gattn.edited(model, gattn.Cut(layer=1, head=2, key=-1)):
            outputs = stepped(model, ids, 4, True)
        wanted = dense(model, ids, (1, 2, slice(None), 3))[1]
    torch.testing.assert_close(torch.cat(outputs, 1), wanted)


def test_an_edit_of_a_later_token_applies_in_its_step_or_is_refused():
    model, ids = made(in_tuples), torch.randint(0, 9, (1, 6))
    with torch.no_grad():
        with gattn.edited(model, gattn.Cut(layer=1, head=2, query=4, key=[1, 3])):
            outputs = stepped(model, ids, 4, True)
        wanted = dense(model, ids, (1, 2, 4, [1, 3]))[1]
        torch.testing.assert_close(torch.cat(outputs, 1), wanted)
        with (
            pytest.raises(EditError, match=r"the queries are 0 \.\. 5"),
            gattn.edited(model, gattn.Cut(layer=1, head=2, query=6)),
        ):
            stepped(model, ids, 4, True)


def test_effects_and_kept_edges_are_those_of_the_whole_text():
    model, ids = made(in_tuples), torch.randint(0, 9, (1, 6))

    def last():
        return stepped(model, ids, 4, True)[-1][0, -1, 0]

    with torch.no_grad():
        found = gattn.effect(last, [gattn.Cut(layer=1, head=2, key=1)], model=model)
        cut = dense(model, ids, (1, 2, slice(None), 1))[1][0, -1, 0]
        plain = dense(model, ids)[1][0, -1, 0]
        assert found["effect"].item() == pytest.approx(float(cut - plain))
        with gattn.capturing(model, keep=gattn.TopK(2)) as run:
            stepped(model, ids, 4, True)
        wanted = dense(model, ids)[0]
    for (layer, head), graph in run.trace.only_stack.heads.items():
        rows = wanted[layer, 0, head]
        best = rows.topk(2, dim=-1)
        kept = torch.zeros_like(rows).scatter(1, best.indices, best.values)
        torch.testing.assert_close(torch.tensor(graph.to_dense()), kept)


def test_an_estimate_of_several_calls_is_refused():
    model, ids = made(in_tuples), torch.randint(0, 9, (1, 6))
    with pytest.raises(CaptureError, match=r"several calls of the model.*gattn\.effect"):
        gattn.estimate(lambda: stepped(model, ids, 4, True)[-1][0, -1, 0], model=model)


def test_a_step_that_breaks_off_leaves_the_text_as_it_was():
    model, ids = made(in_tuples), torch.randint(0, 9, (1, 6))
    with torch.no_grad():
        with gattn.capturing(model) as run:
            past = model(ids[:, :4], torch.arange(4))[1]
            handle = model.layers[1].out.register_forward_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                model(ids[:, 4:5], torch.tensor([4]), past)
            handle.remove()
            check(run.trace, dense(model, ids[:, :4])[0])
            past = model(ids[:, 4:5], torch.tensor([4]), past)[1]
            model(ids[:, 5:], torch.tensor([5]), past)
        check(run.trace, dense(model, ids)[0])


class Generates(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = made(in_tuples)

    def forward(self, ids):
        return stepped(self.text, ids, 3, True)


@torch.no_grad()
def test_steps_within_one_call_of_a_model_are_refused():
    """Each would be a layer of its own, of a text that is not known."""
    model, ids = Generates(), torch.randint(0, 9, (1, 5))
    said = pytest.raises(CaptureError, match="as in steps of generation")
    with said, gattn.capturing(model):
        model(ids)
    with gattn.capturing(model.text) as run:
        model(ids)
    assert repr(run) == "Recording(Text, 1 sequence)"
    assert run.trace.generated == 2


class Hidden(nn.Module):
    """Attends from new tokens to all hidden states so far, by torch's module."""

    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, before=None):
        return self.attn(x, *[x if before is None else torch.cat([before, x], 1)] * 2)[0]


def told(model, *calls):
    """Call a model in one context, and list the warnings."""
    with warnings.catch_warnings(record=True) as found, torch.no_grad():
        warnings.simplefilter("always")
        with gattn.capturing(model):
            for given in calls:
                model(*given)
    return [str(one.message) for one in found]


def test_steps_over_hidden_states_are_said_to_be_apart():
    model, x = Hidden().eval(), torch.randn(1, 5, 8)
    (said,) = told(model, (x[:, :4],), (x[:, 4:], x[:, :4]))
    assert "newest tokens alone: that is the stack 'attn 2'" in said
    assert told(model, (x,), (x[:, :3],)) == []
