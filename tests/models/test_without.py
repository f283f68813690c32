"""Path patching, held to hooks on plain models."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import gattn
from benchmarks import zoo
from gattn.errors import EditError

IDS = torch.tensor([[5, 17, 42, 17, 8, 33, 59, 3, 21]])


@pytest.fixture
def gpt2(tiny):
    return tiny("gpt2", dtype=torch.float64)


def written_by(model, head):
    """What a head of layer 0 of GPT-2 adds to the stream, by a hook on its output projection."""
    projection, found = model.transformer.h[0].attn.c_proj, []
    hook = projection.register_forward_hook(lambda _, given, __: found.append(given[0]))
    with torch.no_grad():
        model(IDS)
    hook.remove()
    size = model.config.n_embd // model.config.n_head
    rows = slice(head * size, (head + 1) * size)
    return found[0][..., rows] @ projection.weight[rows]


def patched(model, layer, head, side, written):
    """Run GPT-2 with a head's queries, keys or values made of the stream without something."""
    block, streams = model.transformer.h[layer], []
    size, width = model.config.n_embd // model.config.n_head, model.config.n_embd
    first = {"query": 0, "key": width, "value": 2 * width}[side] + head * size

    def put(module, given, output):
        with torch.no_grad():
            other = block.ln_1(streams[0] - written) @ module.weight + module.bias
        output = output.clone()
        output[..., first : first + size] = other[..., first : first + size]
        return output

    hooks = [
        block.register_forward_pre_hook(lambda _, given: streams.append(given[0])),
        block.attn.c_attn.register_forward_hook(put),
    ]
    with torch.no_grad():
        found = model(IDS, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("side", ["query", "key", "value"])
def test_it_is_path_patching_by_hooks(tiny, side, implementation):
    model = tiny("gpt2", implementation, dtype=torch.float64)
    plain = model(IDS).logits
    for by in ("zero", "mean"):
        written = written_by(model, 2)
        written = written - written.mean(1, keepdim=True) if by == "mean" else written
        expected = patched(model, 1, 3, side, written)
        edit = gattn.Without("0.2", side=side, layer=1, head=3, by=by)
        with torch.no_grad(), gattn.edited(model, edit):
            found = model(IDS).logits
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
        assert (expected - plain).abs().max() > 1e-4


@pytest.mark.parametrize("side", ["query", "key", "value"])
def test_all_heads_of_a_llama_do_not_hear_an_mlp(tiny, side):
    """With rotations, and fewer key heads than heads."""
    model = tiny("mistral")
    layers, seen = model.model.layers, {}
    hooks = [
        layers[0].mlp.register_forward_hook(lambda _, __, output: seen.update(mlp=output)),
        layers[1].register_forward_pre_hook(lambda _, given: seen.update(stream=given[0])),
    ]
    projection = getattr(layers[1].self_attn, f"{side[0]}_proj")

    def put(module, given, output):
        return nn.functional.linear(
            layers[1].input_layernorm(seen["stream"] - seen["mlp"]), module.weight, module.bias
        )

    hooks.append(projection.register_forward_hook(put))
    with torch.no_grad():
        expected = model(IDS, use_cache=False).logits
        for hook in hooks:
            hook.remove()
        with gattn.edited(model, gattn.Without("mlp 0", side=side, layer=1)):
            found = model(IDS, use_cache=False).logits
        plain = model(IDS).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert (plain - expected).abs().max() > 1e-4


FAMILIES = ["gpt2", "llama", "qwen3", "gemma2", "bert", "albert", "olmo2", "gpt_neox", "cohere"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_that_hears_nothing_attends_evenly(name):
    """Without all parts the stream is 0, or what rounding leaves, and all tokens are alike to it.

    Rotations turn constant queries and keys, so they are compared with the layer on zeros.
    """
    specimen = zoo.specimen(name)
    inputs = {n: x[:1] if torch.is_tensor(x) else x for n, x in specimen.inputs.items()}
    found = gattn.why(inputs, specimen.model, layer=1, head=0)
    parts = [str(one) for one in found.writers[:-1]]
    edit = gattn.Without(parts, side="key", layer=1, head=0, by="mean")
    with gattn.edited(specimen.model, edit):
        edited = gattn.capture(inputs, specimen.model, scores=True)[1, 0]
    plain = gattn.capture(inputs, specimen.model, scores=True)[1, 0]
    assert abs(edited.to_dense() - plain.to_dense()).max() > 1e-4
    with gattn.edited(specimen.model, gattn.Without(parts[-1], layer=1, head=1)):
        other = gattn.capture(inputs, specimen.model, scores=True)[1, 0]
    assert (other.to_dense() == plain.to_dense()).all()


def test_without_a_norm_what_is_predicted_is_measured(gpt2):
    """`why` holds norms fixed, `Without` does not; where there is none, they agree."""
    model = gpt2
    model.transformer.h[1].ln_1 = nn.Identity()
    found = gattn.why(IDS[0].tolist(), model, layer=1, head=0, query=8, key=8)
    for side in ("query", "key"):
        predicted = found.without(side).set_index("part")
        for part in predicted.index.drop("bias"):
            edit = gattn.Without(part, side=side, layer=1, head=0)
            with gattn.edited(model, edit):
                measured = gattn.capture(IDS[0].tolist(), model)[1, 0].to_dense()[8, 8]
            assert measured == pytest.approx(predicted["without"][part], abs=1e-9)


def test_effects_and_other_edits(gpt2):
    ids = IDS[0].tolist()
    edits = [gattn.Without("0.1", side=side, layer=1, head=0) for side in ("query", "value")]
    table = gattn.effect(ids, edits, gpt2, progress=False)
    assert (table["effect"].abs() > 0).all()
    with torch.no_grad(), gattn.edited(gpt2, edits[0], gattn.Cut(layer=1, head=0, query=8, key=3)):
        both = gattn.capture(ids, gpt2)
    with gattn.edited(gpt2, edits[0]):
        one = gattn.capture(ids, gpt2)
    assert both[1, 0].to_dense()[8, 3] == 0
    assert one[1, 0].to_dense()[8, 3] > 0
    assert one[1, 0].edits == (edits[0],)
    assert (both[1, 0].to_dense()[:8] == one[1, 0].to_dense()[:8]).all()


def test_what_was_cut_before_is_not_in_the_parts(gpt2):
    """Parts are those of this run: a head without edges writes nothing that could be taken away."""
    ids = IDS[0].tolist()
    cut = gattn.Cut(layer=0, head=1, renormalize=False)
    with gattn.edited(gpt2, cut):
        expected = gattn.capture(ids, gpt2)[1, 0].to_dense()
    with gattn.edited(gpt2, cut, gattn.Without("0.1", layer=1, head=0)):
        found = gattn.capture(ids, gpt2)[1, 0].to_dense()
    assert found == pytest.approx(expected, abs=1e-9)


def test_several_parts_are_taken_away_together(gpt2):
    parts = ["0.1", "mlp 0"]
    both = gattn.Without(parts, layer=1, head=0)
    apart = [gattn.Without(part, layer=1, head=0) for part in parts]
    ids = IDS[0].tolist()
    with gattn.edited(gpt2, both):
        found = gattn.capture(ids, gpt2)[1, 0].to_dense()
    for one in apart:
        with gattn.edited(gpt2, one):
            assert abs(gattn.capture(ids, gpt2)[1, 0].to_dense() - found).max() > 1e-4
    with pytest.raises(EditError, match="name all parts in one"):
        run(gpt2, apart[0], other=apart[1])
    apart.insert(1, gattn.Without("0.2", side="query", layer=1, head=0))
    apart.append(gattn.Without("0.2", side="value", layer=1, head=0))
    said = re.escape(f"{apart[0]} and {apart[2]} each say what the key of")
    with pytest.raises(EditError, match=said), gattn.edited(gpt2, *apart):
        gattn.capture(ids, gpt2)
    with gattn.edited(gpt2, both, gattn.Without("0.2", side="query", layer=1, head=0)):
        gattn.capture(ids, gpt2)


def test_a_part_named_twice_is_taken_away_once(gpt2):
    ids = IDS[0].tolist()
    found = []
    for part in ("wte", ["wte", "wte"], "embedding", ["embedding", "wte"]):
        with gattn.edited(gpt2, gattn.Without(part, layer=1, head=2)):
            found.append(torch.as_tensor(gattn.capture(ids, gpt2)[1, 2].to_dense()))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[3])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("side", ["key", "value"])
def test_by_default_all_later_layers_do_not_hear(tiny, side):
    """Also where an earlier layer's values are edited, of which the parts are then made."""
    model = tiny("gpt2", dtype=torch.float64, n_layer=3)
    found = []
    for layer in (None, [1, 2]):
        with torch.no_grad(), gattn.edited(model, gattn.Without("0.1", side=side, layer=layer)):
            found.append(model(IDS).logits)
    assert torch.equal(*found)
    with torch.no_grad(), gattn.edited(model, gattn.Without("wte", side=side)):
        everywhere = model(IDS).logits
    assert not torch.equal(everywhere, found[0])


def test_a_hook_that_changes_what_the_layer_is_given_is_refused(gpt2):
    block, steer = gpt2.transformer.h[1], torch.linspace(0, 1, gpt2.config.n_embd)
    with torch.no_grad(), gattn.edited(gpt2, gattn.Without("0.1", layer=1, head=0)):
        gpt2(IDS)
        block.register_forward_pre_hook(lambda _, given: (given[0] + steer, *given[1:]))
        with pytest.raises(EditError, match="other queries, keys or values"):
            gpt2(IDS)


def test_attention_that_is_put_in_is_not_changed_before(gpt2):
    other = gattn.Patch(IDS[0].flip(0).tolist(), layer=1, head=0)
    with pytest.raises(EditError, match="puts in the attention"):
        run(gpt2, gattn.Without("0.1", layer=1, head=0), other=other)


def test_threads_at_the_same_time(gpt2):
    edit = gattn.Without("0.1", layer=1, head=0)
    ids = IDS[0].tolist()
    with gattn.edited(gpt2, edit):
        expected = gattn.capture(ids, gpt2)[1, 0].to_dense()

    def one(_):
        with gattn.edited(gpt2, edit):
            return gattn.capture(ids, gpt2)[1, 0].to_dense()

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(one, range(24)):
            assert (found == expected).all()


def test_nothing_is_left(gpt2):
    plain = gpt2(IDS).logits
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in gpt2.modules()]
    with torch.no_grad(), gattn.edited(gpt2, gattn.Without("0.1", layer=1)):
        gpt2(IDS)
        gpt2(IDS)
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in gpt2.modules()]
    assert torch.equal(gpt2(IDS).logits, plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"part": 1}, "part names what wrote to the stream"),
        ({"part": []}, "part names what wrote to the stream"),
        ({"part": "0.1", "side": "both"}, "side is one of"),
        ({"part": "0.1", "by": 0}, "by is 'zero', 'mean'"),
        ({"part": "0.1", "by": []}, "has no text"),
        ({"part": "0.1", "by": torch.zeros(3)}, "by is vectors"),
        ({"part": {}, "layer": 1}, "has no part"),
        ({"part": {"a": 3}, "layer": 1}, "must be a tensor"),
        ({"part": {"a": torch.zeros(3, 4).long()}, "layer": 1}, r"\(3, 4\), torch.int64"),
        ({"part": {"a": torch.full((3, 4), torch.nan)}, "layer": 1}, "'a' must be finite"),
        ({"part": "0.1", "by": torch.full((3, 4), torch.inf)}, "by must be finite"),
        ({"part": {"a": torch.zeros(3, 4)}}, "name it"),
        ({"part": {"a": torch.zeros(3, 4)}, "layer": 1, "by": "A text"}, "give vectors"),
    ],
)
def test_wrong_fields(options, message):
    with pytest.raises(EditError, match=message):
        gattn.Without(**options)


def run(model, edit, ids=IDS, other=None, **options):
    edits = [edit] if other is None else [edit, other]
    with torch.no_grad(), gattn.edited(model, *edits):
        model(ids, **options)


def test_what_cannot_be_done_is_refused(gpt2):
    edit = gattn.Without("0.1", layer=1, head=0)
    with pytest.raises(EditError, match=r"what wrote the stream before is wte, wpe, 0\.0"):
        run(gpt2, gattn.Without("1.1", layer=1))
    with torch.no_grad():
        past = gpt2(IDS[:, :4]).past_key_values
    with pytest.raises(EditError, match="use_cache=False"):
        run(gpt2, edit, IDS[:, 4:], past_key_values=past)
    layer = nn.TransformerEncoderLayer(16, 2, batch_first=True)
    embedding = gattn.Without("embedding", layer=0, head=0)
    with pytest.raises(EditError, match="asks its attention interface"):
        run(nn.TransformerEncoder(layer, 2).eval(), edit, torch.randn(1, 5, 16))
    with pytest.raises(EditError, match="asks its attention interface"):
        run(nn.TransformerEncoder(layer, 2).eval(), embedding, torch.randn(1, 5, 16))
