"""Shared subspaces against planted ones, and against products of vectors seen by hooks."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from small_models import SMALL, built
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import gattn
from gattn.analysis import shared_subspace
from gattn.errors import CaptureError, SelectionError

RANK, DIM, TOKENS, NOISE = 3, 16, 32, 0.7
CLASSES = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.double)] * RANK)


class Planted(nn.Module):
    """One head whose queries are A z + noise, and keys B z + noise, for classes z of tokens."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        some = torch.randn(2, DIM, RANK, generator=generator, dtype=torch.double)
        self.planted = torch.linalg.qr(some).Q

    def vectors(self, x):
        z, *noise = x.split([RANK, DIM, DIM], -1)
        return [z @ one.T + part for one, part in zip(self.planted, noise, strict=True)]

    def forward(self, x):
        query, key = self.vectors(x)
        mixed = scaled_dot_product_attention(query[:, None], key[:, None], x[:, None])
        return x + mixed[:, 0]


def planted(count, seed=0):
    """Make the model, texts as functions, their vectors, and all pairs of tokens as edges."""
    model, generator = Planted(), torch.Generator().manual_seed(seed)
    texts, inputs, tables = [], [], []
    for n in range(count):
        kinds = torch.randint(len(CLASSES), (TOKENS,), generator=generator)
        noise = torch.randn(TOKENS, 2 * DIM, generator=generator, dtype=torch.double)
        x = torch.cat([CLASSES[kinds], NOISE * noise], 1)[None]
        texts.append(lambda x=x: model(x))
        inputs.append(x)
        i, j = (~torch.eye(TOKENS, dtype=torch.bool)).nonzero().T
        rows = {"text_id": n, "query": i, "key": j, "label": kinds[i] == kinds[j]}
        tables.append(pd.DataFrame(rows))
    return model, texts, inputs, pd.concat(tables)


def sine(found, wanted):
    """The sine of the largest angle between two subspaces of the same rank."""
    return float(torch.linalg.matrix_norm(found - wanted @ (wanted.T @ found), ord=2))


def expected_sine(count):
    """How far noise of random matrices turns singular vectors, to first order.

    Products of noise with classes count tokens, those of noise with noise count edges.
    """
    tokens = count / 2 * TOKENS
    positive = tokens * (TOKENS - 1) / len(CLASSES)
    size = (DIM - RANK) ** 0.5 + RANK**0.5
    share = 1 / len(CLASSES)
    products = NOISE / tokens**0.5
    products += NOISE**2 * (1 / positive + share / (1 - share) / positive) ** 0.5
    return products * size * (1 - share)


@pytest.fixture(scope="module")
def found():
    model, texts, inputs, edges = planted(32)
    result = shared_subspace(texts, model, layer=0, head=0, edges=edges, progress=False)
    return model, inputs, edges, result


def test_planted_subspaces_are_found_as_exactly_as_the_sample_allows(found):
    model, _, _, result = found
    assert result.rank == RANK
    for side, wanted in zip((result.query, result.key), model.planted, strict=True):
        assert sine(side, wanted) < 1.3 * expected_sine(32)
    wanted = DIM**-0.5 * len(CLASSES) / (len(CLASSES) - 1)
    limit = 1.3 * expected_sine(32)
    np.testing.assert_allclose(result.singular_values[:RANK], wanted, rtol=limit)
    np.testing.assert_allclose(result.components["held_out"], wanted, rtol=limit)
    assert (result.components["shuffled"] < wanted / 4).all()


def test_angles_halve_with_four_times_the_texts():
    angles = []
    for count in (8, 32):
        model, texts, _, edges = planted(count, seed=1)
        result = shared_subspace(texts, model, layer=0, head=0, edges=edges, progress=False)
        angles.append(sine(result.query, model.planted[0]))
    assert 1.4 < angles[0] / angles[1] < 2.9


def test_separation_is_near_that_of_the_true_subspaces(found):
    model, inputs, edges, result = found
    a, b = model.planted
    numbers, labels = [], []
    for n in range(1, 32, 2):
        query, key = (one[0] for one in model.vectors(inputs[n]))
        rows = edges[edges["text_id"] == n]
        i, j = torch.tensor(rows["query"].to_numpy()), torch.tensor(rows["key"].to_numpy())
        numbers.append(((query @ a @ a.T)[i] * (key @ b @ b.T)[j]).sum(1) / DIM**0.5)
        labels.append(torch.tensor(rows["label"].to_numpy()))
    numbers, labels = torch.cat(numbers), torch.cat(labels)
    difference = numbers[labels].mean() - numbers[~labels].mean()
    held = result.separation.loc["subspace"]
    noise = numbers.std() * (1 / labels.sum()) ** 0.5
    assert held["difference"] == pytest.approx(float(difference), abs=4 * float(noise))
    area = (numbers[labels][:, None] > numbers[~labels]).double().mean()
    assert held["auc"] == pytest.approx(float(area), abs=0.02)
    assert result.separation.loc["rest", "auc"] == pytest.approx(0.5, abs=0.03)
    assert held["shuffled_low"] < 0.5 < held["shuffled_high"] < 0.53


def test_labels_that_say_nothing_find_nothing(found):
    model, texts, _, edges = planted(16)
    labels = edges["label"].to_numpy()
    edges = edges.assign(label=np.random.default_rng(0).permutation(labels))
    result = shared_subspace(texts, model, layer=0, head=0, edges=edges, progress=False)
    assert result.rank == 0
    assert result.components.empty
    assert result.separation.loc["subspace", "auc"] == 0.5
    forced = shared_subspace(texts, model, layer=0, head=0, edges=edges, rank=3, progress=False)
    positive = labels.sum() / 2
    assert forced.separation.loc["subspace", "auc"] == pytest.approx(0.5, abs=2 * positive**-0.5)
    assert (forced.components["held_out"].abs() < forced.components["singular_value"] / 2).all()


def test_picture_shows_singular_values_beside_chance(found):
    result = found[-1]
    ax = result.draw()
    values, held = ax.lines[0].get_ydata(), ax.lines[1].get_ydata()
    np.testing.assert_allclose(values, result.singular_values)
    np.testing.assert_allclose(held[:RANK], result.components["held_out"])
    (band,) = ax.collections
    highest = band.get_paths()[0].vertices[:, 1].max()
    assert highest == pytest.approx(float(result.shuffled.max()))
    assert ax.get_title() == "shared subspace of head 0.0 · rank 3"
    assert "AUC of held-out edges: 0." in " ".join(ax.texts[-1].get_text().split())
    plt.close(ax.figure)


# Beside vectors that hooks see

GROUPED = SMALL | {"num_key_value_heads": 2, "attention_bias": True}
LAYER, HEAD, WIDTH = 1, 3, 6
T5_INPUTS = ("input_ids", "decoder_input_ids")
IDS = np.random.default_rng(0).integers(0, 60, (6, 14)).tolist()


def same_parity(tokens):
    """Call tokens alike whose ids are both even or odd."""
    ids = [int(token) for token in tokens]
    return [(i, j, ids[i] % 2 == ids[j] % 2) for i in range(len(ids)) for j in range(i + 1)]


def vectors_by_hooks(model, ids):
    """Return rotated queries, times the scale, and keys of the head, by the model's own modules."""
    attention, seen = model.model.layers[LAYER].self_attn, {}
    handles = [
        attention.get_submodule(f"{name}_proj").register_forward_hook(
            lambda m, x, y, name=name: seen.update({name: y.detach()})
        )
        for name in "qk"
    ]
    model(torch.tensor([ids]))
    for handle in handles:
        handle.remove()
    query, key = (seen[name].unflatten(-1, (-1, WIDTH)).transpose(1, 2) for name in "qk")
    angles = model.model.rotary_emb(query, torch.arange(len(ids))[None])
    query, key = apply_rotary_pos_emb(query, key, *angles)
    return query[0, HEAD] / WIDTH**0.5, key[0, HEAD // 2]


@pytest.fixture(scope="module")
def llama():
    model = built("Llama", "ForCausalLM", norms=True, **GROUPED).requires_grad_(False)
    with torch.no_grad():
        return model


@pytest.fixture(scope="module")
def parity(llama):
    return shared_subspace(
        IDS, llama, layer=LAYER, head=HEAD, edges=same_parity, rank=2, progress=False
    )


def products(llama, texts):
    """Return q kᵀ of all edges, and their labels."""
    found, labels = [], []
    for ids in texts:
        query, key = vectors_by_hooks(llama, ids)
        i, j, label = (torch.tensor(x) for x in zip(*same_parity(ids), strict=True))
        found.append(query[i][:, :, None] * key[j][:, None])
        labels.append(label)
    return torch.cat(found), torch.cat(labels)


def test_covariances_are_those_of_rotated_grouped_vectors_with_biases(llama, parity):
    each, labels = products(llama, IDS[::2])
    wanted = each[labels].mean(0) - each[~labels].mean(0)
    np.testing.assert_allclose(parity.covariance, wanted, rtol=1e-9, atol=1e-12)
    u, s, vh = np.linalg.svd(wanted.numpy())
    np.testing.assert_allclose(parity.singular_values, s, rtol=1e-9)
    for side, columns in ((parity.query, u[:, :2]), (parity.key, vh[:2].T)):
        np.testing.assert_allclose(side @ side.T, columns @ columns.T, atol=1e-9)
    traces = each.diagonal(dim1=1, dim2=2).sum(1)
    difference = traces[labels].mean() - traces[~labels].mean()
    cosines = np.einsum("ij,ji->j", u, vh)
    assert float(s @ cosines) == pytest.approx(float(difference), rel=1e-9)


def test_held_out_numbers_are_those_of_single_edges(llama, parity):
    each, labels = products(llama, IDS[1::2])
    u, v = parity.query, parity.key
    parts = {
        "subspace": torch.einsum("eab,ac,dc,df,bf->e", each, u, u, v, v),
        "whole": each.diagonal(dim1=1, dim2=2).sum(1),
    }
    parts["rest"] = parts["whole"] - parts["subspace"]
    for name, values in parts.items():
        row = parity.separation.loc[name]
        positive, negative = values[labels], values[~labels]
        higher = (positive[:, None] > negative).double() + (positive[:, None] == negative) / 2
        wanted = positive.mean(), negative.mean(), positive.mean() - negative.mean(), higher.mean()
        shown = row[["positive", "negative", "difference", "auc"]]
        np.testing.assert_allclose(shown, [float(x) for x in wanted], rtol=1e-9)
    contrast = each[labels].mean(0) - each[~labels].mean(0)
    held = torch.einsum("ac,ab,bc->c", u, contrast, v)
    cosine = (u * v).sum(0)
    np.testing.assert_allclose(parity.components["held_out"], held, rtol=1e-9)
    np.testing.assert_allclose(parity.components["cosine"], cosine, rtol=1e-9)
    np.testing.assert_allclose(parity.components["score"], held * cosine, rtol=1e-9)
    for n, area in enumerate(parity.components["auc"]):
        values = torch.einsum("eab,a,b->e", each, u[:, n], v[:, n])
        higher = values[labels][:, None] > values[~labels]
        assert area == pytest.approx(float(higher.double().mean()), rel=1e-9)


def test_components_sum_to_the_scores_of_the_model(llama, parity):
    ids = IDS[1]
    graph = gattn.capture(ids, llama, scores=True)[LAYER, HEAD]
    scores = dict(zip(zip(graph.query, graph.key, strict=True), graph.score, strict=True))
    query, key = vectors_by_hooks(llama, ids)
    for i, j in ((13, 2), (7, 7), (5, 0)):
        why = parity.why(ids, i, j)
        assert why.error < 1e-10
        assert why.table().attrs["total"] == pytest.approx(scores[i, j], rel=1e-6)
        matrix = why.matrix()
        for n in range(2):
            u, v = parity.query[:, n], parity.key[:, n]
            wanted = float((query[i] @ u) * (u @ v) * (v @ key[j]))
            name = f"component {n}"
            one = matrix.sel(query_part=name, key_part=name)
            assert float(one) == pytest.approx(wanted, rel=1e-9)
    assert list(matrix["key_part"].to_numpy()) == ["component 0", "component 1", "rest"]


@pytest.mark.slow
def test_a_survey_gives_edges(llama, tmp_path):
    pytest.importorskip("duckdb")
    texts = [" lamp river tall lamp river tall", " dog cat stone dog cat", " tree tall tree lamp"]
    gattn.survey(texts, out=tmp_path / "survey", keep=gattn.All(), progress=False)
    survey = gattn.open_survey(tmp_path / "survey")
    edges = survey.sql("""
        select e.text_id, e.query, e.key, q.token = k.token as label
        from edges e
        join tokens q on q.text_id = e.text_id and q.position = e.query
        join tokens k on k.text_id = e.text_id and k.position = e.key
        where e.layer = 2 and e.head = 0 and e.stack = 'decoder' and e.query <> e.key
    """)
    options = {"layer": 2, "head": 0, "rank": 1, "progress": False}
    table = shared_subspace(texts, edges=pd.DataFrame(edges), **options)
    kept = {
        n: list(zip(rows["query"], rows["key"], strict=True))
        for n, rows in edges.groupby("text_id")
    }
    order = iter([kept[0], kept[2], kept[1]])

    def by_hand(tokens):
        return [(i, j, tokens[i] == tokens[j]) for i, j in next(order)]

    function = shared_subspace(texts, edges=by_hand, **options)
    np.testing.assert_allclose(table.covariance, function.covariance, atol=1e-12)
    named = dict(zip("abc", texts, strict=True))
    edges["text_id"] = edges["text_id"].map(dict(enumerate("abc")))
    other = shared_subspace(named, edges=pd.DataFrame(edges), **options)
    np.testing.assert_allclose(table.covariance, other.covariance, atol=1e-12)


@pytest.mark.slow
def test_induction_heads_share_what_came_before():
    """Keys that follow the query's token, beside others near them: layer 0 cannot tell which."""
    generator, texts = np.random.default_rng(0), []
    words = ["river", "tall", "green", "lamp", "stone", "dog", "cat", "house", "road", "tree"]
    for _ in range(24):
        one, other = (generator.permutation(words).tolist() for _ in range(2))
        twice = 2 * one[: generator.integers(4, 9)]
        texts.append(" ".join(["The", *other[: generator.integers(4)], *twice, *other[-3:]]))

    def follows(tokens):
        for i, token in enumerate(tokens):
            after = {j for j in range(1, i) if tokens[j - 1] == token}
            near = {j + n for j in after for n in (-2, -1, 1, 2)} - after
            yield from ((i, j, j in after) for j in sorted(after | near) if 0 < j < i)

    found, early = (
        shared_subspace(texts, layer=layer, head=0, edges=follows, progress=False)
        for layer in (2, 0)
    )
    held = found.separation
    assert held.loc["subspace", "auc"] > 0.9
    assert held.loc["subspace", "difference"] > 0.75 * held.loc["whole", "difference"]
    assert held.loc["subspace", "shuffled_high"] < 0.6
    assert 2 <= found.rank <= 8
    first = found.components.iloc[0]
    assert first["held_out"] == pytest.approx(first["singular_value"], rel=0.2)
    assert early.rank == 0


def test_soft_caps_and_biases_are_told(llama):
    options = GROUPED | {"head_dim": WIDTH, "attn_logit_softcapping": 3.0}
    gemma = built("Gemma2", "ForCausalLM", **options).requires_grad_(False)
    found = shared_subspace(IDS, gemma, layer=1, head=0, edges=same_parity, rank=1, progress=False)
    assert found.notes == ["scores are those before the soft cap of 3"]
    with gattn.edited(llama, gattn.Scale(0.5, layer=0, head=0)):
        edited = shared_subspace(
            IDS, llama, layer=1, head=3, edges=same_parity, rank=1, progress=False
        )
    assert len(edited.components.attrs["edits"]) == 1


def test_each_stack_of_an_encoder_and_a_decoder_has_its_own():
    config = transformers.T5Config(
        vocab_size=60, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4
    )
    config.decoder_start_token_id = 0
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    texts = [{name: torch.tensor([ids]) for name in T5_INPUTS} for ids in IDS]
    options = {"layer": 1, "head": 2, "edges": same_parity, "rank": 2, "progress": False}
    for stack in ("encoder", "decoder"):
        found = shared_subspace(texts, model, stack=stack, **options)
        assert found.notes == ["what the model adds to scores by position is left out"]
        graph = gattn.capture(texts[0], model, scores=True).stacks[stack][1, 2]
        scores = dict(zip(zip(graph.query, graph.key, strict=True), graph.score, strict=True))
        why = found.why(texts[0], 10, 3)
        assert why.table().attrs["total"] == pytest.approx(scores[10, 3], rel=1e-6)
        assert why.notes == []
    with pytest.raises(SelectionError, match="several stacks"):
        shared_subspace(texts, model, **options)


def test_half_precision_is_read_as_it_is(llama, parity):
    half = built("Llama", "ForCausalLM", norms=True, **GROUPED).to(torch.bfloat16)
    found = shared_subspace(
        IDS, half, layer=LAYER, head=HEAD, edges=same_parity, rank=2, progress=False
    )
    largest = float(parity.covariance.abs().max())
    np.testing.assert_allclose(found.covariance, parity.covariance, atol=0.1 * largest)


def test_what_it_does_not_take(llama):
    def find(edges=same_parity, texts=IDS, layer=LAYER, head=HEAD, **options):
        return shared_subspace(
            texts, llama, layer=layer, head=head, edges=edges, progress=False, **options
        )

    for one in ("one text", {"input_ids": IDS[0]}, iter(IDS)):
        with pytest.raises(SelectionError, match="several texts"):
            find(texts=one)
    with pytest.raises(SelectionError, match=r"No layer 3; the model has layers 0 \.\. 2"):
        find(layer=3)
    with pytest.raises(SelectionError, match=r"No head 4; layer 1 has heads 0 \.\. 3"):
        find(head=4)
    with pytest.raises(SelectionError, match="No stack 'encoder'"):
        find(stack="encoder")
    with pytest.raises(SelectionError, match="function that takes a text's tokens"):
        find([(0, 1, True)])
    with pytest.raises(SelectionError, match="no edge from the key 5 to the query 2"):
        find(lambda tokens: [(2, 5, True), (2, 1, False)])
    with pytest.raises(SelectionError, match=r"tokens 0 \.\. 13, but an edge has the query 14"):
        find(lambda tokens: [(14, 5, True)])
    with pytest.raises(SelectionError, match="label each edge once"):
        find(lambda tokens: [(3, 1, True), (3, 1, False)])
    with pytest.raises(SelectionError, match="A label is True"):
        find(lambda tokens: [(3, 1, 2)])
    with pytest.raises(SelectionError, match="is no whole number"):
        find(lambda tokens: [(3, 1.5, True)])
    with pytest.raises(SelectionError, match="rows \\(query, key, label\\)"):
        find(lambda tokens: [(3, 1)])
    with pytest.raises(SelectionError, match="no 'label'"):
        find(lambda tokens: {"query": [3], "key": [1]})
    with pytest.raises(SelectionError, match="has 3 positive and 0 negative edges"):
        find(lambda tokens: [(3, 1, True)])
    with pytest.raises(SelectionError, match="this has no 'text_id'"):
        find(pd.DataFrame({"query": [3], "key": [1], "label": [True]}))
    with pytest.raises(SelectionError, match="edges of the text_id 9, but no such text"):
        find(pd.DataFrame({"text_id": [9], "query": [3], "key": [1], "label": [True]}))
    with pytest.raises(SelectionError, match="rank must be a whole number from 1 to 6"):
        find(rank=7)
    swap = gattn.Swap(layer=LAYER, head=HEAD, weight=gattn.ScaledDotProduct(0.1))
    with gattn.edited(llama, swap), pytest.raises(CaptureError, match="not the products"):
        find()
