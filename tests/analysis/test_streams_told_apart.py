"""Layers that look like others: their sums are those of the layer's code, or are refused."""

import pytest
import torch
from made_layers import HEADS, HIDDEN, WIDTH, Kind, Layer, Mlp, Model, Norm, Written, held
from torch import nn
from torch.nn import functional

import gattn
from gattn.analysis import alti
from gattn.errors import CaptureError
from gattn.models.decompose.decomposing import decompose
from gattn.models.stream.writers.parts import Growing, Stream, Writer


class Reading(nn.Module):
    """An MLP that is given the stream, and beside it what attention adds."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(2 * WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x, y):
        return self.down(functional.gelu(self.up(torch.cat([x, y], -1))))


def made(forward, kind=None, tokens=5):
    """Make a model of layers of which each has spare parts, and another forward."""
    torch.manual_seed(0)
    model = Model(kind or Kind())
    for layer in model.layers:
        layer.other, layer.before, layer.reading = Norm("layer"), Mlp(False), Reading()
        layer.drop, layer.gate = nn.Dropout(0.1), nn.Linear(WIDTH, 1)
        layer.vector = nn.Parameter(torch.rand(WIDTH))
        layer.first = nn.Parameter(torch.randn(1, tokens, WIDTH))
        layer.__class__ = type("Other", (Layer,), {"forward": forward})
    model = model.double().eval().requires_grad_(False)
    x = torch.randn(1, tokens, WIDTH).double()
    return model, x, lambda: model(x)


def attended(layer, x):
    """What each head adds, (heads, tokens, width), with the bias added to the first."""
    q, k, v = layer.split(x)[:, 0]
    heads = (q @ k.mT / (WIDTH / HEADS) ** 0.5).softmax(-1) @ v
    added = heads @ layer.out.weight.unflatten(1, (HEADS, -1)).permute(1, 2, 0)
    assert torch.allclose(added.sum(0) + layer.out.bias, layer.attend(x)[0])
    return added


def adds_twice(self, x):
    added = self.attend(x)
    return x + 2 * added + self.feed(x + added)


def drops_the_stream(self, x):
    added = self.attend(x)
    return added + self.feed(x + added)


def adds_the_stream_again(self, x):
    total = x + self.attend(x)
    return total + self.feed(total) + 0.1 * x


def adds_attention_again(self, x):
    added = self.attend(x)
    return x + added + self.feed(x + added) + 0.1 * added


def adds_the_sum_to_its_norm(self, x):
    total = x + self.attend(x)
    normed = self.norm("p", total)
    return normed + total * self.vector + self.fed(normed)


def adds_two_norms(self, x):
    total = x + self.attend(x)
    return self.norm("2", total) + self.other(total)


def looks_at_half(self, x):
    added = self.attend(x)
    self.other(x + 0.5 * added)
    return x + added + self.feed(x + added)


def adds_an_mlp_to_a_gated_stream(self, x):
    x = x * self.before(x).sigmoid() + self.before(x)
    return x + self.attend(x)


def adds_two_norms_first(self, x):
    x = self.norm("2", x) + self.other(x)
    return x + self.attend(x)


def forgets_its_stream_first(self, x):
    x = self.before(x)
    x = x + self.attend(x)
    return x + self.feed(x)


def reads_an_mlp_but_adds_to_the_stream(self, x):
    y = x + self.before(self.other(x))
    return x + self.attend(y) + x * self.vector


def adds_the_sum_after_two_norms(self, x):
    total = x + self.attend(x)
    x = self.norm("p", total)
    x = self.other(x + self.before(x))
    return x + self.fed(x) + total * self.vector


REFUSED = [
    (adds_twice, None),
    (drops_the_stream, None),
    (adds_the_stream_again, None),
    (adds_attention_again, None),
    (adds_the_sum_to_its_norm, Kind("post")),
    (adds_two_norms, None),
    (adds_the_sum_after_two_norms, Kind("post")),
    (looks_at_half, None),
    (adds_an_mlp_to_a_gated_stream, None),
    (adds_two_norms_first, None),
    (forgets_its_stream_first, None),
    (reads_an_mlp_but_adds_to_the_stream, None),
]


@pytest.mark.parametrize("tokens", [5, 1])
@pytest.mark.parametrize(("forward", "kind"), REFUSED, ids=lambda x: getattr(x, "__name__", ""))
def test_other_streams_are_refused(forward, kind, tokens):
    model, _, run = made(forward, kind, tokens)
    with pytest.raises(CaptureError, match=r"What becomes of the vectors|was not found"):
        alti(run, model, progress=False)


def part_of(forward, kind=None):
    """Take the first layer apart, and hold its vectors to those written out."""
    model, x, run = made(forward, kind)
    part = decompose(run, model, read=lambda part: part, progress=False).results[0]
    layer, stream = model.layers[0], x[0]
    torch.testing.assert_close(part.residual, stream)
    torch.testing.assert_close(part.end, layer(x)[0])
    return model, layer, x, part


def ends_in_its_mlp(self, x):
    return self.feed(x + self.attend(x))


def test_a_layer_that_ends_in_its_mlp_passes_no_part_on():
    model, layer, x, part = part_of(ends_in_its_mlp)
    torch.testing.assert_close(part.by_head(), attended(layer, x))
    torch.testing.assert_close(part.after, x[0] + layer.attend(x)[0])
    with pytest.raises(CaptureError, match="ends in a module of the residual stream"):
        gattn.why(lambda: model(x), model, layer=1, head=0)


def norms_three_times(self, x):
    x = self.norm("p", x + self.attend(x))
    x = self.other(0.7 * x + self.before(x))
    return self.norm("l", x + self.fed(x))


def norms_twice_at_once(self, x):
    x = self.norm("p", x + self.attend(x))
    return self.norm("l", self.other(x))


def norms_what_is_added_to_itself(self, x):
    x = self.norm("p", x + self.attend(x))
    return self.other(x + x) + self.fed(x)


def held_by_norms(forward, layer, total, parts):
    """Take parts of the sum (parts, tokens, width) through a layer's norms, by hand."""
    norms, other = layer.norms, layer.other
    parts, x = held(norms["p"], total, parts), norms["p"](total)
    if forward is norms_what_is_added_to_itself:
        return held(other, 2 * x, 2 * parts)
    given = x if forward is norms_twice_at_once else 0.7 * x + layer.before(x)
    parts = held(other, given, parts if forward is norms_twice_at_once else 0.7 * parts)
    x = other(given)
    return held(norms["l"], x if forward is norms_twice_at_once else x + layer.fed(x), parts)


NORMING = [norms_three_times, norms_twice_at_once, norms_what_is_added_to_itself]


@pytest.mark.parametrize("forward", NORMING)
def test_a_stream_goes_through_any_number_of_norms(forward):
    """Decoders as BART's have one after cross-attention."""
    is_last = forward is not norms_what_is_added_to_itself
    model, layer, x, part = part_of(forward, Kind("post", has_last=is_last))
    total, norm = x[0] + layer.attend(x)[0], layer.norms["p"]
    assert part.is_post_norm
    torch.testing.assert_close(part.normed().by_head(), held(norm, total, attended(layer, x)))
    torch.testing.assert_close(part.normed().after, norm(total))
    found = gattn.why(lambda: model(x), model, layer=1, head=1)
    names = [str(one) for one in found.writers]
    parts = held_by_norms(forward, layer, total, attended(layer, x))
    weight = model.layers[1].qkv.weight[WIDTH + WIDTH // HEADS : 2 * WIDTH]
    for head in range(HEADS):
        mine = torch.as_tensor(found.keys[names.index(f"0.{head}")])
        torch.testing.assert_close(mine, parts[head] @ weight.T, rtol=0, atol=1e-5)


def norms_then_adds_what_was_before(self, x):
    x = self.norm("p", x + self.attend(x))
    return self.other(x + self.before(x)) + self.fed(x) + x * self.vector


def norms_in_two_ways(self, x):
    x = self.norm("p", x + self.attend(x))
    return self.other(x + self.before(x)) + self.norm("l", 2 * x + self.fed(x))


def norms_what_is_bent(self, x):
    x = self.norm("p", x + self.attend(x))
    return self.other(functional.gelu(x)) + self.fed(x)


ELSEWHERE = [norms_then_adds_what_was_before, norms_in_two_ways, norms_what_is_bent]


@pytest.mark.parametrize("forward", ELSEWHERE)
def test_a_stream_that_goes_elsewhere_after_a_norm_is_refused(forward):
    model, _, run = made(forward, Kind("post", has_last=True))
    with pytest.raises(CaptureError, match="What becomes of the vectors"):
        gattn.why(run, model, layer=1, head=1)


def mlp_reads_attention(self, x):
    added = self.attend(x)
    return x + added + self.reading(self.norm("2", x), added)


def test_an_mlp_that_reads_attention_beside_the_stream_is_not_parallel():
    _, layer, x, part = part_of(mlp_reads_attention)
    assert not part.is_parallel
    torch.testing.assert_close(part.by_head(), attended(layer, x))
    torch.testing.assert_close(part.after, x[0] + layer.attend(x)[0])


def mlp_runs_first(self, x):
    fed = self.feed(x)
    return x + self.attend(x) + fed


def test_a_parallel_mlp_may_run_first():
    _, layer, x, part = part_of(mlp_runs_first)
    assert part.is_parallel
    torch.testing.assert_close(part.by_head(), attended(layer, x))
    torch.testing.assert_close(part.end - part.after, layer.feed(x)[0])


def doubles(self, x):
    total = self.drop(x + self.attend(x))
    self.norm("2", total)
    return total + total


def test_a_stream_that_is_added_to_itself_is_doubled():
    """What passes through dropout equals the stream, and is no MLP's."""
    _, layer, x, part = part_of(doubles, Kind(mlp=None))
    (last,) = part.later
    torch.testing.assert_close(last.norm(part.by_head()[0]), 2 * attended(layer, x)[0])
    torch.testing.assert_close(last.given, x[0] + layer.attend(x)[0])


def gates_tokens(self, x):
    x = x + self.attend(x) * self.gate(x).sigmoid()
    return x + self.feed(x)


def test_a_gate_of_whole_tokens_is_a_factor():
    _, layer, x, part = part_of(gates_tokens)
    gate = layer.gate(x)[0].sigmoid()
    torch.testing.assert_close(part.by_head(), gate * attended(layer, x), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(part.after, x[0] + gate * layer.attend(x)[0])


def adds_in_place(self, x):
    x = x.clone()
    x += self.attend(x)
    x += self.feed(x)
    return x


def shares_its_norm(self, x):
    x = x + self.attend(x)
    return x + self.fed(self.norm("1", x))


@pytest.mark.parametrize("forward", [adds_in_place, shares_its_norm, Layer.forward])
@pytest.mark.parametrize("mlp", ["module", "product", "inline gated", "raw gated"])
def test_the_same_sums_in_other_words(forward, mlp):
    model, layer, x, part = part_of(forward, Kind(mlp=mlp))
    assert not part.is_parallel
    assert not part.is_post_norm
    torch.testing.assert_close(part.by_head(), attended(layer, x))
    torch.testing.assert_close(part.after, x[0] + layer.attend(x)[0])
    found = alti(lambda: model(x), model, progress=False)
    expected = Written(layer, x[0]).alti()
    torch.testing.assert_close(torch.from_numpy(found[0].to_numpy()), expected)


def begins_with_an_mlp(self, x):
    x = x + self.feed(x)
    return x + self.attend(x)


def is_a_macaron(self, x):
    x = x + 0.5 * self.before(self.other(x))
    x = x + self.attend(x)
    return self.norm("l", x + 0.5 * self.feed(x))


def adds_a_first_stream(self, x):
    x = x + 0.3 * self.first
    x = x + self.attend(x)
    return x + self.feed(x)


def norms_its_stream_first(self, x):
    x = self.other(x)
    x = x + self.attend(x)
    return x + self.feed(x)


def norms_an_mlp_with_its_stream(self, x):
    x = self.other(0.7 * x + self.before(x))
    x = 3 * x + self.first
    x = x + self.attend(x)
    return x + self.feed(x)


def multiplies_its_stream(self, x):
    x = 2.5 * x + self.attend(x)
    return 2.5 * x + self.feed(x)


def is_a_deep_norm(self, x):
    x = self.norm("p", 2.5 * x + self.attend(x))
    return self.norm("l", 2.5 * x + self.fed(x))


def entered(forward, layer, x, parts):
    """Take the stream, and parts of it, to where attention is added."""
    if forward is begins_with_an_mlp:
        return x + layer.feed(x[None])[0], parts
    if forward is is_a_macaron:
        return x + 0.5 * layer.before(layer.other(x)), parts
    if forward is adds_a_first_stream:
        return x + 0.3 * layer.first[0], parts
    if forward is norms_its_stream_first:
        return layer.other(x), held(layer.other, x, parts)
    if forward is norms_an_mlp_with_its_stream:
        given = 0.7 * x + layer.before(x)
        return 3 * layer.other(given) + layer.first[0], 3 * held(layer.other, given, 0.7 * parts)
    return 2.5 * x, 2.5 * parts


def left(forward, layer, total, parts):
    """Take parts of the sum to the layer's end."""
    if forward is is_a_macaron:
        return held(layer.norms["l"], total + 0.5 * layer.feed(total[None])[0], parts)
    if forward is multiplies_its_stream:
        return 2.5 * parts
    if forward is is_a_deep_norm:
        norms, parts = layer.norms, held(layer.norms["p"], total, parts)
        x = norms["p"](total)
        return held(norms["l"], 2.5 * x + layer.fed(x), 2.5 * parts)
    return parts


ENTERED = [
    (begins_with_an_mlp, Kind()),
    (is_a_macaron, Kind(has_last=True)),
    (is_a_macaron, Kind(mlp="inline gated", has_last=True)),
    (adds_a_first_stream, Kind(norm="function", mlp="raw gated")),
    (norms_its_stream_first, Kind()),
    (norms_its_stream_first, Kind("none")),
    (norms_an_mlp_with_its_stream, Kind()),
    (multiplies_its_stream, Kind()),
    (multiplies_its_stream, Kind(mlp="raw gated")),
    (is_a_deep_norm, Kind("post", has_last=True)),
]


ADDING = [begins_with_an_mlp, is_a_macaron, adds_a_first_stream, norms_an_mlp_with_its_stream]


@pytest.mark.parametrize("tokens", [5, 1])
@pytest.mark.parametrize(("forward", "kind"), ENTERED, ids=lambda x: getattr(x, "__name__", ""))
def test_attention_may_be_added_to_another_stream_than_the_layers(forward, kind, tokens):
    """What came before the layer comes to its end, and what the layer adds is its MLP's."""
    model, x, run = made(forward, kind, tokens)
    parts = decompose(run, model, read=lambda part: part, progress=False).results
    growing = Growing(Stream([Writer("embedding")], x.clone()))
    earlier = x
    for layer, part in zip(model.layers, parts, strict=True):
        stream, earlier = entered(forward, layer, x[0], earlier)
        torch.testing.assert_close(part.start, x[0])
        assert part.adds_first == (forward in ADDING)
        torch.testing.assert_close(part.residual, stream)
        is_read = forward not in (multiplies_its_stream, is_a_deep_norm)
        added = by_hand(layer, stream if is_read else x[0])
        total = stream + added.sum(0) + layer.out.bias
        torch.testing.assert_close(part.by_head(), added)
        torch.testing.assert_close(part.after, total)
        earlier = left(forward, layer, total, torch.cat([earlier, added]))
        growing.add(part)
        found = growing.stream()
        mine = [n for n, one in enumerate(found.writers) if one.kind in ("embedding", "head")]
        torch.testing.assert_close(found.parts[mine], earlier, rtol=1e-6, atol=1e-7)
        x = layer(x)
        torch.testing.assert_close(found.total(), x[0])


def by_hand(layer, stream):
    """What each head adds where attention reads a stream: (heads, tokens, width)."""
    q, k, v = layer.split(stream[None])[:, 0]
    heads = (q @ k.mT / (WIDTH / HEADS) ** 0.5).softmax(-1) @ v
    return heads @ layer.out.weight.unflatten(1, (HEADS, -1)).permute(1, 2, 0)
