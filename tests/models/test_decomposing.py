"""Attention sublayers as sums of vectors, held to the model's own states and hooks."""

import re

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import gattn
from benchmarks import zoo
from gattn.errors import CaptureError, EditError, ModelError, SelectionError
from gattn.models.decompose.decomposing import decompose
from gattn.models.stream.norms import FixedNorm

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]
SEQUENTIAL = ["modernbert", "gpt2", "opt", "llama", "mistral", "qwen2", "gemma2", "gpt-oss"]
POST_NORM = ["bert", "roberta", "albert"]
ZOO = ["distilbert", "qwen3", "gemma3_text", "granite", "olmo2", "glm4", "vit", "dinov2", "beit"]
PARALLEL = ["gpt_neox", "phi", "cohere"]


EAGER = ("gemma2", "gpt-oss")


@pytest.fixture
def build(tiny):
    """Build a tiny model with the implementation that its family takes."""
    return lambda name, **options: tiny(name, "eager" if name in EAGER else "sdpa", **options)


def hooks_of(model):
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


def itself(sublayer):
    return sublayer


def taken_apart(inputs, model, **options):
    return decompose(inputs, model, read=itself, progress=False, **options)


def states(model, inputs):
    """The residual stream between layers, as the model itself gives it; the last may be normed."""
    with torch.no_grad():
        found = model(**inputs, output_hidden_states=True)
    return found.hidden_states


def attention_of(part):
    rows = [attention.clone() for _, attention in part.rows()]
    return torch.cat(rows, dim=1)


def check_sum(part, within=2e-5):
    """Add all vectors up, one by one for each head, query and key."""
    pairs = torch.einsum("hij,jhd->hijd", attention_of(part), part.moved())
    total = part.residual + (pairs.sum((0, 2)) * part.factor[:, None]) + part.bias
    scale = part.after.abs().max()
    assert (total - part.after).abs().max() < within * scale
    added = part.after - part.residual
    assert (total - part.after).abs().max() < 10 * within * added.abs().max()
    assert part.error < 10 * within
    assert pairs.sum((0, 2)).abs().max() > 1e-2


def check_stream(found, model, inputs):
    stream = states(model, inputs)
    assert found.layers == tuple(range(len(stream) - 1))
    for part in found.results:
        torch.testing.assert_close(part.residual, stream[part.layer][0].to(part.residual))
        if part.layer + 1 < len(found.layers):
            torch.testing.assert_close(part.end, stream[part.layer + 1][0].to(part.end))


@pytest.mark.parametrize("name", [*SEQUENTIAL, *POST_NORM])
def test_vectors_sum_to_the_models_own_stream(build, name):
    model = build(name)
    found = taken_apart(IDS, model)
    check_stream(found, model, {"input_ids": torch.tensor([IDS])})
    for part in found.results:
        check_sum(part)
        assert part.is_post_norm == (name in POST_NORM)
        assert not part.is_parallel
        assert part.norm is not None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*ZOO, *PARALLEL])
def test_further_families_hold(name):
    specimen = zoo.specimen(name)
    inputs = {n: x[:1] if torch.is_tensor(x) else x for n, x in specimen.inputs.items()}
    found = taken_apart(inputs, specimen.model)
    check_stream(found, specimen.model, inputs)
    for part in found.results:
        check_sum(part)
        assert part.is_parallel == (name in PARALLEL)
        assert part.is_post_norm == (name == "distilbert")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["bart", "marian"])
def test_the_norm_after_self_attention_is_the_stream_of_decoders(name):
    """They have another after cross-attention."""
    specimen = zoo.specimen(name)
    layers = specimen.model.get_decoder().layers
    norms = [layer.self_attn_layer_norm for layer in layers]
    seen = []
    for norm in norms:
        norm.register_forward_hook(lambda _, given, output: seen.append((given[0], output)))
    inputs = {n: x[:1] if torch.is_tensor(x) else x for n, x in specimen.inputs.items()}
    found = taken_apart(inputs, specimen.model, stack="decoder").results
    for part, (given, output) in zip(found, seen, strict=True):
        assert part.is_post_norm
        torch.testing.assert_close(part.after, given[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(part.normed().after, output[0], rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["bart", "marian"])
def test_what_heads_of_decoders_wrote_goes_through_all_their_norms(name):
    specimen = zoo.specimen(name).double()
    first, second = specimen.model.get_decoder().layers[:2]
    inputs = {n: x[:1] if torch.is_tensor(x) else x for n, x in specimen.inputs.items()}
    norms = first.self_attn_layer_norm, first.encoder_attn_layer_norm, first.final_layer_norm
    heads, given = [], {}
    for norm in norms:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        norm.register_forward_hook(lambda norm, args, _: given.update({norm: args[0][0]}))
    projection = first.self_attn.out_proj
    projection.register_forward_hook(lambda _, args, output: heads.append(args[0][0]))
    found = gattn.why(inputs, specimen.model, layer=1, head=1, stack="decoder")
    names, size = [str(one) for one in found.writers], second.self_attn.head_dim
    for head in range(second.self_attn.num_heads):
        rows = slice(head * size, (head + 1) * size)
        part = heads[0][:, rows] @ projection.weight[:, rows].T
        for norm in norms:
            deviation = (given[norm].var(-1, correction=0) + norm.eps).sqrt()[:, None]
            part = (part - part.mean(-1, keepdim=True)) / deviation * norm.weight
        mine = torch.as_tensor(found.keys[names.index(f"0.{head}")])
        wanted = part @ second.self_attn.k_proj.weight[size : 2 * size].T
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["wav2vec2-conformer", "wav2vec2-bert", "parakeet_encoder"])
def test_conformers_add_attention_after_their_first_mlp(name):
    specimen, given = zoo.specimen(name).double(), []
    inputs = {n: x[:1] if torch.is_tensor(x) else x for n, x in specimen.inputs.items()}
    for path, module in specimen.model.named_modules():
        if path.endswith(("self_attn_layer_norm", "norm_self_att")):
            module.register_forward_hook(lambda _, args, output: given.append(args[0][0]))
    found = taken_apart(inputs, specimen.model).results
    assert len(given) == len(found) > 1
    for part, stream in zip(found, given, strict=True):
        torch.testing.assert_close(part.residual, stream)
        assert (part.start - stream).abs().max() > 1e-3
        check_sum(part)
    refused = pytest.raises(EditError, match="add to the stream before their attention")
    with refused, torch.no_grad(), gattn.edited(specimen.model, gattn.Without("0.0", layer=1)):
        specimen.model(**inputs)


AFTER = {
    "bert": "attention.output.LayerNorm",
    "albert": "attention.LayerNorm",
    "gpt2": "ln_2",
    "llama": "post_attention_layernorm",
    "gemma2": "pre_feedforward_layernorm",
}


@pytest.mark.parametrize("name", AFTER)
def test_the_sum_and_its_norm_are_the_models(build, name):
    model, seen = build(name), []
    for path, module in model.named_modules():
        if path.endswith(AFTER[name]):
            module.register_forward_hook(lambda _, given, output: seen.append((given[0], output)))
    found = taken_apart(IDS, model)
    assert len(seen) == len(found.results)
    for part, (given, output) in zip(found.results, seen, strict=True):
        torch.testing.assert_close(part.after, given[0], rtol=1e-6, atol=1e-6)
        behind = part.normed()
        torch.testing.assert_close(behind.after, output[0], rtol=1e-4, atol=1e-4)
        total = behind.residual + behind.added() + behind.bias
        torch.testing.assert_close(total, output[0], rtol=1e-4, atol=1e-4)


def test_attention_is_what_a_capture_shows(build):
    model = build("mistral")  # Its window makes blocks that do not reach all keys.
    trace = gattn.capture(IDS, model)
    for part in taken_apart(IDS, model).results:
        expected = np.stack([trace[part.layer, h].to_dense() for h in range(part.heads)])
        np.testing.assert_allclose(attention_of(part), expected, atol=1e-6)


def test_what_a_token_keeps_is_the_diagonal(build):
    for part in taken_apart(IDS, build("gemma2")).results:
        pairs = torch.einsum("hij,jhd->ijd", attention_of(part), part.moved())
        own = part.residual + pairs.diagonal(0, 0, 1).T * part.factor[:, None]
        torch.testing.assert_close(part.own(), own)


@pytest.mark.parametrize(("name", "within"), [("bert", 1e-13), ("gpt2", 1e-13), ("gemma2", 1e-6)])
def test_double_precision_is_exact(build, name, within):
    """Gemma's norms compute in single precision even then."""
    for part in taken_apart(IDS, build(name, dtype=torch.float64)).results:
        assert part.residual.dtype == torch.float64
        assert part.norm is not None
        check_sum(part, within)
        behind = part.normed()
        total = behind.residual + behind.added() + behind.bias
        torch.testing.assert_close(total, behind.after, rtol=1e-6, atol=within * 100)


@pytest.mark.parametrize("name", ["llama", "bert", "gemma2", "gpt-oss"])
def test_half_precision_is_summed_in_single(build, name):
    for part in taken_apart(IDS, build(name, dtype=torch.bfloat16)).results:
        assert part.residual.dtype == part.values.dtype == part.weights.dtype == torch.float32
        check_sum(part, 3e-2)


# What rounding hides is refused, never guessed.


def loud(model, branch, dtype):
    """Give embeddings beside which the attention is small, and round the model."""
    torch.manual_seed(1)
    with torch.no_grad():
        plain = taken_apart(IDS, model, layers=[0]).results[0]
        size = (plain.after - plain.residual).abs().mean() / branch
        weight = model.get_input_embeddings().weight
        weight.copy_(size * (torch.randn(weight.shape).sign() + 0.15 * torch.randn(weight.shape)))
    return model.to(dtype)


def decomposed_or_none(model):
    """Take a model apart, or be told to take it in single precision."""
    try:
        return taken_apart(IDS, model).results
    except CaptureError as error:
        if not re.search(r"rounding to b?float16 hides it: try model\.float\(\)", str(error)):
            raise
        return None


HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("branch", [0.001, 0.003, 0.01, 0.03, 0.3])
def test_small_attention_is_right_or_refused(build, branch, dtype):
    model = loud(build("llama"), branch, dtype)
    found = decomposed_or_none(model)
    assert (found is None) <= (branch < 0.02)
    exact = taken_apart(IDS, model.float()).results
    for part, one in zip(found or [], exact, strict=found is not None):
        assert part.factor.eq(1).all()
        assert (part.added() - one.added()).norm() < 0.05 * one.added().norm()
        added = part.after - part.residual
        assert (
            part.added() + part.bias - added
        ).abs().max() <= 1.001 * part.error * added.abs().max()
        assert part.error < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("branch", [0.003, 0.01, 0.03, 0.3])
def test_attention_that_is_taken_away_is_never_taken_for_added(build, branch, dtype):
    model = build("llama")
    for layer in model.model.layers:
        forward = layer.self_attn.forward
        layer.self_attn.forward = lambda *args, _forward=forward, **options: tuple(
            -x if n == 0 else x for n, x in enumerate(_forward(*args, **options))
        )
    check_taken_away(model, build("llama"))
    if dtype == torch.float32:
        check_taken_away(loud_by(model, branch), loud_by(build("llama"), branch))
    else:
        with pytest.raises(CaptureError, match="was not found"):
            taken_apart(IDS, loud_by(model, branch).to(dtype))


def check_taken_away(model, plain):
    """Its vectors are those of the model that adds them, turned round."""
    first, other = (taken_apart(IDS, x, layers=[0]).results[0] for x in (model, plain))
    torch.testing.assert_close(first.weights, -other.weights)
    torch.testing.assert_close(first.after - first.residual, other.residual - other.after)
    torch.testing.assert_close(first.end, taken_apart(IDS, model).results[1].residual)
    check_sum(first)


def loud_by(model, branch):
    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        weight.copy_(weight.sign() * 0.01 / branch)
    return model


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("branch", [0.001, 0.01, 0.03, 0.3])
def test_the_factor_of_granite_is_right_or_refused(branch, dtype):
    found = decomposed_or_none(loud(granite(), branch, dtype))
    assert (found is None) <= (branch < 0.02)
    for part in found or []:
        torch.testing.assert_close(part.factor, torch.full((9,), 0.22), rtol=0.03, atol=0)
    for part in taken_apart(IDS, granite()).results:
        torch.testing.assert_close(part.factor, torch.full((9,), 0.22), rtol=1e-4, atol=0)


def granite():
    config = transformers.GraniteConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        residual_multiplier=0.22,
    )
    torch.manual_seed(0)
    return transformers.GraniteForCausalLM(config).eval()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size", [1, 30])
def test_parallel_blocks_are_told_in_half_precision(dtype, size):
    model = zoo.specimen("cohere").model
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(size)
    assert all(part.is_parallel for part in taken_apart(IDS, model.to(dtype)).results)


@pytest.mark.filterwarnings("ignore")
def test_a_number_that_the_end_is_multiplied_by():
    """Gemma 4 multiplies the stream itself."""
    specimen = zoo.specimen("gemma4_text")
    for layer in (x for x in specimen.model.modules() if hasattr(x, "layer_scalar")):
        layer.layer_scalar.fill_(0.8)
    inputs = {n: x[:1] if torch.is_tensor(x) else x for n, x in specimen.inputs.items()}
    for part in taken_apart(inputs, specimen.model).results:
        assert not part.is_post_norm
        assert not part.is_parallel
        (last,) = part.later
        torch.testing.assert_close(last.norm.gain, torch.full_like(part.end[0], 0.8))
        torch.testing.assert_close(last.output, part.end)
        check_sum(part)


def test_attention_that_adds_nothing(build):
    """New layers often begin with a projection of zeros."""
    model = build("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.zero_()
    part = taken_apart(IDS, model).results[1]
    assert part.error == 0
    assert torch.equal(part.after, part.residual)


def test_one_token(build):
    for part in taken_apart([7], build("llama")).results:
        check_sum(part)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_stacks_are_chosen(build, name, stack):
    inputs = {"input_ids": IDS, "decoder_input_ids": [4, 9, 30]}
    found = taken_apart(inputs, build(name), stack=stack)
    assert found.stack == stack
    assert len(found.results[0]) == (9 if stack == "encoder" else 3)
    assert len(found.notes) == (0 if stack == "encoder" else 1)
    for part in found.results:
        check_sum(part)


class Twice(nn.Module):
    """A layer that attends twice, by two modules."""

    def __init__(self):
        super().__init__()
        self.near, self.far = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, x):
        for attention in (self.near, self.far):
            x = x + attention(x, x, x, need_weights=False)[0]
        return x


class Layered(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x, *memory):
        for layer in self.layers:
            x = layer(x, *memory)
        return x


def test_what_else_attends_in_a_layer_is_told():
    torch.manual_seed(0)
    x, memory = torch.randn(1, 5, 8), torch.randn(1, 6, 8)
    twice = Layered(Twice(), Twice()).eval()
    found = decompose(lambda: twice(x), twice, read=len, stack="layers.near", progress=False)
    assert found.notes == [
        "what the attention of 'layers.far' in these layers adds is not included"
    ]
    layers = [nn.TransformerDecoderLayer(8, 2, 16, batch_first=True) for _ in range(2)]
    decoder = Layered(*layers).eval()
    options = {"read": len, "stack": "layers.self_attn", "progress": False}
    found = decompose(lambda: decoder(x, memory), decoder, **options)
    assert found.notes == ["what the cross-attention adds is not included"]
    with torch.no_grad():
        routes = gattn.analysis.routes(lambda: twice(x), twice, position=0, stack="layers.near")
    assert "what the attention of 'layers.far' in these layers adds" in routes.graph["notes"]


def test_a_stack_has_to_be_named(build):
    inputs = {"input_ids": IDS, "decoder_input_ids": [4, 9, 30]}
    with pytest.raises(SelectionError, match=r"'encoder' and 'decoder'.*stack="):
        taken_apart(inputs, build("t5"))
    with pytest.raises(SelectionError, match=r"No stack 'vision'.*'encoder' and 'decoder'"):
        taken_apart(inputs, build("t5"), stack="vision")
    with pytest.raises(SelectionError, match="No stack 'cross'"):
        taken_apart(inputs, build("t5"), stack="cross")


def test_layers_are_chosen(build):
    model = build("gpt2")
    found = taken_apart(IDS, model, layers=[1])
    assert (found.layers, found.source) == (
        (1,),
        "GPT2LMHeadModel, decoder stack, layer 1, 9 tokens",
    )
    whole = taken_apart(IDS, model)
    assert whole.source == "GPT2LMHeadModel, decoder stack, layers 0-1, 9 tokens"
    torch.testing.assert_close(found.results[0].values, whole.results[1].values)
    with pytest.raises(SelectionError, match=r"No layer 2; the model has layers 0 \.\. 1"):
        taken_apart(IDS, model, layers=[0, 2])


def test_padding_is_cut_off(build):
    model = build("bert")
    alone = taken_apart(IDS, model)
    mask = torch.tensor([[1] * 9 + [0] * 3])
    embeddings = model.get_input_embeddings()(torch.tensor([[*IDS, 0, 0, 0]])).detach()
    padded = taken_apart({"inputs_embeds": embeddings, "attention_mask": mask}, model)
    for one, other in zip(alone.results, padded.results, strict=True):
        assert len(other) == 9
        torch.testing.assert_close(one.after, other.after)
        torch.testing.assert_close(one.end, other.end)
        torch.testing.assert_close(attention_of(one), attention_of(other))


def test_edits_are_seen(build):
    model = build("llama")
    with gattn.edited(model, gattn.Scale(-2.0, 1, 0, query=4), gattn.Cut(1, 2, query=6, key=2)):
        trace = gattn.capture(IDS, model)
        found = taken_apart(IDS, model)
    for part in found.results:
        expected = np.stack([trace[part.layer, h].to_dense() for h in range(4)])
        np.testing.assert_allclose(attention_of(part), expected, atol=1e-6)
        check_sum(part)


def test_nothing_of_the_model_changes(build):
    model, inputs = build("gemma2"), {"input_ids": torch.tensor([IDS])}
    with torch.no_grad():
        before = model(**inputs).logits
        taken_apart(IDS, model)
        after = model(**inputs).logits
    assert torch.equal(before, after)
    assert not any(hooks_of(model))


# Norms are read by probing them.


class Shifted(torch.nn.Module):
    """Gemma's way to keep a gain."""

    def __init__(self, gain):
        super().__init__()
        self.gain = gain

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + self.gain)


class Scale(torch.nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.gain = gain

    def forward(self, x):
        return x * self.gain


@pytest.mark.parametrize("width", [2, 7, 32])
@pytest.mark.parametrize("kind", ["layer", "rms", "gemma", "scale", "length"])
def test_a_norm_is_linear_once_its_statistics_are_fixed(kind, width, randn):
    given, gain = randn(5, width) * 3 + 1, randn(width)
    made = {
        "layer": torch.nn.LayerNorm(width).double(),
        "rms": torch.nn.RMSNorm(width, eps=1e-6).double(),
        "gemma": Shifted(gain),
        "scale": Scale(gain),
        "length": torch.nn.Identity(),
    }[kind]
    if kind == "length":
        made.forward = lambda x: 3 * x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    with torch.no_grad():
        output = made(given)
        norm = FixedNorm.of(made.forward, given, output)
        assert norm.is_centred == (kind == "layer")
        torch.testing.assert_close(norm(given) + norm.shift, output)
        parts = randn(3, 5, width)
        torch.testing.assert_close(sum(map(norm, parts)), norm(parts.sum(0)))
        deviation = (given - given.mean(-1, keepdim=True)).square().mean(-1).add(1e-5).sqrt()
        if kind == "layer":
            torch.testing.assert_close(norm.factor * deviation, torch.ones(5).double())
            torch.testing.assert_close(norm.gain, made.weight.detach())


@pytest.mark.parametrize(
    "module",
    [torch.nn.Linear(6, 6), torch.nn.GELU(), torch.nn.Tanh(), torch.nn.Softmax(-1)],
    ids=lambda module: type(module).__name__,
)
def test_other_modules_are_no_norms(module, randn):
    given = randn(5, 6, dtype=torch.float32)
    with torch.no_grad():
        assert FixedNorm.of(module.forward, given, module(given)) is None


# What cannot be taken apart is refused.


def refused(model, match, inputs=IDS):
    hooks = hooks_of(model)
    with pytest.raises(CaptureError, match=match):
        taken_apart(inputs, model)
    assert hooks_of(model) == hooks


def replaced(model, path, wrap):
    parent, _, name = path.rpartition(".")
    owner = model.get_submodule(parent)
    setattr(owner, name, wrap(getattr(owner, name)))
    return model


class Wrapped(torch.nn.Module):
    def __init__(self, inner, before=lambda x: x, after=lambda x: x):
        super().__init__()
        self.inner, self.before, self.after = inner, before, after

    def forward(self, x, **options):
        return self.after(self.inner(self.before(x), **options))


def test_a_gate_before_the_projection(build):
    model = replaced(
        build("llama"), "model.layers.1.self_attn.o_proj", lambda m: Wrapped(m, before=torch.tanh)
    )
    refused(model, r"layers\.1\.self_attn is not projected unchanged")


def test_a_bend_behind_the_projection(build):
    model = replaced(
        build("llama"), "model.layers.1.self_attn.o_proj", lambda m: Wrapped(m, after=torch.tanh)
    )
    refused(model, r"layers\.1\.self_attn is not projected unchanged")


def test_a_projection_that_adds_something_else(build):
    """All that the model has is consistent, but W_O is not what the module did."""

    class Strange(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + 0.1 * x.roll(1, 1)

    def strange(linear):
        twin = Strange(linear.in_features, linear.out_features, bias=False)
        twin.weight = linear.weight
        return twin

    model = replaced(build("llama"), "model.layers.0.self_attn.o_proj", strange)
    refused(model, r"layers\.0\.self_attn is not projected unchanged")


def test_what_is_wrapped_around_a_projection_counts(build):
    """An adapter, say: the projection is the outermost module that takes the output."""
    torch.manual_seed(0)
    down, up = torch.randn(2, 32).double(), torch.randn(32, 2).double()

    class Adapted(Wrapped):
        def forward(self, x):
            return 0.37 * self.inner(x) + x @ down.T @ up.T

    model = replaced(
        build("llama", dtype=torch.float64), "model.layers.1.self_attn.o_proj", Adapted
    )
    plain, found = taken_apart(IDS, build("llama", dtype=torch.float64)), taken_apart(IDS, model)
    torch.testing.assert_close(found.results[0].weights, plain.results[0].weights)
    more = (up @ down).T.unflatten(0, (4, 8))
    torch.testing.assert_close(found.results[1].weights, 0.37 * plain.results[1].weights + more)
    check_sum(found.results[1], 1e-12)
    check_stream(found, model, {"input_ids": torch.tensor([IDS])})


def test_models_that_attend_in_windows():
    swin = zoo.specimen("swin")
    refused(swin.model, "windows, as Swin's", {n: x[:1] for n, x in swin.inputs.items()})


class Widening(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 8)

    def forward(self, x):
        return self.out(self.attention(x, x, x, need_weights=False)[0])


def test_a_layer_of_another_width_has_no_stream():
    model = Layered(Widening()).eval()
    x = torch.randn(1, 5, 6)
    with pytest.raises(CaptureError, match="takes 6 features of each token and gives 8"):
        decompose(lambda: model(x), model, read=len)


def test_attention_in_a_bottleneck_is_refused_for_that():
    config = transformers.MobileBertConfig(
        vocab_size=60,
        hidden_size=32,
        intra_bottleneck_size=16,
        embedding_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    model = transformers.MobileBertModel(config).eval()
    with pytest.raises(CaptureError, match=r"given 32 features .* projected to 16"):
        taken_apart(IDS, model)


def test_several_texts_and_training(build):
    two = {"inputs_embeds": torch.randn(2, 5, 32)}
    refused(build("bert"), "expected one sequence", two)
    with pytest.raises(ModelError, match="training mode"):
        taken_apart(IDS, build("bert").train())
    with pytest.raises(CaptureError, match="empty"):
        taken_apart([], build("bert"))
