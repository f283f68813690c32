"""Scores by features and by source tokens, held to dense algebra in double precision."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import gattn
from benchmarks import zoo
from gattn.analysis.scores.pairs import Pairs
from gattn.errors import SelectionError, ShapeError

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]


@pytest.fixture
def gpt2(tiny):
    return tiny("gpt2", dtype=torch.float64)


def before_layer_1(model):
    with torch.no_grad():
        run = model(torch.tensor([IDS]), output_hidden_states=True)
    return run.hidden_states[1][0]


def sides_by_hand(model, parts, head):
    """What parts (parts, tokens, dim) give of queries, times the scale, and keys of layer 1."""
    block, config = model.transformer.h[1], model.config
    total = before_layer_1(model)
    deviation = (total.var(-1, unbiased=False) + block.ln_1.eps).sqrt()[:, None]
    normed = (parts - parts.mean(-1, keepdim=True)) / deviation * block.ln_1.weight
    q, k, _ = (normed @ block.attn.c_attn.weight).split(config.n_embd, dim=-1)
    q, k = (x.unflatten(-1, (config.n_head, -1))[:, :, head].detach() for x in (q, k))
    return q * q.shape[-1] ** -0.5, k


def drawn(model, features=200, active=0.05):
    generator = torch.Generator().manual_seed(0)
    width = model.config.n_embd
    directions = torch.randn(features, width, generator=generator, dtype=torch.double)
    numbers = torch.rand(len(IDS), features, generator=generator, dtype=torch.double)
    return directions, numbers * (numbers < active)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_a_table_of_pairs_of_features(gpt2, layout):
    """Of one edge, only features that are active at its ends are listed, with an error."""
    directions, active = drawn(gpt2)
    given = active.to_sparse() if layout == "sparse" else active
    features = gattn.Features(directions, given)
    found = gattn.why(IDS, gpt2, layer=1, head=1, query=7, key=3, parts=features)
    assert found.queries.is_sparse
    parts = active.T[..., None] * directions[:, None]
    error = before_layer_1(gpt2) - parts.sum(0)
    q, k = sides_by_hand(gpt2, torch.cat([error[None], parts]), 1)
    expected = torch.einsum("ad,bd->ab", q[:, 7], k[:, 3])
    names = ["error", *(f"feature {n}" for n in range(len(parts)))]
    matrix = found.matrix()
    query, key = (matrix[name].to_numpy().tolist() for name in ("query_part", "key_part"))
    assert query[1:-1] == [f"feature {n}" for n in active[7].nonzero().flatten().tolist()]
    assert key[1:-1] == [f"feature {n}" for n in active[3].nonzero().flatten().tolist()]
    assert len(query) > 3
    wanted = expected[[names.index(n) for n in query[:-1]]][:, [names.index(n) for n in key[:-1]]]
    np.testing.assert_allclose(matrix[:-1, :-1], wanted, atol=1e-9)
    table = found.table()
    assert table["score"].sum() == pytest.approx(float(found.scores[7, 3]), abs=1e-9)
    assert len(table) == matrix.size


@pytest.mark.parametrize("asked", [{}, {"query": [2, 8]}, {"query": 8, "key": [1, 4]}])
@pytest.mark.parametrize("contrast", [None, 0])
def test_whole_heads_are_summed_in_blocks(gpt2, monkeypatch, asked, contrast):
    directions, active = drawn(gpt2)
    found = gattn.why(IDS, gpt2, layer=1, head=1, parts=gattn.Features(directions, active), **asked)
    q, k = (x.to_dense() for x in (found.queries, found.keys))
    counted = found.counted(contrast)
    dense = torch.einsum("aid,ij,bjd->ab", q, counted, k)
    monkeypatch.setattr("gattn.analysis.scores.pairs._BLOCK", 300)
    pairs = Pairs.of(found.queries, found.keys, counted)
    expected = dense[pairs.queries.writers][:, pairs.keys.writers]
    assert float(dense.abs().sum()) == pytest.approx(float(expected.abs().sum()))
    for way in (pairs._whole, pairs._listed):
        blocks = list(way())
        assert len(blocks) > 1
        torch.testing.assert_close(torch.cat([x for _, x in blocks]), expected, atol=1e-12, rtol=0)
    for sums, dim in zip(pairs.sums(), (1, 0), strict=True):
        torch.testing.assert_close(sums, expected.sum(dim), atol=1e-12, rtol=0)
    rows, columns, values, total = pairs.largest(7)
    torch.testing.assert_close(values, dense[rows, columns], atol=1e-12, rtol=0)
    assert values.abs().min() == pytest.approx(float(dense.abs().flatten().sort().values[-7]))
    assert total == pytest.approx(float(dense.sum()))


def test_more_pairs_than_a_table_lists_are_one_row(gpt2, monkeypatch):
    directions, active = drawn(gpt2, active=0.5)
    whole = gattn.why(IDS, gpt2, layer=1, head=1, parts=gattn.Features(directions, active))
    plain = whole.table()
    assert len(plain) == 10_001
    (others,) = plain.index[plain["query_part"] == "others"]
    assert plain["score"].sum() == pytest.approx(whole.matrix().sum().item(), abs=1e-12)
    listed = plain.drop(others)["score"]
    assert listed.sum() + plain["score"][others] == pytest.approx(plain.attrs["total"], abs=1e-12)
    assert listed.abs().min() >= np.sort(abs(whole.matrix().to_numpy()).ravel())[-10_000] - 1e-15
    monkeypatch.setattr("gattn.analysis.scores.taken_apart._MATRIX", 1000)
    with pytest.raises(SelectionError, match="too many for a matrix"):
        whole.matrix()
    graph = whole.to_networkx()
    assert sum(x for *_, x in graph.edges(data="key")) == pytest.approx(plain.attrs["total"])


def test_the_attention_without_a_feature(gpt2):
    directions, active = drawn(gpt2)
    found = gattn.why(
        IDS, gpt2, layer=1, head=1, query=8, key=4, parts=gattn.Features(directions, active)
    )
    query, key = (x.to_dense() for x in (found.queries, found.keys))
    names = [str(one) for one in found.writers]
    for side in ("query", "key"):
        for _, row in found.without(side).iterrows():
            n = names.index(row["part"])
            q = query.sum(0) - (query[n] if side == "query" else 0)
            k = key.sum(0) - (key[n] if side == "key" else 0)
            assert row["without"] == pytest.approx(float((k @ q[8]).softmax(-1)[4]), abs=1e-9)
    assert len(found.without("key")) == int(active.any(0).sum()) + 2


def test_a_basis_and_a_probe(gpt2):
    """Coordinates are those of the projection, by the normal equations."""
    directions = drawn(gpt2)[0][:3]
    stream = before_layer_1(gpt2)
    found = gattn.why(
        IDS,
        gpt2,
        layer=1,
        head=0,
        query=8,
        key=4,
        parts=gattn.Features(directions, names=list("abc")),
    )
    active = torch.linalg.solve(directions @ directions.T, directions @ stream.T).T
    same = gattn.why(
        IDS, gpt2, layer=1, head=0, query=8, key=4, parts=gattn.Features(directions, active)
    )
    np.testing.assert_allclose(found.matrix(), same.matrix(), atol=1e-12)
    assert found.matrix()["key_part"].to_numpy().tolist() == ["error", "a", "b", "c", "bias"]
    probe = normalize(directions[:1], dim=1)
    one = gattn.why(IDS, gpt2, layer=1, head=0, query=8, key=4, parts=gattn.Features(probe))
    given = {"feature 0": (stream @ probe.T) * probe}
    other = gattn.why(IDS, gpt2, layer=1, head=0, query=8, key=4, parts=given)
    order = ["error", "feature 0", "bias"]
    np.testing.assert_allclose(
        one.matrix().sel(query_part=order, key_part=order),
        other.matrix().sel(query_part=order, key_part=order),
        atol=1e-12,
    )


def test_features_that_do_not_fit_are_refused(gpt2):
    directions, active = drawn(gpt2)
    for wrong in (directions[0], directions.long(), "ab"):
        with pytest.raises(ShapeError, match=r"directions are a tensor of numbers \(features, dim"):
            gattn.Features(wrong)
    with pytest.raises(ShapeError, match=r"here \(tokens, 200\), not \(200, 9\)"):
        gattn.Features(directions, active.T)
    for names in (["a"], ["a"] * 200, "abc"):
        with pytest.raises(SelectionError, match="names are as many as features, 200"):
            gattn.Features(directions, active, names)

    def ask(features):
        gattn.why(IDS, gpt2, layer=1, head=0, parts=features)

    with pytest.raises(ShapeError, match="directions have 7 dimensions"):
        ask(gattn.Features(directions[:, :7], active))
    with pytest.raises(ShapeError, match="of 8 tokens, but the model reads 9"):
        ask(gattn.Features(directions, active[1:]))
    with pytest.raises(ShapeError, match="not independent"):
        ask(gattn.Features(directions))
    with pytest.raises(ShapeError, match="not independent"):
        ask(gattn.Features(directions[[0, 1, 1]]))
    with pytest.raises(SelectionError, match="name 'error'"):
        ask(gattn.Features(directions[:2], names=["a", "error"]))
    for wrong in (torch.nan, torch.inf):
        bad, many = directions.clone(), active.clone()
        bad[1, 1] = many[1, 1] = wrong
        for features in (gattn.Features(bad, active), gattn.Features(bad[:4])):
            with pytest.raises(ShapeError, match="The directions must be finite"):
                ask(features)
        for given in (many, many.to_sparse()):
            with pytest.raises(ShapeError, match="The activations must be finite"):
                ask(gattn.Features(directions, given))
        with pytest.raises(ShapeError, match="The part 'mine' must be finite"):
            ask({"mine": bad[: len(IDS)]})


def test_a_head_by_the_tokens_that_it_read(gpt2):
    """What a head wrote is split by its attention, and sums to its part."""
    whole = gattn.why(IDS, gpt2, layer=1, head=0, query=7, key=3)
    found = gattn.why(IDS, gpt2, layer=1, head=0, query=7, key=3, split="0.1")
    head = gattn.capture(IDS, gpt2)[0, 1]
    attention = torch.as_tensor(head.to_dense()).double()
    block, heads = gpt2.transformer.h[0], gpt2.config.n_head
    with torch.no_grad():
        stream = gpt2.transformer.wte(torch.tensor(IDS))
        stream = stream + gpt2.transformer.wpe(torch.arange(len(IDS)))
        values = block.attn.c_attn(block.ln_1(stream)).split(gpt2.config.n_embd, -1)[2]
        values = values.unflatten(-1, (heads, -1))[:, 1]
        written = values @ block.attn.c_proj.weight.unflatten(0, (heads, -1))[1]
        parts = torch.einsum("ij,jd->jid", attention, written)
        q, k = sides_by_hand(gpt2, parts, 0)
    expected = torch.einsum("ad,bd->ab", q[:, 7], k[:, 3])
    names = [f"0.1 from '{token}' ({n})" for n, token in enumerate(IDS)]
    matrix = found.matrix()
    np.testing.assert_allclose(
        matrix.sel(query_part=names, key_part=names), expected, rtol=0, atol=1e-7
    )
    assert not expected[:, 4:].any()  # The key reads nothing after itself.
    by_key, plain = (x.matrix().sum("query_part").to_series() for x in (found, whole))
    assert by_key[names].sum() == pytest.approx(plain["0.1"], abs=1e-12)
    assert by_key["0.0"] == pytest.approx(plain["0.0"], abs=1e-12)
    assert "0.1" not in by_key
    table = gattn.why(IDS, gpt2, layer=1, head=0, query=7, split="0.1").without("key")
    assert set(names) < set(table["part"])


@pytest.mark.parametrize("name", ["bert", "olmo2", "llama"])
def test_sources_go_through_norms_after_a_head(name):
    """BERT norms the sum, OLMo 2 what is added."""
    model = zoo.specimen(name).double().model
    whole = gattn.why(IDS, model, layer=1, head=0)
    found = gattn.why(IDS, model, layer=1, head=0, split=["0.0", (0, 1)])
    names = [str(one) for one in whole.writers]
    others = [str(one) for one in found.writers]
    for side in ("queries", "keys"):
        mine = getattr(found, side).to_dense()
        for head in ("0.0", "0.1"):
            some = [n for n, one in enumerate(others) if one.startswith(f"{head} from ")]
            assert len(some) == len(IDS)
            expected = getattr(whole, side)[names.index(head)]
            torch.testing.assert_close(mine[some].sum(0), expected, atol=1e-9, rtol=0)


def test_one_head_is_split_by_its_place(gpt2):
    one, other = (gattn.why(IDS, gpt2, layer=1, head=0, split=split) for split in ((0, 1), "0.1"))
    assert [str(writer) for writer in one.writers] == [str(writer) for writer in other.writers]


def test_what_cannot_be_split_is_refused(gpt2):
    for wrong in ("1.0", 0, "0"):
        with pytest.raises(SelectionError, match="split names earlier heads"):
            gattn.why(IDS, gpt2, layer=1, head=0, split=wrong)
    with pytest.raises(SelectionError, match=r"No head 0\.9"):
        gattn.why(IDS, gpt2, layer=1, head=0, split="0.9")
    with pytest.raises(SelectionError, match="model's own heads"):
        gattn.why(IDS, gpt2, layer=1, head=0, split="0.1", parts=gattn.Features(drawn(gpt2)[0]))
