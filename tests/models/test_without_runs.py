"""Path patching in batches, with caches, in half precision and with gradients, held to hooks."""

import copy
from contextlib import contextmanager

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import gattn
from benchmarks import zoo
from gattn.errors import CaptureError, EditError

IDS = torch.tensor([[5, 17, 42, 17, 8, 33, 59, 3, 21]])
OTHER = torch.tensor([[7, 7, 30, 2, 51]])
SIDES = ("query", "key", "value")


@contextmanager
def hooked(model, head, side, layer=1, of=2):
    """Let a head of GPT-2 not hear a head of layer 0, by hooks, in any run, with gradients."""
    first, block, seen = model.transformer.h[0].attn.c_proj, model.transformer.h[layer], {}
    size, width = model.config.n_embd // model.config.n_head, model.config.n_embd
    start = {"query": 0, "key": width, "value": 2 * width}[side] + head * size
    rows = slice(of * size, (of + 1) * size)

    def put(module, given, output):
        written = seen["heads"][..., rows] @ first.weight[rows]
        other = block.ln_1(seen["stream"] - written) @ module.weight + module.bias
        before, _, after = output.split([start, size, output.shape[-1] - start - size], -1)
        return torch.cat([before, other[..., start : start + size], after], -1)

    hooks = [
        first.register_forward_pre_hook(lambda _, given: seen.update(heads=given[0])),
        block.register_forward_pre_hook(lambda _, given: seen.update(stream=given[0])),
        block.attn.c_attn.register_forward_hook(put),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def padded(*, left):
    """Two texts in one batch: the second is padded."""
    blank = torch.zeros(1, IDS.shape[1] - OTHER.shape[1], dtype=torch.long)
    row = torch.cat([blank, OTHER] if left else [OTHER, blank], 1)
    real = torch.ones_like(row)
    real[:, slice(0, blank.shape[1]) if left else slice(OTHER.shape[1], None)] = 0
    mask = torch.cat([torch.ones_like(IDS), real])
    at = (mask.cumsum(1) - 1).clamp_min(0)
    return {"input_ids": torch.cat([IDS, row]), "attention_mask": mask, "position_ids": at}


@pytest.fixture
def gpt2(tiny):
    return tiny("gpt2", dtype=torch.float64)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("by", ["zero", "mean"])
def test_each_text_of_a_batch_is_by_itself(gpt2, side, left, by):
    inputs = padded(left=left)
    edit = gattn.Without("0.2", side=side, layer=1, head=3, by=by)
    with torch.no_grad(), gattn.edited(gpt2, edit):
        both = gpt2(**inputs).logits
        alone = [gpt2(ids).logits[0] for ids in (IDS, OTHER)]
    plain = gpt2(**inputs).logits
    for row, expected, mask in zip(both, alone, inputs["attention_mask"], strict=True):
        torch.testing.assert_close(row[mask.bool()], expected, atol=1e-9, rtol=0)
    assert (both - plain).abs().max() > 1e-4
    if by == "zero":
        with torch.no_grad(), hooked(gpt2, 3, side):
            expected = gpt2(**inputs).logits
        real = inputs["attention_mask"].bool()
        torch.testing.assert_close(both[real], expected[real], atol=1e-9, rtol=0)


def test_graphs_of_a_batch(gpt2):
    """What is captured of each text is what is captured of it alone."""
    edit = gattn.Without("0.2", layer=1, head=3)
    with gattn.edited(gpt2, edit), gattn.capturing(gpt2) as run, torch.no_grad():
        gpt2(**padded(left=True))
    for trace, ids in zip(run.traces, (IDS, OTHER), strict=True):
        with gattn.edited(gpt2, edit):
            alone = gattn.capture(ids[0].tolist(), gpt2)
        found = trace[1, 3].to_dense()
        assert found == pytest.approx(alone[1, 3].to_dense(), abs=1e-9)
        assert abs(found - gattn.capture(ids[0].tolist(), gpt2)[1, 3].to_dense()).max() > 1e-4


def test_effects_are_measured_in_batches(tiny):
    """Each copy of the text has an edit of its own: other parts, sides, heads and layers."""
    model = tiny("gpt2", dtype=torch.float64, n_layer=3)
    edits = [
        gattn.Without("0.1", side="query", layer=1, head=0),
        [gattn.Without("wte", layer=2), gattn.Without("0.2", side="value", layer=2, head=1)],
        gattn.Without(["0.3", "mlp 0"], side="value", layer=[1, 2], by="mean"),
        gattn.Cut(layer=1, head=1),
        gattn.Without("1.0", side="key"),
    ]
    options = {"metric": "logit_difference", "target": 3, "other": 4, "progress": False}
    found, alone = (
        gattn.effect(IDS[0].tolist(), edits, model, batch_size=size, **options)["effect"]
        for size in (5, 1)
    )
    assert found.to_numpy() == pytest.approx(alone.to_numpy(), abs=1e-9)
    assert (alone.abs() > 1e-5).all()


@pytest.mark.parametrize("left", [True, False])
def test_a_step_with_a_cache(gpt2, left):
    """The queries of a step hear what the step's own tokens wrote."""
    inputs = padded(left=left)
    prompt = {name: x[:, :6] for name, x in inputs.items()}
    step = {"input_ids": inputs["input_ids"][:, 6:], "position_ids": inputs["position_ids"][:, 6:]}
    step["attention_mask"] = inputs["attention_mask"]
    found = []
    for edited in (gattn.edited(gpt2, gattn.Without("0.2", side="query", layer=1, head=3)), hooked):
        with torch.no_grad(), edited if edited is not hooked else hooked(gpt2, 3, "query"):
            past = gpt2(**prompt, use_cache=True).past_key_values
            found.append(gpt2(**step, past_key_values=past).logits)
    real = inputs["attention_mask"][:, 6:].bool()
    torch.testing.assert_close(found[0][real], found[1][real], atol=1e-9, rtol=0)
    with torch.no_grad():
        past = gpt2(**prompt, use_cache=True).past_key_values
        plain = gpt2(**step, past_key_values=past).logits
    assert (plain - found[0])[real].abs().max() > 1e-4


def test_generating(tiny):
    """Steps with a cache give what whole texts give; keys in a cache are refused."""
    model = tiny("mistral", dtype=torch.float64)
    edit = gattn.Without("0.1", side="query", layer=1)
    for cache in ({}, {"cache_implementation": "static"}):
        with gattn.edited(model, edit):
            options = {"max_new_tokens": 4, "do_sample": False, "output_logits": True}
            found = model.generate(
                IDS, **options, **cache, pad_token_id=0, return_dict_in_generate=True
            )
            with torch.no_grad():
                whole = model(found.sequences[:, :-1], use_cache=False).logits[:, -4:]
        steps = torch.stack(found.logits, 1)
        torch.testing.assert_close(steps, whole.to(steps), atol=1e-6, rtol=0)
    with (
        pytest.raises(EditError, match="only queries can be edited"),
        gattn.edited(model, gattn.Without("0.1", layer=1, head=0)),
    ):
        model.generate(IDS, max_new_tokens=2, pad_token_id=0)
    with (
        pytest.raises(EditError, match="mean over all tokens"),
        gattn.edited(model, gattn.Without("0.1", side="query", layer=1, by="mean")),
    ):
        model.generate(IDS, max_new_tokens=2, pad_token_id=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("side", SIDES)
def test_half_precision(tiny, side, dtype):
    """The head gives what it gives with hooks in double precision, within rounding."""
    half = tiny("gpt2", dtype=dtype)
    half.transformer.h[0].attn.c_proj.weight.data *= 8
    double = copy.deepcopy(half).double()
    edit = gattn.Without("0.2", side=side, layer=1, head=3)
    plain, exact = given_by(half), given_by(double)
    with gattn.edited(half, edit):
        found = given_by(half)
    with hooked(double, 3, side):
        wanted = given_by(double)
    assert found.dtype == dtype
    rounding = (plain - exact).norm()
    assert ((found.double() - plain) - (wanted - exact)).norm() < 3 * rounding
    assert (wanted - exact).norm() > 6 * rounding


def given_by(model):
    """Return what head 3 of layer 1 of GPT-2 gives, by a hook on its output projection."""
    seen = []
    projection = model.transformer.h[1].attn.c_proj
    hook = projection.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        model(IDS)
    hook.remove()
    return seen[0][..., -(model.config.n_embd // model.config.n_head) :]


@pytest.mark.parametrize("side", SIDES)
def test_gradients_are_those_of_hooks(gpt2, side):
    """Parts are functions of the run: gradients go through them, to all parameters."""
    gradients = []
    edit = gattn.Without("0.2", side=side, layer=1, head=3)
    for edited in (gattn.edited(gpt2, edit), hooked(gpt2, 3, side)):
        with edited:
            loss = gpt2(IDS.repeat(2, 1)).logits.log_softmax(-1)[..., 3].sum()
            gradients.append(torch.autograd.grad(loss, list(gpt2.parameters())))
    plain = gpt2(IDS.repeat(2, 1)).logits.log_softmax(-1)[..., 3].sum()
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-7)
    first = torch.autograd.grad(plain, gpt2.transformer.h[0].attn.c_proj.weight)[0]
    names = [name for name, _ in gpt2.named_parameters()]
    at = names.index("transformer.h.0.attn.c_proj.weight")
    assert (gradients[0][at] - first).abs().max() > 1e-6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["bert", "gemma2", "llama", "gpt_neox", "olmo2", "cohere"])
def test_gradients_are_slopes(name):
    """Also where norms stand between what heads write and the stream: by central differences."""
    specimen = zoo.specimen(name)
    model = specimen.model.double()
    inputs = specimen.inputs
    parameters = list(model.parameters())
    generator = torch.Generator().manual_seed(0)
    along = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in parameters]

    def number():
        result = model(**inputs)
        found = getattr(result, "logits", None)
        found = result[0] if found is None else found
        return (found * torch.linspace(0, 1, found.numel()).view_as(found)).double().sum()

    def moved(size):
        with torch.no_grad():
            for x, step in zip(parameters, along, strict=True):
                x += size * step
        return number().item()

    with gattn.edited(model, gattn.Without(["0.1", "mlp 0"], layer=1)):
        slopes = torch.autograd.grad(number(), parameters, allow_unused=True)
        found = sum(
            float((a * b).sum()) for a, b in zip(slopes, along, strict=True) if a is not None
        )
        size = 1e-4
        expected = (moved(size) - moved(-2 * size)) / (2 * size)
        moved(size)
    # Some norms compute in single precision, which differences of 1e-4 enlarge.
    assert found == pytest.approx(expected, rel=1e-2)


def test_what_a_checkpoint_computes_again_is_refused(tiny):
    dropouts = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    gpt2 = tiny("gpt2", **dropouts)
    edit = gattn.Without("0.2", layer=1, head=3)
    name = "activation_checkpointing"  # Its name changed within transformers 5.
    name = name if hasattr(gpt2, f"{name}_enable") else "gradient_checkpointing"
    getattr(gpt2, f"{name}_enable")()
    gpt2.train()
    with pytest.raises(EditError, match="without checkpointing"), gattn.edited(gpt2, edit):
        gpt2(IDS)
    getattr(gpt2, f"{name}_disable")()
    gpt2.eval()
    with pytest.raises(EditError, match="without checkpointing"), gattn.edited(gpt2, edit):
        checkpoint(lambda ids: gpt2(ids, use_cache=False).logits, IDS, use_reentrant=False)


def test_estimates_of_cuts_go_through_the_parts(gpt2):
    """To first order, an edge of head 0.2 matters also by what a later head hears of it."""
    edit, size = gattn.Without("0.2", side="value", layer=1), 1e-4
    answer = {"target": 3, "other": 4, "progress": False}
    ids = IDS[0].tolist()
    plain = gattn.estimate(ids, gpt2, renormalize=False, **answer)
    with gattn.edited(gpt2, edit):
        table = gattn.estimate(ids, gpt2, layers=[0], renormalize=False, **answer)
        row = table.loc[table["estimate"].abs().where(table["head"] == 2).idxmax()]
        edge = {name: int(row[name]) for name in ("layer", "head", "query", "key")}
        scale = gattn.Scale(1 - size, **edge)
        found = gattn.effect(ids, [scale], gpt2, metric="logit_difference", **answer)
    assert row["estimate"] == pytest.approx(found["effect"].iloc[0] / size, rel=1e-3)
    same = (plain[list(edge)] == list(edge.values())).all(axis=1)
    assert abs(plain[same]["estimate"].iloc[0] - row["estimate"]) > 5e-3 * abs(row["estimate"])


def test_autocast_holds_where_the_layer_runs_once_more(tiny):
    """The layer computes in the precision in which the model computed."""
    model = tiny("gpt2")
    model.transformer.h[0].attn.c_proj.weight.data *= 8
    exact, found = [], []
    for numbers, is_on in ((exact, False), (found, True)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on):
            numbers.append(given_by(model))
            with gattn.edited(model, gattn.Without("0.2", layer=1, head=3)):
                numbers.append(given_by(model))
    (plain, edited), (rounded, other) = exact, found
    assert ((other - rounded) - (edited - plain)).norm() < 3 * (rounded - plain).norm()
    assert (edited - plain).norm() > 6 * (rounded - plain).norm()


class Bent(torch.nn.Module):
    def forward(self, x):
        return x.tanh()


@pytest.mark.filterwarnings("ignore")
def test_streams_of_stacks_that_hear_all_are_not_asked_for():
    """What ends a decoder's layers matters where its own heads do not hear of something."""
    specimen = zoo.specimen("bart").double()
    inputs, model = specimen.inputs, specimen.model
    for layer in model.get_decoder().layers:
        layer.final_layer_norm = Bent()
    encoder = model.get_encoder()
    edit = gattn.Without("0.1", side="value", stack="encoder")
    with torch.no_grad(), gattn.edited(model, edit):
        found = model(**inputs).encoder_last_hidden_state
    given = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    with torch.no_grad(), gattn.edited(encoder, gattn.Without("0.1", side="value")):
        wanted = encoder(**given).last_hidden_state
    torch.testing.assert_close(found, wanted)
    assert not torch.allclose(found, encoder(**given).last_hidden_state)
    for stack in ("decoder", None):
        edit = gattn.Without("0.1", side="value", stack=stack)
        refused = pytest.raises(CaptureError, match=r"decoder.* ends in a module")
        with refused, torch.no_grad(), gattn.edited(model, edit):
            model(**inputs)


def test_what_a_norm_between_layers_makes_of_a_part_is_not_heard(tiny):
    """The norm is a module of the model, called for the layer by a hook."""
    model = tiny("gpt2", dtype=torch.float64)
    first, second = model.transformer.h[:2]
    norm = model.transformer.between = torch.nn.LayerNorm(model.config.n_embd).double()
    torch.nn.init.normal_(norm.weight)
    second.register_forward_pre_hook(lambda _, given: (norm(given[0]), *given[1:]))
    seen, hooks = {}, []

    def note(module, name):
        hooks.append(module.register_forward_hook(lambda _, given, __: seen.update({name: given})))

    note(norm, "end"), note(second.ln_1, "stream"), note(first.attn.c_proj, "heads")
    with torch.no_grad():
        model(IDS, use_cache=False)
    size, width = model.config.n_embd // model.config.n_head, model.config.n_embd
    part = seen["heads"][0][..., size : 2 * size] @ first.attn.c_proj.weight[size : 2 * size]
    deviation = (seen["end"][0].var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    part = (part - part.mean(-1, keepdim=True)) / deviation * norm.weight
    stream = seen["stream"][0] - part

    def put(module, given, output):
        other = second.ln_1(stream) @ module.weight + module.bias
        output = output.clone()
        output[..., width : width + size] = other[..., width : width + size]
        return output

    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        with gattn.edited(model, gattn.Without("0.1", side="key", layer=1, head=0)):
            found = model(IDS, use_cache=False).logits
        hook = second.attn.c_attn.register_forward_hook(put)
        wanted = model(IDS, use_cache=False).logits
        hook.remove()
        plain = model(IDS, use_cache=False).logits
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)
    assert (plain - wanted).abs().max() > 1e-4
