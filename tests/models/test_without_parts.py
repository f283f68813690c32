"""Path patching with vectors, and with the parts of other texts, held to hooks."""

from contextlib import contextmanager

import pytest
import torch

import gattn
from gattn.errors import EditError

IDS = torch.tensor([[5, 17, 42, 17, 8, 33, 59, 3, 21]])
OTHER = torch.tensor([[7, 7, 30, 2, 51, 9, 14, 40, 1]])
SHORT = torch.tensor([[3, 8, 8, 50]])
SIDES = ("query", "key", "value")


@pytest.fixture
def gpt2(tiny):
    return tiny("gpt2", dtype=torch.float64)


@contextmanager
def hooked(model, vectors, side, head=3):
    """Let a head of layer 1 read the stream less vectors (tokens, dim), by hooks."""
    block, seen = model.transformer.h[1], {}
    size, width = model.config.n_embd // model.config.n_head, model.config.n_embd
    first = SIDES.index(side) * width + head * size

    def put(module, given, output):
        other = block.ln_1(seen["stream"] - vectors) @ module.weight + module.bias
        output = output.clone()
        output[..., first : first + size] = other[..., first : first + size]
        return output

    hooks = [
        block.register_forward_pre_hook(lambda _, given: seen.update(stream=given[0])),
        block.attn.c_attn.register_forward_hook(put),
    ]
    yield
    for hook in hooks:
        hook.remove()


def written(model, ids, head=2):
    """What a head of layer 0 adds to the stream: (tokens, dim)."""
    projection, found = model.transformer.h[0].attn.c_proj, []
    hook = projection.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    with torch.no_grad():
        model(ids)
    hook.remove()
    size = model.config.n_embd // model.config.n_head
    rows = slice(head * size, (head + 1) * size)
    return (found[0][..., rows] @ projection.weight[rows])[0].detach()


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids, use_cache=False).logits


@pytest.mark.parametrize("side", SIDES)
def test_a_part_from_another_text(gpt2, side):
    """The path patching of Wang et al.: what the head hears is what was written elsewhere."""
    here, there = (written(gpt2, ids) for ids in (IDS, OTHER))
    with hooked(gpt2, here - there, side):
        expected = logits(gpt2)
    place = {"side": side, "layer": 1, "head": 3}
    for by in (OTHER[0].tolist(), OTHER, there):
        edit = gattn.Without("0.2", by=by, **place)
        with gattn.edited(gpt2, edit):
            found = logits(gpt2)
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    assert (expected - logits(gpt2)).abs().max() > 1e-4


def test_a_part_from_the_same_text_changes_nothing(gpt2):
    with gattn.edited(gpt2, gattn.Without(["0.2", "mlp 0"], layer=1, by=IDS[0].tolist())):
        found = logits(gpt2)
    torch.testing.assert_close(found, logits(gpt2), atol=1e-12, rtol=0)


@pytest.mark.parametrize("side", SIDES)
def test_the_mean_over_a_corpus(gpt2, side):
    texts = [OTHER[0].tolist(), SHORT[0].tolist()]
    mean = torch.cat([written(gpt2, ids) for ids in (OTHER, SHORT)]).mean(0)
    with hooked(gpt2, written(gpt2, IDS) - mean, side):
        expected = logits(gpt2)
    with gattn.edited(gpt2, gattn.Without("0.2", side=side, layer=1, head=3, by=texts)):
        found = logits(gpt2)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("side", SIDES)
def test_vectors_of_ones_own(gpt2, side):
    """Several are taken away together; what takes their place may be vectors, too."""
    generator = torch.Generator().manual_seed(0)
    one, two, other = (torch.randn(9, 32, generator=generator).double() for _ in range(3))
    place = {"side": side, "layer": 1, "head": 3}
    for edit, vectors in (
        (gattn.Without({"one": one}, **place), one),
        (gattn.Without({"one": one, "two": two}, **place), one + two),
        (gattn.Without({"one": one}, by=other, **place), one - other),
        (gattn.Without({"one": one}, by="mean", **place), one - one.mean(0)),
        (gattn.Without("0.2", by=other, **place), written(gpt2, IDS) - other),
    ):
        with hooked(gpt2, vectors, side):
            expected = logits(gpt2)
        with gattn.edited(gpt2, edit):
            found = logits(gpt2)
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
        assert (expected - logits(gpt2)).abs().max() > 1e-4


def test_vectors_stand_at_the_tokens_of_padded_texts_and_of_steps(gpt2):
    vectors = torch.randn(9, 32, generator=torch.Generator().manual_seed(0)).double()
    place = {"side": "query", "layer": 1, "head": 3}
    edit = gattn.Without({"one": vectors}, **place)
    with hooked(gpt2, vectors, "query"):
        expected = logits(gpt2)
    blank = torch.zeros(1, 2, dtype=torch.long)
    inputs = {
        "input_ids": torch.cat([blank, IDS], 1),
        "attention_mask": torch.cat([blank, torch.ones_like(IDS)], 1),
        "position_ids": torch.cat([blank, torch.arange(9)[None]], 1),
    }
    with torch.no_grad():
        past = gpt2(IDS[:, :6], use_cache=True).past_key_values
    with torch.no_grad(), gattn.edited(gpt2, edit):
        padded = gpt2(**inputs).logits[:, 2:]
        step = gpt2(IDS[:, 6:], past_key_values=past).logits
    torch.testing.assert_close(padded, expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(step, expected[:, 6:], atol=1e-9, rtol=0)


def test_texts_are_shown_as_they_were_given(gpt2):
    ids = OTHER[0].tolist()
    edit = gattn.Without("0.2", layer=1, head=0, by=ids)
    with gattn.edited(gpt2, edit):
        found = gattn.capture(IDS[0].tolist(), gpt2)[1, 0].edits
    assert found == (edit,)
    assert "by=[7, 7" in repr(found[0])
    vectors = torch.zeros(9, 32)
    edits = [gattn.Without({"a": vectors + n}, layer=1, by=vectors) for n in (0, 1)]
    assert repr(edits[0]) == "Without(part=['a'], side='key', layer=1, by=a tensor (9, 32))"
    assert edits[0] != edits[1]
    assert edits[0] == gattn.Without({"a": vectors}, layer=1, by=vectors)


def test_effects_of_texts_are_measured_in_batches(gpt2):
    edits = [gattn.Without(f"0.{n}", layer=1, by=OTHER[0].tolist()) for n in range(4)]
    found, alone = (
        gattn.effect(IDS[0].tolist(), edits, gpt2, batch_size=size, progress=False)["effect"]
        for size in (4, 1)
    )
    assert found.to_numpy() == pytest.approx(alone.to_numpy(), abs=1e-12)
    assert (alone > 1e-6).all()


def test_a_bert_hears_parts_of_another_text_through_its_norms(tiny):
    """Where norms turn the stream, a part differs from layer to layer."""
    model = tiny("bert", dtype=torch.float64, num_hidden_layers=3)
    ids, other = [5, 7, 9, 11, 6], [4, 8, 10, 12, 5]
    edit = gattn.Without("0.1", layer=2, by=ids)
    with gattn.edited(model, edit):
        found = gattn.capture(ids, model)[2, 0].to_dense()
    assert found == pytest.approx(gattn.capture(ids, model)[2, 0].to_dense(), abs=1e-6)
    with gattn.edited(model, gattn.Without("0.1", layer=2, by=other)):
        assert abs(gattn.capture(ids, model)[2, 0].to_dense() - found).max() > 1e-5


def test_what_does_not_fit_is_refused(gpt2):
    for by, message in (
        (SHORT[0].tolist(), "the other text has 4 tokens, but the text has 9"),
        (torch.zeros(4, 32), "by has 4 tokens"),
        (torch.zeros(9, 31), "vectors of 31 numbers"),
        (torch.cat([IDS, OTHER]), "one sequence of whole token ids"),
    ):
        with (
            pytest.raises(Exception, match=message),
            gattn.edited(gpt2, gattn.Without("0.2", layer=1, by=by)),
        ):
            logits(gpt2)
    short, padded = torch.ones_like(IDS), torch.cat([IDS, IDS])
    short[:, :2] = 0
    edit = gattn.Without("0.2", layer=1, by=IDS[0].tolist())
    with pytest.raises(EditError, match="has 9 tokens, but a text has 7"), gattn.edited(gpt2, edit):
        gpt2(padded, attention_mask=torch.cat([short, torch.ones_like(IDS)]))
    with (
        pytest.raises(EditError, match="has 4 tokens"),
        gattn.edited(gpt2, gattn.Without({"a": torch.zeros(4, 32)}, layer=1)),
    ):
        logits(gpt2)
