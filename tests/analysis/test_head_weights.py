"""QK and OV circuits against whole matrices, and against what models compute, in float64."""

import numpy as np
import pytest
import torch
import transformers
from small_models import IDS, SMALL, SMALL_GPT2, built
from torch.nn.functional import layer_norm

import gattn
from gattn.analysis import weight_table
from gattn.analysis.from_weights.factored import FactoredMatrix
from gattn.errors import CaptureError, ContractError, ModelError, SelectionError

GROUPED = SMALL | {"num_key_value_heads": 2}
EXACT = {"rtol": 1e-9, "atol": 1e-12}


@pytest.fixture(scope="module")
def llama():
    return built("Llama", "ForCausalLM", norms=True, **GROUPED).requires_grad_(False)


@pytest.fixture(scope="module")
def gpt2():
    return built("GPT2", "LMHeadModel", norms=True, **SMALL_GPT2).requires_grad_(False)


@pytest.fixture(scope="module")
def weights(llama):
    return gattn.head_weights(llama, layer=1, head=3)


def folded_gpt2(model, layer, head):
    """W_Q, W_K, W_V (24, 6) and W_O (6, 24) of a head, gain and mean of the norm included."""
    block = model.transformer.h[layer]
    fused = block.ln_1.weight[:, None] * block.attn.c_attn.weight
    fused = fused - fused.mean(0)
    own = slice(6 * head, 6 * head + 6)
    output = block.attn.c_proj.weight[own]
    maps = [one[:, own] for one in fused.chunk(3, 1)]
    return *maps, output - output.mean(1, keepdim=True)


def share(values):
    return float(values.real.sum() / values.abs().sum())


def test_circuits_are_products_of_folded_weights(gpt2):
    found = gattn.head_weights(gpt2, layer=2, head=1)
    q, k, v, o = folded_gpt2(gpt2, 2, 1)
    np.testing.assert_allclose(found.qk.to_dense(), q @ k.T / 6**0.5, **EXACT)
    np.testing.assert_allclose(found.ov.to_dense(), v @ o, **EXACT)
    assert found.qk.shape == (24, 24)
    assert found.qk.rank == 6


def test_scores_are_those_of_the_model_at_every_distance(llama):
    """Without biases, a score is that of the circuit over the two norms' root mean squares."""
    trace = gattn.capture(IDS, llama, scores=True)
    stream = llama.model.embed_tokens(torch.tensor(IDS))
    size = (stream.square().mean(1) + llama.config.rms_norm_eps).sqrt()
    graph = trace[0, 2]
    scores = dict(zip(zip(graph.query, graph.key, strict=True), graph.score, strict=True))
    for distance in range(4):
        circuit = gattn.head_weights(llama, layer=0, head=2, distance=distance).qk.to_dense()
        for key in range(len(IDS) - distance):
            query = key + distance
            wanted = stream[query] @ circuit @ stream[key] / size[query] / size[key]
            assert scores[query, key] == pytest.approx(float(wanted), rel=1e-6, abs=1e-7)


def test_vocabulary_is_what_tokens_put_into_the_stream(gpt2, llama):
    of_gpt2 = gattn.head_weights(gpt2, layer=0, head=0).vocabulary.vectors
    np.testing.assert_allclose(of_gpt2, gpt2.transformer.wte.weight, **EXACT)
    gemma = built("Gemma2", "ForCausalLM", **GROUPED, head_dim=6).requires_grad_(False)
    of_gemma = gattn.head_weights(gemma, layer=0, head=0).vocabulary.vectors
    np.testing.assert_allclose(of_gemma, gemma.model.embed_tokens.weight * 24**0.5, rtol=1e-6)
    bert = built("Bert", "ForMaskedLM", norms=True, **SMALL).requires_grad_(False)
    words, norm = bert.bert.embeddings.word_embeddings.weight, bert.bert.embeddings.LayerNorm
    wanted = (words - words.mean(1, keepdim=True)) * norm.weight
    of_bert = gattn.head_weights(bert, layer=0, head=0)
    np.testing.assert_allclose(of_bert.vocabulary.vectors, wanted, **EXACT)
    assert of_bert.notes == (
        "norms of the residual stream itself, between the layers, are left out",
    )


def test_top_pairs_are_the_largest_of_the_whole_circuit(llama, weights, monkeypatch):
    embedded = llama.model.embed_tokens.weight
    whole = (embedded @ weights.qk.to_dense() @ embedded.T).flatten()
    best = whole.topk(70)
    for numbers in (1 << 24, 200):  # all at once, and three queries at a time
        monkeypatch.setattr("gattn.analysis.from_weights.factored._ENTRIES", numbers)
        found = weights.top_pairs(70)
        np.testing.assert_allclose(found["score"], best.values, **EXACT)
        assert (found["query_id"] * 60 + found["key_id"]).tolist() == best.indices.tolist()
    assert found["key"].tolist() == found["key_id"].map(str).tolist()
    read = llama.lm_head.weight * llama.model.norm.weight
    writes = (embedded @ weights.ov.to_dense() @ read.T).argmax(1)
    assert found["writes"].tolist() == [str(int(writes[n])) for n in found["key_id"]]


def test_writes_are_the_rows_of_the_whole_circuit(llama, weights):
    embedded, unembedding = llama.model.embed_tokens.weight, llama.lm_head.weight
    read = unembedding * llama.model.norm.weight
    whole = embedded @ weights.ov.to_dense() @ read.T
    best = whole[17].topk(5)
    found = weights.writes(17, 5)
    np.testing.assert_allclose(found["logit"], best.values, rtol=1e-6)
    assert found["id"].tolist() == best.indices.tolist()
    assert weights.copying == pytest.approx(share(torch.linalg.eigvals(whole)), rel=1e-6)


def test_matching_is_a_share_of_eigenvalues(llama, weights):
    embedded = llama.model.embed_tokens.weight
    values = torch.linalg.eigvals(embedded @ weights.qk.to_dense() @ embedded.T)
    assert weights.matching == pytest.approx(share(values), rel=1e-9)
    earlier = gattn.head_weights(llama, layer=0, head=1)
    through = weights.reading(earlier)
    whole = weights.qk.to_dense() @ earlier.ov.to_dense().T
    np.testing.assert_allclose(through.qk.to_dense(), whole, **EXACT)
    values = torch.linalg.eigvals(embedded @ whole @ embedded.T)
    assert through.matching == pytest.approx(share(values), rel=1e-9)
    with pytest.raises(SelectionError, match=r"earlier layers of the same model, not 1\.3"):
        earlier.reading(weights)


def test_planted_heads_copy_and_match(llama):
    """A head whose values are what logits read raises the logits of what it attends to."""
    model = built("Llama", "ForCausalLM", **GROUPED).requires_grad_(False)
    attention = model.model.layers[1].self_attn
    model.lm_head.weight.copy_(model.model.embed_tokens.weight)
    attention.o_proj.weight[:, 6:12] = attention.v_proj.weight[:6].T
    attention.k_proj.weight[:6] = attention.q_proj.weight[6:12]
    found = gattn.head_weights(model, layer=1, head=1)
    assert found.copying == pytest.approx(1, abs=1e-9)
    assert found.matching == pytest.approx(1, abs=1e-9)
    attention.o_proj.weight[:, 6:12] *= -1
    assert gattn.head_weights(model, layer=1, head=1).copying == pytest.approx(-1, abs=1e-9)
    table = weight_table(model, progress=False)
    assert table["copying"].idxmin() == table["matching"].idxmax() == (1, 1)


def test_nearest_reads_a_direction(llama, weights):
    direction = weights.qk.svd()[0][:, 0]
    best = (llama.model.embed_tokens.weight @ direction).topk(3)
    found = weights.nearest(direction, 3)
    assert found["id"].tolist() == best.indices.tolist()
    np.testing.assert_allclose(found["product"], best.values, **EXACT)


def test_factored_matrices_are_the_dense_ones():
    generator = torch.Generator().manual_seed(0)
    a, b, c = (
        FactoredMatrix(left, right.T)
        for left, right in torch.randn(3, 2, 9, 4, generator=generator, dtype=torch.float64)
    )
    dense = a.to_dense()
    np.testing.assert_allclose((a @ b @ c.T).to_dense(), dense @ b.to_dense() @ c.to_dense().T)
    np.testing.assert_allclose((dense.T @ b).to_dense(), dense.T @ b.to_dense())
    np.testing.assert_allclose((b @ dense).to_dense(), b.to_dense() @ dense)
    np.testing.assert_allclose(a.singular_values(), torch.linalg.svdvals(dense)[:4])
    assert a.norm() == pytest.approx(float(torch.linalg.norm(dense)))
    u, s, vh = a.svd()
    np.testing.assert_allclose(u @ torch.diag(s) @ vh, dense, atol=1e-12)
    np.testing.assert_allclose(u.T @ u, torch.eye(4), atol=1e-12)
    values = torch.linalg.eigvals(dense)
    largest = values[values.abs().argsort(descending=True)][:4]
    np.testing.assert_allclose(
        np.sort_complex(a.eigenvalues().numpy()), np.sort_complex(largest.numpy()), atol=1e-10
    )
    assert repr(a) == "FactoredMatrix(9 x 9, rank 4)"


def test_previous_tokens_are_what_positions_alone_attend_to(gpt2):
    table = weight_table(gpt2, progress=False)
    stream = gpt2.transformer.wte.weight.mean(0) + gpt2.transformer.wpe.weight
    for layer, block in enumerate(gpt2.transformer.h):
        normed = layer_norm(stream, (24,), block.ln_1.weight, block.ln_1.bias, block.ln_1.eps)
        q, k, _ = block.attn.c_attn(normed).unflatten(1, (3, 4, 6)).permute(1, 2, 0, 3)
        scores = (q @ k.mT / 6**0.5).masked_fill(~torch.ones(32, 32).tril().bool(), -torch.inf)
        wanted = scores.softmax(-1).diagonal(-1, 1, 2).mean(1)
        np.testing.assert_allclose(table.loc[layer, "previous_token"], wanted, rtol=1e-9)


def test_induction_is_composition_with_previous_token_heads(gpt2):
    table, pairs = weight_table(gpt2, progress=False), gattn.compose(gpt2, progress=False)
    before = table["previous_token"].rename_axis(["from_layer", "from_head"])
    wanted = (pairs["key"] * before).groupby(["layer", "head"]).max()
    assert table.loc[0, "induction"].isna().all()
    np.testing.assert_allclose(table.loc[1:, "induction"], wanted, rtol=1e-9)


def test_embedded_model_has_the_heads_that_its_texts_show():
    table = weight_table(progress=False)
    assert table["previous_token"].idxmax() == (1, 1)
    assert table.loc[(1, 1), "previous_token"] > 0.95
    best = table["induction"].nlargest(4)
    assert list(best.index) == [(2, 0), (2, 1), (3, 3), (3, 2)]
    assert (table.loc[best.index, "copying"] > 0.6).all()
    assert table["induction"].nlargest(5).iloc[-1] < best.min() / 2


def test_words_are_found_by_their_text():
    found = gattn.head_weights(layer=2, head=1).writes(" lamp", 1)
    by_id = gattn.head_weights(layer=2, head=1).writes(1508, 1)
    assert found.equals(by_id)
    with pytest.raises(SelectionError, match=r"tokens, .*: expected one"):
        gattn.head_weights(layer=2, head=1).writes("Constantinople")


def test_what_it_does_not_take(llama, weights):
    with pytest.raises(SelectionError, match=r"No layer 3; the model has layers 0 \.\. 2"):
        gattn.head_weights(llama, layer=3, head=0)
    with pytest.raises(SelectionError, match=r"No head 4; layer 1 has heads 0 \.\. 3"):
        gattn.head_weights(llama, layer=1, head=4)
    with pytest.raises(ContractError, match="distance must be a whole number"):
        gattn.head_weights(llama, layer=1, head=0, distance=-1)
    with pytest.raises(ContractError, match="distance must be a whole number from 0 to 31, not 32"):
        gattn.head_weights(llama, layer=1, head=0, distance=32)
    with pytest.raises(SelectionError, match=r"No token 60; the model has 0 \.\. 59"):
        weights.writes(60)
    with pytest.raises(ModelError, match="needs tokenizer="):
        weights.writes("lamp")


def test_models_without_linear_logits_have_no_copying(llama):
    bare = gattn.head_weights(llama.model, layer=0, head=0)
    with pytest.raises(CaptureError, match="has no logits"):
        bare.writes(3)
    masked = built("Bert", "ForMaskedLM", norms=True, **SMALL)
    with pytest.raises(CaptureError, match="no linear function"):
        gattn.head_weights(masked, layer=0, head=0).writes(3)
    pairs = gattn.head_weights(masked, layer=0, head=0).top_pairs(3)
    assert list(pairs) == ["query", "key", "query_id", "key_id", "score"]
    assert pairs.notes[-1].startswith("no column of what the head writes: The logits are no linear")
    table = weight_table(masked, progress=False)
    assert table["copying"].isna().all()
    assert any("no copying" in note for note in table.notes)


def test_relative_biases_are_told():
    config = transformers.T5Config(
        vocab_size=60, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4
    )
    config.decoder_start_token_id = 0
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    found = gattn.head_weights(model, layer=1, head=0, stack="encoder")
    assert found.notes == ("the model adds numbers of pairs of positions to the scores",)
    with pytest.raises(CaptureError, match="no logits of the encoder stack"):
        found.writes(3)
    decoder = gattn.head_weights(model, layer=1, head=0, stack="decoder")
    np.testing.assert_allclose(decoder.vocabulary.vectors, model.shared.weight.detach(), **EXACT)
    whole = model.shared.weight @ decoder.ov.to_dense() @ model.lm_head.weight.T
    assert decoder.copying == pytest.approx(share(torch.linalg.eigvals(whole.detach())), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions_give_nearly_the_same(gpt2, dtype):
    rounded = built("GPT2", "LMHeadModel", norms=True, **SMALL_GPT2).to(dtype)
    size = {torch.float32: 1e-4, torch.bfloat16: 0.05}[dtype]
    one, other = (gattn.compose(x, progress=False) for x in (gpt2, rounded))
    np.testing.assert_allclose(one, other, atol=size / 10)
    assert one.attrs["baseline"] == other.attrs["baseline"]
    one, other = (weight_table(x, progress=False) for x in (gpt2, rounded))
    np.testing.assert_allclose(one["copying"], other["copying"], atol=size)
    np.testing.assert_allclose(one["matching"], other["matching"], atol=size)
    assert other.notes == []


def test_edits_change_no_weights_and_are_told(gpt2):
    plain, pairs = weight_table(gpt2, progress=False), gattn.compose(gpt2, progress=False)
    with gattn.edited(gpt2, gattn.Cut(layer=1, head=2)):
        gpt2(torch.tensor([IDS]))
        edited = weight_table(gpt2, progress=False)
        assert gattn.compose(gpt2, progress=False).equals(pairs)
    assert edited.loc[(1, 2), "previous_token"] != plain.loc[(1, 2), "previous_token"]
    assert edited[["copying", "matching"]].equals(plain[["copying", "matching"]])
    assert len(edited.attrs["edits"]) == 1


def test_models_that_hash_their_tokens_are_refused():
    config = transformers.CanineConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40
    )
    with pytest.raises(CaptureError, match="no one table of embeddings"):
        gattn.head_weights(transformers.CanineModel(config).eval(), layer=0, head=0)
