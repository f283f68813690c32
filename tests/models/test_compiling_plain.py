"""Compiled models of PyTorch alone are seen and edited as they are written, and stay compiled."""

import numpy as np
import pytest
import torch
from plain_models import KINDS, WIDTH, Block, built
from torch import nn
from torch._dynamo import eval_frame
from torch.nn.attention import flex_attention
from transformers import StaticCache

import gattn
from gattn import Cut, Scale, capture, capturing, edited
from gattn.errors import CaptureError, ModelError

STACKS = {"translator": "whole.encoder.layers.self_attn"}
PARTS = {"encoder": "whole", "translator": "whole.decoder", "gat": "convs.0", "own": "layers.1"}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _anew():
    torch._dynamo.reset()
    before = eval_frame._stance
    yield
    assert eval_frame._stance is before
    torch._dynamo.reset()


class Backend:
    """Runs graphs as they are, and counts how many there are and how often they run."""

    def __init__(self):
        self.graphs = self.runs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1

        def run(*args):
            self.runs += 1
            return graph.forward(*args)

        return run


def compiled(kind, how, backend):
    """Build a model and compile it in one of several ways; give it and a function that runs it."""
    model, run = built(kind)
    if how == "wrapped":
        wrapped = torch.compile(model, backend=backend)
        return model, lambda: run(wrapped)
    if how == "forward":
        model.forward = torch.compile(model.forward, backend=backend)
        return model, run
    if how == "function":
        return model, torch.compile(run, backend=backend)
    if how == "part":
        part = model.get_submodule(PARTS.get(kind, "blocks.0"))
        part.compile(backend=backend)
    else:
        model.compile(backend=backend)
    return model, run


WAYS = ["wrapped", "in place", "forward", "part", "function"]
QUICK = [("gpt", "wrapped"), ("gpt", "forward"), ("vit", "part"), ("encoder", "function")]


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *QUICK,
        *(
            pytest.param(kind, how, marks=pytest.mark.slow)
            for kind in KINDS
            for how in WAYS
            if (kind, how) not in QUICK
        ),
    ],
)
def test_compiled_models_are_captured_and_edited_as_written(kind, how):
    plain, plain_run = built(kind)
    backend = Backend()
    model, run = compiled(kind, how, backend)
    stack = STACKS.get(kind)
    name = next(iter(capture(plain_run, plain).stacks))
    edits = [Cut(0, 1, key=0, stack=stack or name), Scale(0.5, 0, 0, key=1, stack=stack or name)]
    with torch.no_grad():
        expected = plain_run()
        with edited(plain, *edits):
            changed = plain_run()
        for _ in range(2):
            before = run()
        graphs, runs = backend.graphs, backend.runs
        with capturing(model) as recorded:
            seen = run()
        with edited(model, *edits):
            torch.testing.assert_close(run(), changed, rtol=0, atol=1e-12)
        assert (backend.graphs, backend.runs) == (graphs, runs), "compiled code ran"
        assert torch.equal(run(), before)
    assert backend.graphs == graphs, "it was compiled once more"
    is_used = how != "part" or kind not in ("encoder", "translator")
    assert (backend.runs > runs) == is_used  # Torch's fast path runs none of the code.
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-6)
    assert not torch.allclose(changed, expected, atol=1e-6)
    of_plain = capture(plain_run, plain)
    assert list(recorded.trace.stacks) == list(of_plain.stacks)
    for stack, heads in of_plain.stacks.items():
        for place, head in heads.items():
            found = recorded.trace[stack][place]
            np.testing.assert_array_equal(found.attention, head.attention)
            assert torch.equal(found.graph.edge_index, head.graph.edge_index)


def test_effects_and_estimates_of_a_compiled_model_are_those_of_the_model():
    plain, plain_run = built("gpt")
    model, run = compiled("gpt", "wrapped", "aot_eager")
    with torch.no_grad():
        run()
    cuts = [Cut(layer=0, head=1), Cut(layer=1, key=2)]
    found, expected = (
        gattn.effect(of, cuts, model=which, progress=False)
        for of, which in ((run, model), (plain_run, plain))
    )
    np.testing.assert_array_equal(found["effect"], expected["effect"])
    assert (expected["effect"] > 1e-4).all()
    found, expected = (
        gattn.estimate(of, model=which, target=1, other=2, sample=0)
        for of, which in ((run, model), (plain_run, plain))
    )
    np.testing.assert_array_equal(found["estimate"], expected["estimate"])


def attended(q, k, v):
    return (q @ k.mT / 2).softmax(-1) @ v


class Calling(Block):
    """A layer whose forward calls a function that is compiled, or scripted."""

    def __init__(self, function):
        super().__init__("")
        self.function = function

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return x + self.out(self.function(q, k, v).transpose(1, 2).flatten(2))


class Layers(nn.Module):
    def __init__(self, *functions):
        super().__init__()
        self.blocks = nn.ModuleList(Calling(function) for function in functions)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def layers(*functions):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Layers(*functions).double().eval(), torch.randn(1, 6, WIDTH).double() * 2


@pytest.mark.parametrize("function", [attended, flex_attention.flex_attention])
def test_a_compiled_function_in_a_forward_is_seen_and_edited(function):
    backend = Backend()
    plain, x = layers(function, attended)
    model, _ = layers(torch.compile(function, backend=backend), attended)
    cut = Cut(layer=0, head=2, key=3)
    with torch.no_grad():
        before = model(x)
        runs = backend.runs
        assert runs
        with edited(plain, cut):
            expected = plain(x)
        with edited(model, cut):
            torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-12)
        found, wanted = (capture(lambda one=one: one(x), one) for one in (model, plain))
        assert backend.runs == runs
        assert torch.equal(model(x), before)
    assert not torch.allclose(expected, before)
    assert len(found.only_stack) == 8
    for place, head in wanted.only_stack.items():
        np.testing.assert_array_equal(found[place].attention, head.attention)


GRAPHS = {
    "traced": lambda model, x: torch.jit.trace(model, x),
    "scripted": lambda model, x: torch.jit.script(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4), 2).eval()
    ),
    "frozen": lambda model, x: torch.jit.freeze(torch.jit.trace(model, x)),
    "exported": lambda model, x: torch.export.export(model, (x,)).module(),
    "fx": lambda model, x: torch.fx.symbolic_trace(model.blocks[0].mlp),
}


@pytest.mark.parametrize("how", GRAPHS)
def test_graphs_in_place_of_code_are_refused_with_the_reason(how):
    model, _ = built("vit")
    x = torch.randn(1, 3, 8, 12).double()
    made = GRAPHS[how](model, x)
    asks = [
        lambda: capturing(made).__enter__(),
        lambda: edited(made, Cut(layer=0)).__enter__(),
        lambda: capture(lambda: made(x), made),
        lambda: gattn.effect(lambda: made(x), [Cut(layer=0)], made),
    ]
    for ask in asks:
        with pytest.raises(ModelError, match=r"The model was scripted, traced or exported"):
            ask()


def test_attention_in_a_scripted_function_is_refused():
    function = torch.jit.script(written)
    model, x = layers(function, function)
    with pytest.raises(CaptureError, match="cannot be seen"):
        capture(lambda: model(x), model)
    half, x = layers(attended, function)
    with pytest.raises(CaptureError, match="cannot be proved"):
        capture(lambda: half(x), half)


def written(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / 2, -1) @ v


@pytest.mark.slow
def test_compiled_decoding_with_a_static_cache_by_hand(tiny):
    """Steps that a user compiles, on a cache of fixed size, against one run over all tokens."""
    model, backend = tiny("llama"), Backend()
    ids = torch.tensor([[5, 17, 42, 8, 33]])
    step = torch.compile(model, backend=backend)

    def decode():
        cache = StaticCache(config=model.config, max_cache_len=16)
        rows = [model(ids[:, :2], past_key_values=cache).logits]
        for n in range(2, 5):
            where = {"past_key_values": cache, "position_ids": torch.tensor([[n]])}
            rows.append(step(ids[:, n : n + 1], **where).logits)
        return torch.cat(rows, 1)

    with torch.no_grad():
        before = decode()
        runs = backend.runs
        with capturing(model) as run:
            decode()
        whole = capture(ids[0], model)
        with edited(model, Cut(layer=1, head=2, key=0)):
            changed = decode()
            expected = model(ids).logits
        assert backend.runs == runs
        assert torch.equal(decode(), before)
    assert backend.runs == 2 * runs
    torch.testing.assert_close(changed, expected, rtol=0, atol=1e-5)
    for place, head in whole.only_stack.items():
        found = run.trace[place].to_dense()
        np.testing.assert_allclose(found, head.to_dense(), atol=1e-6)
