"""Keys that torch's multi-head attention adds to those of tokens have names of their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError, EditError

TOKENS, WIDTH, HEADS = 5, 8, 2
NAMES = list("abcde")


def _module(*, bias=True, zero=True):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(
        WIDTH, HEADS, add_bias_kv=bias, add_zero_attn=zero, batch_first=True
    )
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


def _x(count=1):
    return torch.randn(count, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)).double()


def _run(module, x, **options):
    return module(x, x, x, average_attn_weights=False, **options)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("zero", [True, False])
@torch.no_grad()
def test_keys_that_it_adds_are_named(bias, zero):
    module, x = _module(bias=bias, zero=zero), _x()
    extra = ["[bias]"] * bias + ["[zero]"] * zero
    with capturing(module, tokens=NAMES) as run, capturing(module) as bare:
        _, weights = _run(module, x)
    graph = run.trace.only_stack[0, 1]
    assert graph.labels() == NAMES + extra
    assert bare.trace.only_stack[0, 1].labels() == [*map(str, range(TOKENS)), *extra]
    found = torch.tensor(graph.to_dense())
    torch.testing.assert_close(found, weights[0, 1], rtol=0, atol=1e-12)


@torch.no_grad()
def test_keys_that_it_adds_come_after_those_that_are_no_padding():
    module, x = _module(), _x(2)
    padding = torch.zeros(2, TOKENS, dtype=torch.bool)
    padding[1, 3:] = True
    with capturing(module) as run:
        _, weights = _run(module, x, key_padding_mask=padding)
    graph = run.traces[1].only_stack[0, 0]
    assert graph.labels() == ["0", "1", "2", "[bias]", "[zero]"]
    found = torch.tensor(graph.to_dense())
    torch.testing.assert_close(found, weights[1, 0][:3][:, [0, 1, 2, 5, 6]], rtol=0, atol=1e-12)
    with (
        pytest.raises(CaptureError, match="gives 4 texts"),
        capturing(module, tokens=list("abcd")),
    ):
        _run(module, x[:1])
    wrong = [NAMES, NAMES]  # One text too many, which could be taken for that of "[bias]".
    with (
        pytest.raises(CaptureError, match=r"gives 5 texts, but .* has 3 tokens"),
        capturing(module, tokens=wrong),
    ):
        _run(module, x, key_padding_mask=padding)


@pytest.mark.parametrize("needs_weights", [True, False])
@torch.no_grad()
def test_padding_before_the_tokens_is_none_of_its_queries(needs_weights):
    module, x = _module(), _x(2)
    padding = torch.zeros(2, TOKENS, dtype=torch.bool)
    padding[1, :2] = True
    options = {"key_padding_mask": padding}
    _, weights = _run(module, x, **options)
    options["need_weights"] = needs_weights
    output, _ = _run(module, x, **options)
    with capturing(module, tokens=[NAMES, list("cde")]) as run:
        _run(module, x, **options)
    graph = run.traces[1].only_stack[0, 1]
    assert graph.labels() == ["c", "d", "e", "[bias]", "[zero]"]
    assert list(graph.query_tokens) == ["c", "d", "e"]
    found = torch.tensor(graph.to_dense())
    torch.testing.assert_close(found, weights[1, 1][2:, 2:], rtol=0, atol=1e-12)
    with edited(module, Cut(layer=0, query="d", key="[bias]"), tokens=[NAMES, list("cde")]):
        changed, _ = _run(module, x, **options)
    assert (changed != output).any(-1).nonzero().tolist() == [[0, 3], [1, 3]]
    with edited(module, Cut(layer=0, query=0, key=0)):
        changed, _ = _run(module, x, **options)
    assert (changed != output).any(-1).nonzero().tolist() == [[0, 0], [1, 2]]


@torch.no_grad()
def test_other_tokens_that_cross_attention_reads_say_nothing_of_its_queries():
    module, x = _module(), _x(2)
    padding = torch.zeros(2, TOKENS, dtype=torch.bool)
    padding[1, :2] = True
    with capturing(module) as run:
        module(x.flip(1), x, x, key_padding_mask=padding)
    assert run.traces[1].only_stack[0, 0].to_dense().shape == (TOKENS, 5)


@pytest.mark.parametrize(("name", "column"), [("[bias]", 5), ("[zero]", 6), ("c", 2)])
@torch.no_grad()
def test_edits_name_them(name, column):
    module, x = _module(), _x()
    _, weights = _run(module, x)
    with edited(module, Cut(layer=0, key=name), tokens=NAMES), capturing(module) as run:
        _run(module, x)
    wanted = weights[0].clone()
    wanted[..., column] = 0
    wanted /= wanted.sum(-1, keepdim=True)
    for head in range(HEADS):
        found = torch.tensor(run.trace.only_stack[0, head].to_dense())
        torch.testing.assert_close(found, wanted[head], rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_key_that_it_does_not_add_is_unknown():
    module, x = _module(zero=False), _x()
    with pytest.raises(EditError, match="zero"), edited(module, Cut(layer=0, key="[zero]")):
        _run(module, x)


class Shifted(nn.Module):
    """Its keys and values are those of the token before; the first one's are no token's."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = (nn.functional.pad(y, (0, 0, 1, 0))[:, :-1] for y in (k, v))
        self.seen = (q @ k.mT / 8**0.5).softmax(-1)
        return self.seen @ v


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2])
def test_keys_of_the_token_before_have_its_number(batch):
    torch.manual_seed(0)
    model, x = Shifted().double().eval(), torch.randn(batch, 5, 8).double()
    with capturing(model) as run:
        model(x)
    for row, trace in enumerate(run.traces):
        found = torch.as_tensor(trace[0, 0].to_dense())
        torch.testing.assert_close(found[:5, :4], model.seen[row][:, 1:], rtol=0, atol=1e-12)
        torch.testing.assert_close(found[:5, 5], model.seen[row][:, 0], rtol=0, atol=1e-12)
    with (
        pytest.raises((CaptureError, ValueError), match="6 tokens"),
        capturing(model, tokens=[*"abcde"]),
    ):
        model(x)
