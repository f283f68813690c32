"""Parts that torch.jit scripted or traced are left as they are, or refused if they may attend.

The oracle is the same model with these parts as they were written.
"""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import gattn
from gattn.errors import CaptureError, ModelError

_WIDTH, _TOKENS = 8, 5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


class Fused(Attention):
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return scaled_dot_product_attention(q, k, v)


class WrittenOut(Attention):
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        powers = torch.exp(q @ k.transpose(-1, -2))
        return powers / powers.sum(-1, keepdim=True) @ v


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 2 * _WIDTH)
        self.down = nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(_WIDTH, _WIDTH))

    def forward(self, x):
        return x / (1 + torch.exp(-torch.matmul(x, self.weight.t())))


class OfTokens(Gate):
    def forward(self, x):
        scores = torch.exp(torch.matmul(torch.matmul(x, self.weight.t()), x.transpose(1, 2)))
        return torch.baddbmm(self.weight[:5], scores / 9, x)


class Moving(nn.Module):
    flips: bool

    def __init__(self):
        super().__init__()
        self.flips = False

    def forward(self, x):
        return x.flip(1) if self.flips else x


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x):
        self.count += 1
        return x * self.count


class Growing(nn.Module):
    """Counts its runs in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x):
        self.runs.add_(1)
        return x * self.runs


def flipped(x):
    if bool(x.mean() > 0):
        x = x.flip(1)
    return x


class Reading(nn.Module):
    def forward(self, x):
        return flipped(x)


class Model(nn.Module):
    def __init__(self, part, kind=Attention):
        super().__init__()
        self.before, self.attention = part, kind()
        self.after = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x):
        x = self.before(x)
        return self.after(x + self.attention(x))


def example():
    torch.manual_seed(1)
    return torch.randn(2, _TOKENS, _WIDTH)


def traced(module):
    return torch.jit.trace(module, example())


def built(part):
    torch.manual_seed(0)
    return Model(part()).eval()


def with_script(model, how=torch.jit.script):
    twin = copy.deepcopy(model)
    twin.before = how(twin.before)
    return twin


def shown(model, x, names="abcde"):
    with torch.no_grad(), gattn.capturing(model, tokens=list(names)) as run:
        output = model(x)
    (graph, *_), (other, *_) = (list(trace.heads()) for trace in run.traces)
    assert list(graph.labels()) == list(names)
    return output, graph.to_dense(), other.to_dense()


@pytest.mark.parametrize("how", [torch.jit.script, traced, torch.compiler.disable])
@pytest.mark.parametrize(
    "part", [Mlp, lambda: nn.Linear(_WIDTH, _WIDTH), Gate], ids=["mlp", "linear", "gate"]
)
def test_a_scripted_part_that_holds_no_attention_is_left_as_it_is(part, how):
    model, x = built(part), example()
    scripted = with_script(model, how)
    for found, expected in zip(shown(scripted, x), shown(model, x), strict=True):
        torch.testing.assert_close(found, expected)
    edit = gattn.Cut(layer=0, query=2, key=[0, 1])
    outputs = []
    for one in (model, scripted):
        with torch.no_grad(), gattn.edited(one, edit):
            outputs.append(one(x))
    torch.testing.assert_close(*outputs)
    tables = [
        gattn.effect(lambda one=one: one(x[:1])[0, 2:3], [edit], one) for one in (model, scripted)
    ]
    effects = [float(table["effect"].iloc[0]) for table in tables]
    assert effects == pytest.approx([effects[0]] * 2, rel=1e-5)
    assert effects[0] != 0


def test_what_a_scripted_part_keeps_in_buffers_is_put_back_after_a_proof():
    scripted = with_script(built(Growing))
    for count in (1, 2):
        shown(scripted, example())
        assert scripted.before.runs == count


def test_a_scripted_part_that_moves_tokens_is_followed():
    model, x = built(Moving), example()
    scripted = with_script(model)
    for flips in (False, True, False):
        model.before.flips = scripted.before.flips = flips
        output, matrix, _ = shown(scripted, x)
        with torch.no_grad():
            q, k, _ = model.attention.qkv(x).chunk(3, -1)
            expected = torch.softmax(q @ k.mT, -1)[0]  # On the tokens as the model is given them.
        with torch.no_grad():
            torch.testing.assert_close(output, model(x))
        torch.testing.assert_close(torch.as_tensor(matrix), expected)


@pytest.mark.parametrize("how", [torch.jit.script, traced])
@pytest.mark.parametrize(
    "part", [Attention, Fused, WrittenOut, OfTokens, lambda: nn.MultiheadAttention(8, 2)]
)
def test_a_scripted_part_that_may_attend_is_refused_by_its_name(part, how):
    model = built(Mlp)
    if isinstance(part(), nn.MultiheadAttention):
        model.before.more = torch.jit.script(part())
        name = r"before\.more"
    else:
        model.before, name = how(part()), "before"
    for ask in (gattn.capturing(model), gattn.edited(model, gattn.Cut(layer=0))):
        with pytest.raises(ModelError, match=rf"{name} in the model is a ScriptModule .*attention"):
            ask.__enter__()


def test_a_scripted_part_that_counts_its_runs_is_refused():
    model = with_script(built(Counting))
    with pytest.raises(ModelError, match=r"before .* changes its own attributes"):
        gattn.capturing(model).__enter__()


@pytest.mark.parametrize("is_function", [False, True])
def test_scripted_code_that_decides_by_values_before_attention_is_refused(is_function):
    model = built(Reading) if is_function else with_script(built(Reading))
    if is_function:
        script = torch.jit.script(flipped)
        model.before.forward = lambda x: script(x)
    for x in (example() - 9, example() + 9):
        with pytest.raises(CaptureError, match=r"torch\.jit scripted.* reads numbers"):
            shown(model, x)


def test_scripted_code_may_decide_by_values_after_attention():
    model, x = built(Mlp), example()
    expected = shown(model, x)[1:]
    model.after = nn.Sequential(model.after, torch.jit.script(Reading()))
    for found, wanted in zip(shown(model, x)[1:], expected, strict=True):
        torch.testing.assert_close(found, wanted)


class Comparing(nn.Module):
    def forward(self, x):
        return x if torch.equal(x[:, 0], x[:, 1]) else x.flip(1)


class Approximating(nn.Module):
    def forward(self, x):
        return x if torch.allclose(x[:, 0], x[:, 1]) else x.flip(1)


class CountingPlaces(nn.Module):
    def forward(self, x):
        return x if (x[:, 0] != x[:, 1]).nonzero().numel() == 0 else x.flip(1)


class CountingPicked(nn.Module):
    def forward(self, x):
        return x if x[:, 0][x[:, 0] != x[:, 1]].numel() == 0 else x.flip(1)


def test_a_scripted_part_that_compares_tensors_is_refused():
    model = built(Mlp)
    model.before = torch.jit.script(Comparing())
    with pytest.raises(ModelError, match=r"before .* compares tensors by torch\.equal"):
        gattn.capturing(model).__enter__()


@pytest.mark.parametrize("kind", [Approximating, CountingPlaces, CountingPicked])
def test_scripted_code_that_compares_or_counts_before_attention_is_refused(kind):
    """By other numbers it would not turn its tokens round, which is not proved."""
    model, x = built(Mlp), example()
    model.before = torch.jit.script(kind())
    with pytest.raises(CaptureError, match=r"torch\.jit scripted.* reads numbers"):
        shown(model, x)


@torch.jit.script
def _turned(x):
    return x if torch.equal(x[:, 0], x[:, 1]) else x.flip(1)


class Calling(nn.Module):
    def forward(self, x):
        return _turned(x)


def test_a_scripted_function_that_compares_what_it_is_given_is_refused():
    model, x = built(Mlp), example()
    model.before = Calling()
    for _ in range(3):  # torch.jit compares constants as it learns what runs.
        model(x)
    with pytest.raises(CaptureError, match=r"torch\.jit scripted.* reads numbers"):
        shown(model, x)


class Sigmoids(Attention):
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.sigmoid(q @ k.transpose(-1, -2)) @ v


@pytest.mark.parametrize("part", [Mlp, Sigmoids])
def test_a_frozen_part_is_warned_of_only_if_it_may_attend(part):
    """Its weights are constants of its code."""
    model, x = built(part), example()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = shown(model, x)
    model.before = torch.jit.freeze(torch.jit.script(model.before))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for found, wanted in zip(shown(model, x), expected, strict=True):
            torch.testing.assert_close(found, wanted)
    attends = [str(one.message).startswith("before (ScriptModule)") for one in told]
    assert attends == [True] * (part is Sigmoids)
