"""Value zeroing against single layers that are run by hand, in double precision."""

import numpy as np
import pytest
import torch
import transformers
from small_models import IDS, SMALL, SMALL_GPT2, built
from torch.nn.functional import cosine_similarity

import gattn
from gattn.analysis import value_zeroing
from gattn.analysis.vectors import value_zeroing as zeroing
from gattn.errors import CaptureError, SelectionError


@pytest.fixture(scope="module")
def models():
    llama = built("Llama", "ForCausalLM", norms=True, **SMALL, num_key_value_heads=2)
    gpt2 = built("GPT2", "LMHeadModel", norms=True, **SMALL_GPT2)
    bert = built("Bert", "ForMaskedLM", norms=True, **SMALL)
    return {
        "Llama": (llama, llama.model.layers, "self_attn.v_proj", slice(None)),
        "GPT2": (gpt2, gpt2.transformer.h, "attn.c_attn", slice(48, None)),
        "Bert": (bert, bert.bert.encoder.layer, "attention.self.value", slice(None)),
    }


def by_hand(model, layers, projection, features, inputs):
    """Run each layer alone, on what it was given, with rows of its values zeroed."""
    given = {}
    handles = [
        layer.register_forward_pre_hook(
            lambda module, args, kwargs, n=n: given.__setitem__(n, (args, kwargs)), with_kwargs=True
        )
        for n, layer in enumerate(layers)
    ]
    with torch.no_grad():
        model(**inputs, use_cache=False)
    for handle in handles:
        handle.remove()

    def run(layer, n, token):
        def zero(module, args, result):
            result = result.clone()
            result[:, token, features] = 0
            return result

        handle = layer.get_submodule(projection).register_forward_hook(zero)
        with torch.no_grad():
            output = layer(*given[n][0], **given[n][1])
        handle.remove()
        return (output[0] if isinstance(output, tuple) else output)[0]

    found = np.zeros((len(layers), len(IDS), len(IDS)))
    for n, layer in enumerate(layers):
        with torch.no_grad():
            plain = layer(*given[n][0], **given[n][1])
        plain = (plain[0] if isinstance(plain, tuple) else plain)[0]
        for token in range(len(IDS)):
            found[n, :, token] = 1 - cosine_similarity(plain, run(layer, n, token), dim=-1)
    return found


@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Bert"])
@pytest.mark.parametrize("batch_size", [None, 1, np.int64(4)])
def test_every_layer_alone_gives_the_same(models, kind, batch_size):
    model, *rest = models[kind]
    expected = by_hand(model, *rest, {"input_ids": torch.tensor([IDS])})
    assert np.abs(expected).max() > 1e-3
    whole = expected / expected.sum(-1, keepdims=True)
    found = value_zeroing(IDS, model, batch_size=batch_size, progress=False)
    np.testing.assert_allclose(found.to_numpy(), whole, atol=1e-9)
    assert found.dims == ("layer", "query", "key")
    assert found.attrs["holds_residual"]
    assert not found.notes
    some = value_zeroing(IDS, model, zeroed=[4, 1], layers=[2, 0], progress=False)
    np.testing.assert_allclose(some.to_numpy(), expected[[2, 0]][:, :, [4, 1]], atol=1e-12)
    assert some["key"].to_numpy().tolist() == [4, 1]
    assert some["layer"].to_numpy().tolist() == [2, 0]
    assert "only some tokens" in some.notes[0]


def test_padding_is_left_out(models):
    model = models["Bert"][0]
    mask = torch.ones(1, len(IDS) + 2, dtype=torch.long)
    mask[0, -2:] = 0
    padded = {"input_ids": torch.tensor([[*IDS, 0, 0]]), "attention_mask": mask}
    found = value_zeroing(padded, model, progress=False)
    np.testing.assert_allclose(found, value_zeroing(IDS, model, progress=False), atol=1e-12)


def test_one_module_may_be_every_layer():
    model = built("Albert", "ForMaskedLM", norms=True, **SMALL, embedding_size=16)
    layer = model.albert.encoder.albert_layer_groups[0].albert_layers[0]
    runs = [layer] * 3
    found = value_zeroing(IDS, model, progress=False)
    hidden = model.albert.encoder.embedding_hidden_mapping_in(
        model.albert.embeddings(torch.tensor([IDS]))
    )
    rows = []
    for module in runs:
        with torch.no_grad():
            plain = module(hidden)
            plain = plain[0] if isinstance(plain, tuple) else plain
        row = []
        for token in range(len(IDS)):

            def zero(module, args, result, token=token):
                return result * (torch.arange(len(IDS)) != token)[:, None]

            handle = module.attention.value.register_forward_hook(zero)
            with torch.no_grad():
                other = module(hidden)
                other = other[0] if isinstance(other, tuple) else other
            handle.remove()
            row.append(1 - cosine_similarity(plain[0], other[0], dim=-1))
        rows.append(torch.stack(row, 1))
        hidden = plain
    expected = torch.stack(rows)
    np.testing.assert_allclose(found, expected / expected.sum(-1, keepdim=True), atol=1e-9)


def test_stacks_are_named():
    sizes = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4}
    model = built("T5", "ForConditionalGeneration", norms=True, vocab_size=60, **sizes)
    inputs = {"input_ids": torch.tensor([IDS]), "decoder_input_ids": torch.tensor([[0, 7, 9]])}
    with pytest.raises(SelectionError, match="stack='encoder'"):
        value_zeroing(inputs, model, progress=False)
    assert value_zeroing(inputs, model, stack="encoder", progress=False).shape == (2, 6, 6)
    decoder = value_zeroing(inputs, model, stack="decoder", progress=False)
    assert decoder.shape == (2, 3, 3)
    np.testing.assert_array_equal(np.triu(decoder[0], 1), 0)
    with pytest.raises(SelectionError, match="No stack 'cross'"):
        value_zeroing(inputs, model, stack="cross", progress=False)


def test_images_are_sequences_of_patches():
    torch.manual_seed(0)
    sizes = {**SMALL, "image_size": 8, "patch_size": 4}
    del sizes["vocab_size"], sizes["max_position_embeddings"]
    model = transformers.ViTModel(transformers.ViTConfig(**sizes)).eval()
    found = value_zeroing({"pixel_values": torch.randn(1, 3, 8, 8)}, model, progress=False)
    assert found.shape == (3, 5, 5)
    np.testing.assert_allclose(found.sum("key"), 1, atol=1e-9)


def test_the_model_stays_as_it_was(models):
    model, layers, *_ = models["GPT2"]
    inputs = {"input_ids": torch.tensor([IDS])}
    before = model(**inputs).logits
    value_zeroing(IDS, model, progress=False)
    with pytest.raises(SelectionError):
        value_zeroing(IDS, model, zeroed=[6], progress=False)
    assert torch.equal(model(**inputs).logits, before)
    assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in layers)


def test_neither_a_later_token_nor_a_cut_edge_makes_a_difference():
    text = "The dog chased the cat, and the cat chased the dog"
    found = value_zeroing(text, progress=False)
    # A distance is the square of what rounding does to a direction, about 1e-12 in float32.
    np.testing.assert_allclose(np.triu(found.max("layer"), 1), 0, atol=1e-9)
    np.testing.assert_allclose(found.sum("key"), 1, atol=1e-12)
    assert found.coords["key_token"].to_numpy()[1] == "The"
    model, tokenizer = gattn.load_model()
    with gattn.edited(model, gattn.Cut(layer=1, query=5, key=4)):
        cut = value_zeroing(text, model, tokenizer, progress=False)
    assert cut.sel(layer=1, query=5, key=4) < 1e-9 < 1e-3 < found.sel(layer=1, query=5, key=4)
    # With edits, copies of the model run; without, what follows attention, to float32's digits.
    np.testing.assert_allclose(cut.sel(layer=0), found.sel(layer=0), atol=2e-6)


def test_rollout_adds_no_residual_stream_to_it():
    from gattn.analysis.reading.layers_of import layers_of

    read = layers_of(value_zeroing("The dog chased the cat", progress=False))
    assert read.holds_residual
    assert read.is_square
    assert read.tokens[1] == "The"


def test_what_cannot_be_is_refused(models):
    model = models["Llama"][0]
    with pytest.raises(SelectionError, match=r"zeroed must be a token's position, here 0 \.\. 5"):
        value_zeroing(IDS, model, zeroed=[6])
    with pytest.raises(SelectionError, match=r"layers has -1"):
        value_zeroing(IDS, model, layers=[-1])
    with pytest.raises(SelectionError, match="No zeroed"):
        value_zeroing(IDS, model, zeroed=["the"])
    with pytest.raises(SelectionError, match="each once"):
        value_zeroing(IDS, model, zeroed=[1, 1])
    with pytest.raises(CaptureError, match="batch_size"):
        value_zeroing(IDS, model, batch_size=0)
    with pytest.raises(CaptureError, match="batch of 2"):
        value_zeroing({"inputs_embeds": torch.zeros(2, 6, 24).double()}, model)


def test_layers_that_are_not_to_be_found_are_refused():
    options = {"embed_dim": 12, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2}
    config = transformers.SwinConfig(image_size=16, patch_size=2, **options)
    model = transformers.SwinModel(config).eval()
    inputs = {"pixel_values": torch.randn(1, 3, 16, 16)}
    with pytest.raises(SelectionError, match="Several stacks"):
        value_zeroing(inputs, model, progress=False)
    stack = "encoder.layers.0.blocks.attention"
    with pytest.raises(CaptureError, match="one sequence"):  # its windows are several
        value_zeroing(inputs, model, progress=False, stack=stack)


# Token by token, or copies of the model


def both_ways(model, inputs, monkeypatch, stack=None, atol=1e-9):
    """Compare token by token with copies of the whole model; say whether copies were not needed."""
    arguments = {"stack": stack, "progress": False}
    ways = []
    by_copies = zeroing._by_copies
    with monkeypatch.context() as patch:
        patch.setattr(zeroing, "_by_copies", lambda *given: ways.append(1) or by_copies(*given))
        found = value_zeroing(inputs, model, **arguments)
        patch.setattr(zeroing, "_by_token", lambda *given: None)
        known = value_zeroing(inputs, model, **arguments)
    np.testing.assert_allclose(found, known, atol=atol)
    assert np.asarray(known).max() > 1e-3
    return len(ways) == 1


SIZES = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4, "vocab_size": 60}
PLAIN = {**SMALL, "norms": True}
MODELS = {
    "Llama": ("ForCausalLM", PLAIN | {"num_key_value_heads": 2}),
    "GPT2": ("LMHeadModel", SMALL_GPT2 | {"norms": True}),
    "Bert": ("ForMaskedLM", PLAIN),
    "Gemma2": ("ForCausalLM", PLAIN | {"num_key_value_heads": 2, "head_dim": 6}),
    "GPTNeoX": ("ForCausalLM", PLAIN),
    "Qwen3": ("ForCausalLM", PLAIN | {"num_key_value_heads": 2, "head_dim": 6}),
}


@pytest.mark.parametrize("kind", list(MODELS))
def test_layers_run_from_their_attention_on(kind, monkeypatch):
    head, sizes = MODELS[kind]
    atol = 1e-6 if kind == "Gemma2" else 1e-9  # its norms compute in float32
    assert both_ways(built(kind, head, **sizes), IDS, monkeypatch, atol=atol)


def test_attention_that_ends_in_a_norm_of_its_own_is_run(monkeypatch):
    model = built("Albert", "ForMaskedLM", **PLAIN, embedding_size=16)
    assert not both_ways(model, IDS, monkeypatch)


def test_an_encoder_runs_from_its_attention_on_and_a_decoder_where_it_can(monkeypatch):
    model = built("T5", "ForConditionalGeneration", norms=True, **SIZES)
    inputs = {"input_ids": torch.tensor([IDS]), "decoder_input_ids": torch.tensor([[0, 7, 9]])}
    assert both_ways(model, inputs, monkeypatch, "encoder")
    both_ways(model, inputs, monkeypatch, "decoder")


class Mixing(torch.nn.Module):
    """An MLP that also moves something between tokens, a little, or by their places."""

    def __init__(self, mlp, how):
        super().__init__()
        self.mlp, self.how = mlp, how

    def forward(self, hidden):
        found = self.mlp(hidden)
        if self.how == "before":
            return found + 1e-3 * hidden.roll(1, 1)
        if self.how == "mean":
            return found + 1e-3 * hidden.mean(1, keepdim=True)
        places = torch.arange(hidden.shape[1], dtype=hidden.dtype)
        return found + 1e-3 * places[:, None]


@pytest.mark.parametrize("how", ["before", "mean", "place"])
def test_layers_that_mix_tokens_elsewhere_run_as_a_whole(how, monkeypatch):
    model = built("GPT2", "LMHeadModel", norms=True, **SMALL_GPT2)
    model.transformer.h[1].mlp = Mixing(model.transformer.h[1].mlp, how)
    assert not both_ways(model, IDS, monkeypatch)


def test_a_hook_that_changes_a_layer_is_run(monkeypatch):
    model = built("GPT2", "LMHeadModel", norms=True, **SMALL_GPT2)
    hook = model.transformer.h[0].mlp.register_forward_hook(lambda m, args, result: 2 * result)
    assert not both_ways(model, IDS, monkeypatch)
    hook.remove()
    assert both_ways(model, IDS, monkeypatch)


def test_nothing_but_what_follows_attention_runs_again(models):
    model, layers, *_ = models["GPT2"]
    sizes = {name: layers[0].get_submodule(name).nf for name in ("attn.c_attn", "mlp.c_fc")}
    rows = dict.fromkeys(sizes, 0)

    def count(module, args, result):
        for name, size in sizes.items():
            if vars(module).get("nf") == size:
                rows[name] += args[0].shape[:-1].numel()

    handle = torch.nn.modules.module.register_module_forward_hook(count)
    value_zeroing(IDS, model, progress=False)
    handle.remove()
    tokens, depth = len(IDS), len(layers)
    pairs = tokens * (tokens + 1) // 2
    assert rows["attn.c_attn"] == 2 * tokens * depth  # once to find the layers, once to run them
    assert rows["mlp.c_fc"] == (2 * tokens + tokens + pairs) * depth
