"""Code that decides by its attention, before this meets the values, what it then does."""

from __future__ import annotations

import pytest
import torch
from hand_written import HEADS, ROOT, Layer, Model, made
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import EditError

MOST = 0.9


def _number(attention):
    """Say of each number whether it is large, as an integer."""
    return (attention > MOST).flatten().long()


DECIDES = {
    "one number": lambda a: bool(a.max() > MOST),
    "a number of Python": lambda a: a.max().item() > MOST,
    "less": lambda a: float(a.detach().max()) < MOST,
    "how many": lambda a: len((a > MOST).nonzero()) > 0,
    "repeated": lambda a: torch.arange(a.numel()).repeat_interleave(_number(a)).numel() > 0,
    "repeats": lambda a: torch.repeat_interleave(repeats=_number(a)).numel() > 0,
    "counts": lambda a: _number(a).bincount().numel() > 1,
    "classes": lambda a: nn.functional.one_hot(_number(a)).shape[-1] > 1,
    "range": lambda a: torch.arange(_number(a).sum()).numel() > 0,
    "zeros": lambda a: torch.zeros(_number(a).sum(), 1).numel() > 0,
}
LOGS = {
    "places": lambda a: (a > MOST).nonzero().sum(-1).tolist(),
    "where": lambda a: torch.stack(torch.where(a > MOST)).tolist(),
    "distinct": lambda a: a.unique().diff().sum().item(),
    "repeated": lambda a: torch.repeat_interleave(_number(a)).tolist(),
}


def only_the_last(attention):
    attention = attention.clone()
    attention[:, :, 4, :5] = 0
    return attention / attention.sum(-1, keepdim=True)


@pytest.mark.parametrize("decides", DECIDES.values(), ids=DECIDES)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_decision_that_an_edit_changes_is_refused(decides, layers, with_gradients):
    def way(q, k, v):
        attention = (q @ k.mT / ROOT).softmax(-1)
        if decides(attention):
            v = 2 * v
        return attention @ v

    model, x = made(way, layers=layers)
    cut = Cut(layer=layers - 1, query=4, key=slice(0, 5))
    says = rf"blocks\.{layers - 1} decides by its attention what it does before"
    with torch.set_grad_enabled(with_gradients):
        with pytest.raises(EditError, match=says), edited(model, cut):
            model(x)
        plain = model(x)
        with edited(model, Cut(layer=layers - 1, query=4, key=3)):  # which changes no decision
            assert not torch.allclose(model(x), plain)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_refusal_that_code_catches_is_followed_by_no_other_one(layers):
    def way(q, k, v):
        attention = (q @ k.mT / ROOT).softmax(-1)
        return attention @ (v.flip(2) if attention.max() > MOST else v)

    model, x = made(way, layers=layers)
    cut = Cut(layer=layers - 1, query=4, key=slice(0, 5))
    with edited(model, cut), pytest.raises(EditError, match="decides by its attention"):
        model(x)
    context = edited(model, Cut(layer=7))
    context.__enter__()
    with pytest.raises(RuntimeError):
        model(x[..., 1:])
    model(x)  # which ends
    with pytest.raises(EditError, match="had nothing to edit in layer 7: there is no layer 7"):
        context.__exit__(None, None, None)


def shifted(v, attention):
    """Put a zero before the values for each large number of one head."""
    places = (attention[0, 0] > MOST).nonzero()[:, 0]
    zeros = torch.zeros_like(places, dtype=v.dtype)[:, None].expand(*v.shape[:-2], -1, v.shape[-1])
    return torch.cat([zeros, v], -2)[..., : v.shape[-2], :]


def test_a_size_that_an_edit_changes_is_refused_where_other_tensors_meet_it():
    def way(q, k, v):
        attention = (q @ k.mT / ROOT).softmax(-1)
        return attention @ shifted(v, attention)

    model, x = made(way, layers=1)
    says = r"blocks\.0 decides by its attention what it does before"
    with pytest.raises(EditError, match=says), edited(model, Cut(query=4, key=slice(0, 5))):
        model(x)


def turned(x, attention, learned):
    return x.flip(1) if learned else x


class Later(Layer):
    """Gives its attention, and what code learned of it before it met the values."""

    def forward(self, x):
        q, k, v = self.parts(x)
        attention = (q @ k.mT / ROOT).softmax(-1)
        is_large = bool(attention.max() > MOST) if self.way is turned else None
        return self.out((attention @ v).transpose(1, 2).flatten(2)), attention, is_large


class Moving(Model):
    """Moves its tokens between layers, by the attention of the first."""

    def forward(self, x):
        one, other = self.blocks
        found, attention, learned = one(x)
        x = one.way(x + found, attention, learned)
        return x + other(x)[0]


@pytest.mark.parametrize(
    "move", [turned, lambda x, attention, _: shifted(x, attention)], ids=["turned", "shifted"]
)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_tokens_that_attention_moves_after_it_met_the_values_are_not_named(move, with_gradients):
    model, x = Moving(None), made(None)[1]
    model.blocks = nn.ModuleList((Later(move), Later(None)))
    model.double().eval()
    cut = Cut(layer=0, query=4, key=slice(0, 5))
    says = r"Before blocks\.1 attends, the model's code decides by numbers"
    with torch.set_grad_enabled(with_gradients):
        with pytest.raises(EditError, match=says), edited(model, cut), capturing(model):
            model(x)
        with edited(model, Cut(layer=0, query=4, key=3)), capturing(model) as run:
            model(x)  # which moves none
    assert len(list(run.traces[0].heads())) == 2 * HEADS


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_logs_of_an_edited_layer_leave_later_ones_their_names(log):
    def way(q, k, v):
        attention = (q @ k.mT / ROOT).softmax(-1)
        log(attention)
        return attention @ v

    model, x = made(way)
    cut = Cut(layer=0, query=4, key=slice(0, 5))
    with torch.no_grad(), edited(model, cut), capturing(model) as run:
        model(x)
    wanted = model.dense(x, lambda a, layer: a if layer else only_the_last(a))[0][1].detach()
    for row, trace in enumerate(run.traces):
        for head in range(HEADS):
            found = torch.tensor(trace.only_stack[1, head].to_dense())
            torch.testing.assert_close(found, wanted[row, head], rtol=0, atol=1e-12)


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
@pytest.mark.parametrize("layers", [1, 2])
def test_logs_whose_sizes_attention_decides_decide_nothing(log, layers):
    kept = []

    def way(q, k, v):
        attention = (q @ k.mT / ROOT).softmax(-1)
        kept.append(log(attention))
        return attention @ v

    model, x = made(way, layers=layers)
    cut = Cut(layer=layers - 1, query=4, key=slice(0, 5))
    with torch.no_grad(), edited(model, cut):
        found = model(x)
    attention, wanted = model.dense(
        x, lambda a, layer: only_the_last(a) if layer == layers - 1 else a
    )
    torch.testing.assert_close(found, wanted.detach(), rtol=0, atol=1e-12)
    one, other = (torch.tensor(a) for a in (kept[-1], log(attention[-1].detach())))
    torch.testing.assert_close(one, other)


OF_ARRAYS = {
    "index": lambda a: a[a > 0.1],
    "place": lambda a: int(a.argmax()),
}


@pytest.mark.parametrize("pick", OF_ARRAYS.values(), ids=OF_ARRAYS)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_picks_from_arrays_are_of_what_edits_wrote(pick, with_gradients):
    kept = []

    def way(q, k, v):
        attention = (q @ k.mT / ROOT).softmax(-1)
        kept.append(pick(attention.detach().cpu().numpy()))
        return attention @ v

    model, x = made(way)
    with torch.set_grad_enabled(with_gradients), edited(model, Cut(layer=1, query=4, key=slice(5))):
        model(x)
    (*_, wanted), _ = model.dense(x, lambda a, layer: only_the_last(a) if layer == 1 else a)
    assert kept[-1] == pytest.approx(pick(wanted.detach().numpy()), abs=1e-11)
