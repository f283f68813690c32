"""Models that do not route their attention: torch's functions show it, and it is edited."""

import copy
import functools
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from benchmarks import zoo
from gattn import (
    ALiBi,
    Cut,
    Dot,
    ModelScore,
    Restrict,
    Scale,
    Softmax,
    Sparsemax,
    Swap,
    TokenGraph,
    Use,
    capture,
    capture_many,
    capturing,
    edited,
)
from gattn.errors import CaptureError, EditError
from gattn.models.doors.functions.mode import FunctionMode
from gattn.models.doors.proof import kinds
from gattn.models.doors.proof.probing.failing import failing

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]
FEW = [44, 2, 9, 30]
SIZES = {"vocab_size": 60, "initializer_range": 0.3}
DECODERS = {
    "bloom": ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "gptj": ("GPTJ", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 64}),
    "gptneo": (
        "GPTNeo",
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4}
        | {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64},
    ),
    "mpt": ("Mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
    "codegen": (
        "CodeGen",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 64},
    ),
}


@pytest.fixture(scope="module")
def models():
    import transformers

    state = torch.random.get_rng_state()
    built = {}
    for name, (kind, sizes) in DECODERS.items():
        torch.manual_seed(0)
        config = getattr(transformers, f"{kind}Config")(
            **SIZES, **sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0
        )
        config._attn_implementation = "eager"
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        built[name] = model
    torch.random.set_rng_state(state)
    return built


@pytest.fixture(params=DECODERS)
def model(request, models):
    return models[request.param]


def run(model, ids=IDS, **options):
    with torch.no_grad():
        return model(torch.tensor([ids] if isinstance(ids[0], int) else ids), **options)


def test_every_head_is_what_the_model_reports(model):
    trace = capture(IDS, model, scores=True)
    layers = run(model, output_attentions=True).attentions
    assert len(trace["decoder"]) == 8
    for (layer, h), head in trace["decoder"].items():
        np.testing.assert_allclose(head.to_dense(), layers[layer][0, h], atol=1e-6)
        assert (head.key <= head.query).all()
        powers = np.zeros((9, 9))
        powers[head.query, head.key] = np.exp(head.score)
        np.testing.assert_allclose(
            head.to_dense(), powers / powers.sum(1, keepdims=True), atol=1e-6
        )
    assert trace["decoder"].tokens == [str(i) for i in IDS]
    assert str(trace[0, 0].graph.rule) == "Causal()"
    torch.testing.assert_close(trace.logits, run(model).logits[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_output_is_the_same_bit_for_bit(model, dtype):
    model = copy.deepcopy(model).to(dtype)
    plain = run(model).logits
    with capturing(model):
        assert torch.equal(run(model).logits, plain)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_cut(model, side):
    ids = [IDS, [0] * 5 + FEW if side == "left" else FEW + [0] * 5]
    real = torch.tensor([[1] * 9, [0] * 5 + [1] * 4 if side == "left" else [1] * 4 + [0] * 5])
    with capturing(model) as found:
        output = run(model, ids, attention_mask=real, output_attentions=True)
    for n, trace in enumerate(found.traces):
        inside = real[n].bool()
        for (layer, h), head in trace["decoder"].items():
            expected = output.attentions[layer][n, h][inside][:, inside]
            np.testing.assert_allclose(head.to_dense(), expected, atol=1e-6)
    if side == "right":
        many = list(capture_many([IDS, FEW], model, progress=False))
        for one, other in zip(many, found.traces, strict=True):
            np.testing.assert_allclose(one[1, 2].to_dense(), other[1, 2].to_dense(), atol=1e-6)


def test_cuts_and_scales_are_done_between_softmax_and_values(model, monkeypatch):
    """The oracle puts its own softmax, edited in plain algebra, in the place of torch's."""
    softmax, calls = torch.nn.functional.softmax, []

    def changed(x, dim=None, dtype=None, **rest):
        layer = len(calls)
        calls.append(x)
        x = x.clone()
        if layer == 0:
            x[:, 1, 6, [2, 3]] = -torch.inf
            x[:, 2, 8, :] = -torch.inf
        found = softmax(x, dim=dim, dtype=dtype).nan_to_num(0.0)
        if layer == 1:
            found[:, 3, 4:, 1] *= 2.5
            found[:, 0, :, 5] = 0
        return found

    edits = [
        Cut(0, 1, query=6, key=[2, 3]),
        Cut(0, 2, query=8),
        Scale(2.5, 1, 3, query=slice(4, None), key=1),
        Cut(1, 0, key=5, renormalize=False),
    ]
    with edited(model, *edits):
        found = run(model).logits
    monkeypatch.setattr(torch.nn.functional, "softmax", changed)
    monkeypatch.setattr(torch.nn.Softmax, "forward", lambda self, x: changed(x, self.dim))
    expected = run(model).logits
    monkeypatch.undo()
    assert len(calls) == 2
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert not torch.allclose(found, run(model).logits, atol=1e-3)


def test_rows_that_an_edit_leaves_alone_stay_bit_for_bit(model):
    plain = run(model).logits[0]
    with edited(model, Cut(1, 2, query=5, key=3)):
        found = run(model).logits[0]
    changed = (plain != found).any(1).nonzero()[:, 0].tolist()
    assert changed == [5]


def test_whole_heads_graphs_and_swaps(model):
    plain = run(model).logits
    with edited(model, Swap(weight=ModelScore())):
        torch.testing.assert_close(run(model).logits, plain, rtol=0, atol=1e-4)
    with edited(model, Swap(weight=2 * ModelScore())):
        one = run(model).logits
    with edited(model, Swap(normalizer=Softmax(temperature=0.5))):
        torch.testing.assert_close(run(model).logits, one, rtol=0, atol=1e-4)
    assert not torch.allclose(one, plain, atol=1e-3)
    trace = capture(IDS, model)
    with edited(model, *(Use(head, *place) for place, head in trace["decoder"].items())):
        torch.testing.assert_close(run(model).logits, plain, rtol=0, atol=1e-4)
    with edited(model, Swap(weight=ModelScore() + ALiBi(4))), capturing(model) as found:
        run(model)
    scores = capture(IDS, model, scores=True)[0, 1]
    dense = np.full((9, 9), -np.inf)
    slope = 2.0 ** (-8 * 2 / 4)
    dense[scores.query, scores.key] = scores.score - slope * (scores.query - scores.key)
    expected = np.exp(dense) / np.exp(dense).sum(1, keepdims=True)
    np.testing.assert_allclose(found.trace[0, 1].to_dense(), expected, atol=1e-5)


def test_restricting_is_a_window(model):
    with edited(model, Restrict(TokenGraph.window(30, 3))), capturing(model) as found:
        run(model)
    plain = capture(IDS, model)[0, 0].to_dense()
    window = np.tril(np.ones((9, 9))) - np.tril(np.ones((9, 9)), -3)
    expected = plain * window / (plain * window).sum(1, keepdims=True)
    np.testing.assert_allclose(found.trace[0, 0].to_dense(), expected, atol=1e-5)
    assert not found.trace[1, 3].to_dense()[window == 0].any()


def test_what_needs_queries_and_keys_is_refused(model):
    for weight in (Dot(), ModelScore() + Dot(), 2 * (ModelScore() + Dot())):
        with (
            pytest.raises(EditError, match=r"shows only its scores: use\s+ModelScore"),
            edited(model, Swap(weight=weight)),
        ):
            run(model)
    with edited(model, Swap(normalizer=Sparsemax())):
        run(model)


PROJECTIONS = {
    "Bloom": "transformer.h.1.self_attention.dense",
    "GPTJ": "transformer.h.1.attn.out_proj",
    "GPTNeo": "transformer.h.1.attn.attention.out_proj",
    "Mpt": "transformer.blocks.1.attn.out_proj",
    "CodeGen": "transformer.h.1.attn.out_proj",
}


def test_contributions_add_up_to_the_output_of_the_projection(model):
    """The oracle cuts all edges but one: the projection then gives that edge's vector."""
    kind = type(model).__name__.removesuffix("ForCausalLM")
    projection = model.get_submodule(PROJECTIONS[kind])
    trace, plain = (capture(IDS, model, contributions=way) for way in (True, "value"))
    outputs = []
    handle = projection.register_forward_hook(lambda *given: outputs.append(given[2]))
    bias = 0 if projection.bias is None else projection.bias.detach()
    for head, query, key in ((0, 3, 1), (2, 8, 6), (3, 5, 5)):
        others = [h for h in range(4) if h != head]
        keys = trace[1, head].key[trace[1, head].query == query]
        only = [Cut(1, others, renormalize=False)] + [
            Cut(1, head, query=query, key=k, renormalize=False) for k in keys.tolist() if k != key
        ]
        with edited(model, *only):
            run(model)
        length = float((outputs.pop()[0, query] - bias).norm())
        outputs.clear()
        graph = trace[1, head]
        place = int(((graph.query == query) & (graph.key == key)).nonzero()[0][0])
        assert graph.contribution[place] == pytest.approx(length, rel=1e-3)
        assert plain[1, head].value_norm[place] > 0
    handle.remove()


def test_generation_is_one_pass(model):
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "use_cache": True}
    edits = [Cut(0, 1, query=slice(6, None), key=3), Scale(2.0, 1, 2, key=10)]
    with edited(model, *edits), capturing(model) as found:
        ids = model.generate(torch.tensor([IDS]), **options)[0]
    with edited(model, *edits):
        output = run(model, ids[:-1].tolist(), output_attentions=True)
    assert ids[9:].tolist() == output.logits[0, 8:].argmax(-1).tolist()
    assert found.trace.generated == 4
    for (layer, h), head in found.trace["decoder"].items():
        np.testing.assert_allclose(head.to_dense(), output.attentions[layer][0, h], atol=1e-5)


def test_the_proof_is_none_of_the_contexts_around_it(models):
    model = copy.deepcopy(models["bloom"])
    with capturing(model.transformer) as found, edited(model, Cut(0, 1, key=2)):
        run(model)
    assert not found.trace[0, 1].to_dense()[:, 2].any()
    assert found.trace[0, 2].to_dense()[:, 2].any()


# What is refused


def test_what_a_model_says_of_its_attention_is_not_needed(models, monkeypatch):
    """What is shown is what meets the values, whatever the model returns."""
    model = copy.deepcopy(models["bloom"])
    expected = capture(IDS, model)
    kind = type(model.transformer.h[0].self_attention)
    honest = kind.forward

    def lie(module, *given, **named):
        output = honest(module, *given, **named)
        return (*output[:-1], output[-1].flip(-1)) if output[-1] is not None else output

    monkeypatch.setattr(kind, "forward", lie)
    kinds._known.pop(model)
    for place, head in capture(IDS, model)["decoder"].items():
        np.testing.assert_array_equal(head.attention, expected[place].attention)


def test_attention_that_is_returned_but_not_seen_is_refused(models, monkeypatch):
    """Every other layer writes its softmax out by sigmoids, which show nothing."""
    from transformers.models.bloom import modeling_bloom

    functional, calls = torch.nn.functional, []

    def softmax(x, dim, dtype):
        calls.append(1)
        powers = 1 / (-x).sigmoid() - 1
        seen = functional.softmax(x, dim=dim, dtype=dtype)
        return seen if len(calls) % 2 else powers / powers.sum(dim, keepdim=True)

    shown = SimpleNamespace(softmax=softmax, dropout=functional.dropout, gelu=functional.gelu)
    monkeypatch.setattr(modeling_bloom, "F", shown)
    with pytest.raises(CaptureError, match="not among those that were seen"):
        capture(IDS, copy.deepcopy(models["bloom"]))


def test_a_model_in_training_is_refused(models):
    model = copy.deepcopy(models["bloom"]).train()
    with pytest.raises(CaptureError, match=r"call eval\(\)"), edited(model, Cut(0)):
        run(model)


def test_a_model_without_attention_is_refused():
    from transformers import MambaConfig, MambaModel

    model = MambaModel(MambaConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1)).eval()
    with pytest.raises(CaptureError, match="cannot be seen"):
        capture(IDS, model)
    with pytest.raises(EditError), edited(model, Cut(0)):
        run(model)


class FailureError(Exception):
    """Something that has to do with neither the model nor its attention."""


FULL = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory"),
]


@pytest.mark.parametrize("failure", FULL, ids=str)
def test_full_memory_is_no_failure_on_marked_numbers(failure):
    with pytest.raises(type(failure)), failing():
        raise failure
    with failing():
        raise RuntimeError("no such number")


@pytest.mark.parametrize("failure", FULL, ids=str)
def test_a_failure_in_the_proof_is_not_held_against_the_model(models, monkeypatch, failure):
    model = copy.deepcopy(models["bloom"])

    def fail(model):
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(kinds, "small_input", fail)
        with pytest.raises(type(failure)):
            capture(IDS, model)
    assert len(capture(IDS, model)["decoder"]) == 8


def test_without_a_small_input_what_the_user_gives_proves_a_model(model, monkeypatch):
    def fail(model):
        raise FailureError

    expected = capture(IDS, model)
    twin = copy.deepcopy(model)
    monkeypatch.setattr(kinds, "small_input", fail)
    for place, head in capture(IDS, twin)["decoder"].items():
        np.testing.assert_array_equal(head.attention, expected[place].attention)
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "use_cache": True}
    twin = copy.deepcopy(model)
    with capturing(twin) as found:
        twin.generate(torch.tensor([IDS]), **options)
    assert found.trace.generated == 2


def test_a_model_is_proved_once(models, monkeypatch):
    model, proofs = copy.deepcopy(models["bloom"]), []
    prove = kinds._prove
    monkeypatch.setattr(kinds, "_prove", lambda *given: proofs.append(1) or prove(*given))
    for length in (9, 5, 2):
        capture(IDS[:length], model)
    assert proofs == [1]


def test_a_proof_leaves_random_numbers_as_they_were(models, monkeypatch):
    prove = kinds._prove

    def random(*given):
        torch.rand(3)
        return prove(*given)

    monkeypatch.setattr(kinds, "_prove", random)
    state = torch.random.get_rng_state()
    capture(IDS, copy.deepcopy(models["bloom"]))
    assert torch.equal(torch.random.get_rng_state(), state)


# Models of images.


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["layoutlmv3", "glpn"])
def test_images_are_proved_in_any_precision(family, dtype):
    model = zoo.specimen(family).eager().model.to(dtype)
    inputs = {
        name: value[:1].to(dtype) if value.is_floating_point() else value[:1]
        for name, value in zoo.specimen(family).inputs.items()
        if value is not None and name != "attention_mask"
    }
    with torch.no_grad():
        plain = model(**inputs)
        with capturing(model) as found:
            watched = model(**inputs, output_attentions=True)
    assert torch.equal(plain[0], watched[0])
    layers = watched.attentions
    assert len(layers) == max(layer for layer, _ in found.trace["encoder"]) + 1
    for (layer, head), graph in found.trace["encoder"].items():
        expected = layers[layer][0, head].double().numpy()
        atol = 2 * torch.finfo(dtype).eps
        np.testing.assert_allclose(graph.to_dense(), expected, atol=atol)


@pytest.mark.parametrize("size", [32, 48])
def test_the_size_of_images_is_the_configurations(size):
    import transformers

    parts = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    parts |= {"num_attention_heads": 4}
    vision = transformers.BlipVisionConfig(**parts, image_size=size, patch_size=16)
    text = transformers.BlipTextConfig(**parts, vocab_size=60, encoder_hidden_size=32)
    config = transformers.BlipConfig(
        text_config=text.to_dict(), vision_config=vision.to_dict(), image_text_hidden_size=16
    )
    blip = transformers.BlipModel(config).eval()
    pixels = torch.randn(1, 3, size, size)
    with torch.no_grad(), capturing(blip) as found:
        blip(input_ids=torch.tensor([IDS]), pixel_values=pixels)
        expected = blip.vision_model(pixels, output_attentions=True).attentions
    for (layer, head), graph in found.traces[0]["vision"].items():
        np.testing.assert_allclose(graph.to_dense(), expected[layer][0, head], atol=1e-5)
    config = transformers.LayoutLMv3Config(
        **SIZES, **parts, input_size=size, coordinate_size=6, shape_size=4, pad_token_id=0
    )
    model = transformers.LayoutLMv3Model(config).eval()
    inputs = {"input_ids": torch.tensor([IDS]), "bbox": torch.ones(1, 9, 4, dtype=torch.long)}
    with torch.no_grad(), capturing(model) as found:
        said = model(**inputs, pixel_values=pixels, output_attentions=True).attentions
    for (layer, head), graph in found.trace["encoder"].items():
        np.testing.assert_allclose(graph.to_dense(), said[layer][0, head], atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["falcon", "data2vec-vision"])
def test_torchs_kernel_shows_what_eager_code_computes(family):
    specimen = zoo.specimen(family)
    with capturing(specimen.model) as found:
        specimen.run()
    attentions = specimen.eager().run(output_attentions=True).attentions
    for n, trace in enumerate(found.traces):
        for (layer, head), graph in trace.only_stack.items():
            dense = graph.to_dense()
            own = attentions[layer][n, head][: len(dense), : len(dense)]
            np.testing.assert_allclose(dense, own, atol=1e-5)


@pytest.mark.parametrize("is_partial", [False, True])
def test_hooks_of_the_users_run_once_a_call(tiny, is_partial):
    model, count = tiny("bloom", "eager"), []
    hook = (
        functools.partial(lambda *_: count.append(1)) if is_partial else lambda *_: count.append(1)
    )
    layer = model.transformer.h[1]
    layer.register_forward_pre_hook(hook)
    layer.register_forward_hook(hook)
    capture(IDS, model)
    assert len(count) == 2
    capture(IDS, model)
    assert len(count) == 4


def test_hooks_of_torch_itself_run_in_the_proof(tiny):
    """An old weight norm is a hook that puts the weight in place."""
    model = tiny("bloom", "eager")
    expected = capture(IDS, model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.nn.utils.weight_norm(model.transformer.h[1].self_attention.dense)
    kinds._known.pop(model)
    for place, head in capture(IDS, model).only_stack.items():
        np.testing.assert_allclose(head.attention, expected[place].attention, atol=1e-5)


class Passing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Passing, lambda: torch.device("meta")], ids=["mode", "device"])
def test_what_was_interrupted_in_a_thread_leaves_the_modes_of_others(tiny, kind):
    """The mode that watched softmaxes is taken out, whatever was entered since."""
    model = tiny("bloom", "eager")
    expected = capture(IDS, model)

    def interrupt(*_):
        raise KeyboardInterrupt

    def modes():
        return [type(mode) for mode in _get_current_function_mode_stack()]

    def work():
        before = modes()
        handle = model.transformer.h[1].register_forward_pre_hook(interrupt)
        with torch.no_grad(), pytest.raises(KeyboardInterrupt):
            model(torch.tensor([IDS]))
        handle.remove()
        assert FunctionMode in modes()
        with kind():
            inside = [mode for mode in modes() if mode is not FunctionMode]
            assert run.traces == []
            assert modes() == inside != before
        assert modes() == before
        with torch.no_grad():
            model(torch.tensor([IDS]))
        assert modes() == before

    with capturing(model) as run, ThreadPoolExecutor(1) as pool:
        pool.submit(copy_context().run, work).result()
        found = run.trace
    for place, head in expected.only_stack.items():
        np.testing.assert_array_equal(found[place].attention, head.attention)
