"""Calls that nobody edits or looks at are counted, not read, where a model keeps nothing."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from gattn import Cut, capturing, edited
from gattn.models.doors.functions.softmaxes import meeting
from gattn.models.doors.proof.plans import plan_of
from gattn.models.hugging_face.caches import odd_numbers
from gattn.models.read.track.own_caches.keys import OwnKeys
from gattn.models.run.opening import opened
from gattn.models.watch import taking_part
from gattn.models.watch.contexts import Context

WIDTH, HEADS, LENGTH, LAYERS = 8, 2, 6, 4
SKIPPED: set[int] = set()


class Layer(nn.Module):
    """Attention by torch's kernel, and written out beside it: `weights`."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        parts = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        self.weights = (parts[0] @ parts[1].mT * parts[0].shape[-1] ** -0.5).softmax(-1)
        return x + self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


class Plain(Layer):
    """The same without weights, which it would keep."""

    def forward(self, x):
        parts = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return x + self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Layers, of which the set `SKIPPED` names those that do not run."""

    def __init__(self, kind=Plain, answer=lambda x, model: x):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(kind() for _ in range(LAYERS))
        self.answer = answer
        self.eval()

    def forward(self, x, more=None):
        for number, layer in enumerate(self.layers):
            if number not in SKIPPED:
                x = layer(x)
        if isinstance(more, torch.Tensor):
            more[: len(x)] += x.mean()
        return self.answer(x, self)


def given(count=2):
    return torch.randn(count, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def nothing_is_skipped():
    yield
    SKIPPED.clear()


@pytest.fixture
def read(monkeypatch):
    """The names of the modules whose calls were read."""
    names = []

    def noted(call, *rest):
        names.append(call.name)
        return plainly(call, *rest)

    plainly, *others = taking_part.take_part.__defaults__
    monkeypatch.setattr(taking_part.take_part, "__defaults__", (noted, *others))
    return names


@torch.no_grad()
def test_only_wanted_layers_are_read(read):
    model, x = Model(), given()
    with opened(model, Context()):
        model(x)
    assert read == []
    with capturing(model, layers=2) as run:
        model(x)
    assert read == ["layers.2"]
    expected = Model(Layer)
    expected.load_state_dict(model.state_dict())
    expected(x)
    for n, trace in enumerate(run.traces):
        for head in range(HEADS):
            found = torch.from_numpy(trace[2, head].to_dense())
            torch.testing.assert_close(found, expected.layers[2].weights[n, head])


@torch.no_grad()
def test_edits_reach_their_layer_alone(read):
    model, x = Model(), given()
    with edited(model, Cut(layer=3, head=1, query=4, key=0)):
        found = model(x)
    assert read == ["layers.3"]
    before = []
    handle = model.layers[3].register_forward_pre_hook(lambda _, given: before.append(given[0]))
    model(x)
    handle.remove()
    layer = model.layers[3]
    parts = layer.qkv(before[0]).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    allowed = torch.ones(HEADS, LENGTH, LENGTH, dtype=torch.bool)
    allowed[1, 4, 0] = False
    mixed = F.scaled_dot_product_attention(*parts, attn_mask=allowed)
    expected = before[0] + layer.out(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(found, expected)


class Written(Layer):
    """Plain attention by a softmax, of which some scores may be masked."""

    mask = 0.0

    def forward(self, x):
        parts = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = parts[0] @ parts[1].mT * parts[0].shape[-1] ** -0.5 + self.mask
        return x + self.out((scores.softmax(-1) @ parts[2]).transpose(1, 2).flatten(2))


@torch.no_grad()
@pytest.mark.parametrize("is_masked", [False, True])
def test_softmaxes_that_nobody_wants_are_counted_unless_they_are_masked(monkeypatch, is_masked):
    model, x, handed = Model(Written), given(), []
    if is_masked:
        monkeypatch.setattr(Written, "mask", torch.full((LENGTH, LENGTH), -torch.inf).triu(1))
    cut = Cut(layer=2, head=1, query=4, key=0)
    with edited(model, cut):
        model(x)
    hand = meeting.handed
    monkeypatch.setattr(meeting, "handed", lambda call: handed.append(call.module) or hand(call))
    with edited(model, cut):
        found = model(x)
    assert handed == (list(model.layers) if is_masked else [model.layers[2]])

    def kept(module, args):
        scores = torch.zeros(HEADS, LENGTH, LENGTH)
        scores[1, 4, 0] = -torch.inf
        module.mask = module.mask + scores

    model.layers[2].register_forward_pre_hook(kept)
    torch.testing.assert_close(found, model(x))


@torch.no_grad()
@pytest.mark.parametrize("skipped", range(LAYERS))
def test_layers_that_a_later_call_skips_are_not_counted(skipped):
    """Layers are numbered by the calls that come, though most of them are not read."""
    model, x = Model(), given(1)
    with opened(model, Context()):
        model(x)
    SKIPPED.add(skipped)
    with capturing(model, layers=LAYERS - 2) as run:
        model(x)
    last = max(set(range(LAYERS)) - SKIPPED)
    inputs = x
    for number in range(last):
        inputs = inputs if number in SKIPPED else model.layers[number](inputs)
    expected = Layer()
    expected.load_state_dict(model.layers[last].state_dict())
    expected(inputs)
    found = torch.from_numpy(run.trace[LAYERS - 2, 0].to_dense())
    torch.testing.assert_close(found, expected.weights[0, 0])


class Keeping(Plain):
    def forward(self, x):
        self.held = self.qkv(x)
        return super().forward(x)


class Buffering(Plain):
    """Keys are written to a buffer that was there before."""

    def __init__(self):
        super().__init__()
        self.register_buffer("held", torch.zeros(64, LENGTH, 3 * WIDTH))

    def forward(self, x):
        self.held[: len(x)] = self.qkv(x)
        return super().forward(x)


class Cache:
    """An object that a model may fill."""


def with_keys(x, model):
    return x, model.layers[0].qkv(x)


KEPT = {
    "an attribute": (Model(Keeping), ()),
    "a buffer": (Model(Buffering), ()),
    "a second answer": (Model(answer=with_keys), ()),
    "an empty list": (Model(), ([],)),
    "an object": (Model(), (Cache(),)),
    "a tensor that is written to": (Model(), (torch.zeros(4, 1, 1),)),
}
NOT_KEPT = {
    "one tensor": (Model(), ()),
    "one tensor and nothing": (Model(answer=lambda x, model: (x, None)), ()),
    "one tensor in a dictionary": (Model(answer=lambda x, model: {"logits": x}), ()),
    "plain options": (Model(), (True,)),
}


@torch.no_grad()
@pytest.mark.parametrize("name", [*KEPT, *NOT_KEPT])
def test_a_model_that_may_keep_keys_is_told_from_one_that_does_not(name):
    model, more = (KEPT | NOT_KEPT)[name]
    assert plan_of(model, model, (given(), *more), {}).keeps_nothing is (name in NOT_KEPT)


@torch.no_grad()
def test_inference_mode_and_dtypes_change_nothing(read):
    model, x = Model().double(), given().double()
    with torch.inference_mode(), opened(model, Context()):
        model(x)
    assert read == []


@torch.no_grad()
def test_paths_are_found_anew_once_a_model_has_other_modules():
    model, x = Model(), given(1)
    with capturing(model) as run:
        model(x)
    assert list(run.trace.stacks) == ["layers"]
    model.layers = nn.ModuleList([nn.Sequential(layer) for layer in model.layers])
    with capturing(model) as run:
        model(x)
    assert list(run.trace.stacks) == ["layers.0"]


def test_models_are_not_kept_alive():
    model = Model()
    with torch.no_grad(), capturing(model, layers=1):
        model(given())
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_own_tokens_are_told_by_their_slots():
    """Equal slots are the same, whichever tensor holds them."""
    few = torch.zeros(1, 1, LENGTH, 2)
    rest = few, type("Mask", (), {"values": None})(), lambda reads, found, offset: found
    assert OwnKeys([torch.arange(LENGTH)], *rest).are_all
    assert not OwnKeys([torch.arange(LENGTH).flip(0)], *rest).are_all
    assert not OwnKeys([torch.arange(LENGTH - 1)], *rest).are_all


def test_numbers_of_hashes_do_not_fill_memory():
    first = odd_numbers((7, 3)).clone()
    for size in range(1000):
        odd_numbers((size,))
    assert odd_numbers.cache_info().currsize <= 256
    assert torch.equal(odd_numbers((7, 3)), first)
    assert bool((first % 2 == 1).all())
