"""Composition scores against products of whole matrices, read from parameters by hand."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import transformers
from small_models import SMALL, SMALL_GPT2, built
from torch.utils.flop_counter import FlopCounterMode

import gattn
from gattn.errors import CaptureError, ModelError, SelectionError
from gattn.models.decompose.linear_runs import LinearRuns

WIDTH, HEADS, DIM = 24, 4, 6
TOLERANCES = {"Gemma2": 1e-6}  # Its norms compute in single precision.


def gpt2_by_hand(model):
    """W_Q, W_K, W_V as (heads, WIDTH, DIM) and W_O as (heads, DIM, WIDTH), of each layer."""
    for layer in model.transformer.h:
        gain = layer.ln_1.weight[:, None]
        fused = gain * layer.attn.c_attn.weight
        fused = fused - fused.mean(0)
        q, k, v = (x.unflatten(1, (HEADS, DIM)).transpose(0, 1) for x in fused.chunk(3, 1))
        output = layer.attn.c_proj.weight
        output = output - output.mean(1, keepdim=True)
        yield q, k, v, output.unflatten(0, (HEADS, DIM))


def llama_by_hand(layers, plus=0.0, after=None):
    """As `gpt2_by_hand`, of models with grouped keys; `plus` is added to the gains of norms."""
    for layer in layers:
        gain = layer.input_layernorm.weight + plus
        maps = []
        for name in "qkv":
            weight = layer.self_attn.get_submodule(f"{name}_proj").weight * gain
            heads = weight.unflatten(0, (-1, DIM)).mT
            maps.append(heads.repeat_interleave(HEADS // len(heads), 0))
        output = layer.self_attn.o_proj.weight
        if after is not None:
            output = output * (layer.get_submodule(after).weight + plus)[:, None]
        yield *maps, output.T.unflatten(0, (HEADS, DIM))


def neox_by_hand(model):
    """As `gpt2_by_hand`: the queries, keys and values of each head lie side by side."""
    for layer in model.gpt_neox.layers:
        gain = layer.input_layernorm.weight
        fused = layer.attention.query_key_value.weight * gain
        fused = (fused - fused.mean(1, keepdim=True)).unflatten(0, (HEADS, 3, DIM))
        output = layer.attention.dense.weight.T
        output = output - output.mean(1, keepdim=True)
        yield *fused.mT.unbind(1), output.unflatten(0, (HEADS, DIM))


def bert_by_hand(model):
    """As `gpt2_by_hand`: a post-norm model, whose layers read what the last norm gave."""
    for layer in model.bert.encoder.layer:
        own, output = layer.attention.self, layer.attention.output.dense.weight.T
        maps = [x.weight.unflatten(0, (HEADS, DIM)).mT for x in (own.query, own.key, own.value)]
        yield *maps, output.unflatten(0, (HEADS, DIM))


def phi3_by_hand(model):
    """As `gpt2_by_hand`: queries, keys and values are one projection, with grouped keys."""
    for layer in model.model.layers:
        fused = layer.self_attn.qkv_proj.weight * layer.input_layernorm.weight
        parts = fused.split([24, 12, 12])
        heads = [x.unflatten(0, (-1, DIM)).mT for x in parts]
        maps = [x.repeat_interleave(HEADS // len(x), 0) for x in heads]
        yield *maps, layer.self_attn.o_proj.weight.T.unflatten(0, (HEADS, DIM))


def norm(matrix):
    return float(torch.linalg.norm(matrix))


def dense(layers):
    """Score all pairs by matrices of WIDTH x WIDTH, with vectors as rows."""
    layers = [[x.detach() for x in layer] for layer in layers]
    found = {}
    for n, (q, k, v, o) in enumerate(layers):
        for m, (_, _, value, output) in enumerate(layers[:n]):
            for h in range(HEADS):
                for g in range(HEADS):
                    qk, ov, writes = q[h] @ k[h].T, v[h] @ o[h], value[g] @ output[g]
                    found[n, h, m, g] = [
                        norm(writes @ qk) / norm(writes) / norm(qk),
                        norm(writes @ qk.T) / norm(writes) / norm(qk),
                        norm(writes @ ov) / norm(writes) / norm(ov),
                    ]
    return dict(sorted(found.items()))


GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": DIM}


@pytest.mark.parametrize(
    ("kind", "model_class", "options", "by_hand"),
    [
        ("GPT2", "LMHeadModel", SMALL_GPT2, gpt2_by_hand),
        ("Llama", "ForCausalLM", GROUPED, lambda m: llama_by_hand(m.model.layers)),
        (
            "Gemma2",
            "ForCausalLM",
            GROUPED,
            lambda m: llama_by_hand(m.model.layers, 1.0, "post_attention_layernorm"),
        ),
        ("GPTNeoX", "ForCausalLM", SMALL, neox_by_hand),
        ("Bert", "ForMaskedLM", SMALL, bert_by_hand),
        (
            "Phi3",
            "ForCausalLM",
            SMALL | {"num_key_value_heads": 2, "pad_token_id": 0},
            phi3_by_hand,
        ),
    ],
)
def test_scores_are_those_of_whole_matrices(kind, model_class, options, by_hand):
    model = built(kind, model_class, norms=True, **options)
    scores = gattn.compose(model, progress=False)
    wanted = dense(by_hand(model))
    assert list(scores.index) == list(wanted)
    assert scores.index.names == ["layer", "head", "from_layer", "from_head"]
    found = scores[["query", "key", "value"]]
    np.testing.assert_allclose(found, list(wanted.values()), rtol=TOLERANCES.get(kind, 1e-10))


def test_norms_of_queries_and_keys_keep_their_gain():
    model = built("Qwen3", "ForCausalLM", norms=True, **GROUPED)

    def normed(layers):
        for layer, (q, k, v, o) in zip(model.model.layers, layers, strict=True):
            yield q * layer.self_attn.q_norm.weight, k * layer.self_attn.k_norm.weight, v, o

    wanted = dense(normed(llama_by_hand(model.model.layers)))
    scores = gattn.compose(model, progress=False)
    np.testing.assert_allclose(scores[["query", "key", "value"]], list(wanted.values()), rtol=1e-10)


@pytest.mark.parametrize(
    ("kind", "options"), [("Llama", GROUPED), ("Mixtral", GROUPED), ("GPTNeoX", SMALL)]
)
def test_only_what_queries_keys_and_values_take_is_computed(kind, options):
    """No MLP, expert, output projection or logits: 2 x rows x inputs x outputs of projections."""
    model = built(kind, "ForCausalLM", **options).float()
    runs = LinearRuns(model)
    rows = runs.random(64, WIDTH)
    with FlopCounterMode(display=False) as counted:
        runs.layers(rows)
    groups = options.get("num_key_value_heads", HEADS)
    projections = 2 * 64 * WIDTH * DIM * (HEADS + 2 * groups)
    attention = 4 * 64 * HEADS * DIM
    assert projections <= counted.get_total_flops() / 3 <= projections + 3 * attention


def test_planted_composition_is_found():
    """The keys of head 2.3 read only what head 0.1 writes, and nothing reads what 1.2 writes."""
    model = built("Llama", "ForCausalLM", **SMALL)
    layers = model.model.layers
    with torch.no_grad():
        written = layers[0].self_attn.o_proj.weight[:, DIM : 2 * DIM]
        layers[2].self_attn.k_proj.weight[3 * DIM :] = written.T
        layers[1].self_attn.o_proj.weight[:, 2 * DIM : 3 * DIM] = 0
    scores = gattn.compose(model, progress=False)
    assert scores["key"].idxmax() == (2, 3, 0, 1)
    assert scores["key"].max() > 1.8 * scores["key"].nlargest(2).iloc[1]
    assert not scores.xs((1, 2), level=("from_layer", "from_head")).to_numpy().any()


def test_baseline_is_that_of_random_matrices():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 2000, 24, 24, generator=generator, dtype=torch.float64)
    ratios = (a @ b).square().sum((1, 2)) / a.square().sum((1, 2)) / b.square().sum((1, 2))
    llama = gattn.compose(built("Llama", "ForCausalLM", **SMALL), progress=False)
    assert llama.attrs["baseline"] == pytest.approx(float(ratios.mean()) ** 0.5, rel=0.01)
    gpt2 = gattn.compose(built("GPT2", "LMHeadModel", **SMALL_GPT2), progress=False)
    assert gpt2.attrs["baseline"] == pytest.approx(23**-0.5)


def test_induction_heads_of_the_embedded_model_read_the_previous_token_head():
    scores = gattn.compose(progress=False)
    assert set(scores["key"].nlargest(2).index) == {(2, 0, 1, 1), (2, 1, 1, 1)}
    assert scores["key"].nlargest(2).min() > 2.7 * scores.attrs["baseline"]


def test_what_it_does_not_take():
    one = built("Llama", "ForCausalLM", **SMALL | {"num_hidden_layers": 1})
    with pytest.raises(CaptureError, match="one layer"):
        gattn.compose(one)
    t5 = transformers.T5Config(
        vocab_size=60, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4
    )
    t5.decoder_start_token_id = 0
    model = transformers.T5ForConditionalGeneration(t5).double().eval()
    with pytest.raises(SelectionError, match="several stacks"):
        gattn.compose(model)
    assert len(gattn.compose(model, stack="decoder", progress=False)) == 16
    vit = transformers.ViTConfig(hidden_size=24, num_attention_heads=4, num_hidden_layers=2)
    with pytest.raises(CaptureError, match="model of text"):
        gattn.compose(transformers.ViTModel(vit).eval())
    with pytest.raises(ModelError, match="training mode"):
        gattn.compose(built("GPT2", "LMHeadModel", **SMALL_GPT2).train())
    squared = built("Llama", "ForCausalLM", **SMALL)
    squared.model.layers[1].self_attn.k_proj.register_forward_hook(lambda m, x, y: y.square())
    with pytest.raises(CaptureError, match=r"keys of model\.layers\.1\.self_attn are not a linear"):
        gattn.compose(squared)


def test_picture_has_a_row_for_each_reader():
    pairs = gattn.compose(progress=False)
    ax = pairs.draw("value")
    assert [x.get_text() for x in ax.get_yticklabels()][:2] == ["1.0", "1.1"]
    drawn = np.ma.filled(ax.images[0].get_array().astype(float), np.nan)
    assert drawn.shape == (12, 12)
    assert drawn[4, 5] == pytest.approx(pairs.loc[(2, 0, 1, 1), "value"])
    assert np.isnan(drawn[:4, 4:]).all()
    assert np.isfinite(drawn[4:, :8]).all()
    assert "V-composition" in ax.get_title()
    with pytest.raises(SelectionError, match="side is one of"):
        pairs.draw("output")


def test_other_threads_run_the_model_as_it_is(tiny):
    model = tiny("gpt2")
    ids = torch.tensor([[5, 17, 42, 17, 8, 33, 59, 3, 21]])
    with torch.no_grad():
        plain = model(ids).logits
    ended = threading.Event()

    def compositions():
        try:
            for _ in range(3):
                gattn.compose(model, progress=False)
        finally:
            ended.set()

    with ThreadPoolExecutor(1) as pool, torch.no_grad():
        running = pool.submit(compositions)
        while not ended.is_set():
            assert torch.equal(model(ids).logits, plain)
        running.result()


def test_edits_that_are_open_do_not_change_weights(gpt2):
    expected = gattn.compose(gpt2, progress=False)
    edits = gattn.Without("0.1", layer=1), gattn.Cut(layer=0, head=1)
    with gattn.edited(gpt2, *edits):
        found = gattn.compose(gpt2, progress=False)
        gattn.capture([5, 17, 42], gpt2)
    assert found.equals(expected)
