"""Only: the model on some of its edges, against dense algebra."""

import pytest
import torch
import transformers
from dense_models import Dense
from hand_written import HEADS, ROOT, TOKENS, made

import gattn
from gattn import Cut, Only, edited
from gattn.errors import EditError

IDS = [5, 17, 42, 17, 8, 33]
OTHERS = [44, 2, 9, 30]
ROWS = [(0, 1, 3, 1), (0, 0, 2, 2), (1, 1, 5, 3), (1, 0, 5, 5)]
DENSE = Dense()


@pytest.fixture(scope="module")
def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config).double().eval()


@pytest.fixture(scope="module")
def t5(tiny):
    return tiny("t5", "eager", torch.float64, num_heads=2, decoder_start_token_id=0)


def dense(model, inputs, rows):
    def only(call, attention):
        mask = torch.zeros_like(attention)
        for stack, layer, *where in rows:
            if (stack, layer) == call.place:
                mask[(slice(None), *where)] = 1
        return attention * mask

    return DENSE.run(model, inputs | {"use_cache": False}, after=only)


def with_messages_of(model, inputs, others, rows):
    """Run a model on some edges, all other messages being those of another run."""
    seen = {}

    def record(call, attention):
        seen[call.place] = attention, call.value
        return attention

    def mixed(call, attention):
        mask = torch.zeros_like(attention)
        for stack, layer, *where in rows:
            if (stack, layer) == call.place:
                mask[(slice(None), *where)] = 1
        attention_there, value_there = seen[call.place]
        call.value = torch.cat([call.value, value_there], 2)
        return torch.cat([attention * mask, attention_there * (1 - mask)], -1)

    DENSE.run(model, others | {"use_cache": False}, after=record)
    return DENSE.run(model, inputs | {"use_cache": False}, after=mixed)


def with_mean_values(model, inputs, rows, texts=()):
    """Run a model on some edges; the others carry the mean value of the run, or of texts."""
    seen = {}

    def record(call, attention):
        seen.setdefault(call.place, []).append(call.value[0])
        return attention

    def mixed(call, attention):
        mask = torch.zeros_like(attention)
        for stack, layer, *where in rows:
            if (stack, layer) == call.place:
                mask[(slice(None), *where)] = 1
        values = torch.cat(seen[call.place], 1)[None] if texts else call.value
        mean = values.mean(2, keepdim=True).expand(len(call.value), -1, -1, -1)
        call.value = torch.cat([call.value, mean], 2)
        return torch.cat([attention * mask, (attention * (1 - mask)).sum(-1, keepdim=True)], -1)

    for text in texts:
        DENSE.run(model, {"input_ids": torch.tensor([text]), "use_cache": False}, after=record)
    return DENSE.run(model, inputs | {"use_cache": False}, after=mixed)


def in_stack(name, rows):
    return [(name, *row) for row in rows]


def test_the_model_runs_on_its_edges_alone(gpt2):
    inputs = {"input_ids": torch.tensor([IDS, IDS[::-1]])}
    with torch.no_grad(), edited(gpt2, Only(ROWS)):
        found = gpt2(**inputs).logits
    expected = dense(gpt2, inputs, in_stack("decoder", ROWS))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert not torch.allclose(found, gpt2(**inputs).logits, atol=1e-4)


def test_messages_of_another_text_take_the_place_of_all_others(gpt2):
    inputs, others = ({"input_ids": torch.tensor([ids])} for ids in (IDS, [9, 9, 3, 60, 2, 1]))
    only = Only(ROWS, ablation=others["input_ids"][0].tolist())
    with torch.no_grad(), edited(gpt2, only):
        found = gpt2(**inputs).logits
    expected = with_messages_of(gpt2, inputs, others, in_stack("decoder", ROWS))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    with torch.no_grad(), edited(gpt2, Cut(1, 0)), edited(gpt2, Only([], ablation=only.ablation)):
        found = gpt2(**inputs).logits
    expected = with_messages_of(gpt2, inputs, others, [])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    twice = only, Only(ROWS[:1], ablation=only.ablation)
    with pytest.raises(EditError, match="with the edges that both keep"), edited(gpt2, *twice):
        gpt2(**inputs)
    short = Only(ROWS, ablation=[9, 9, 3])
    with pytest.raises(EditError, match="as many tokens"), edited(gpt2, short):
        gpt2(**inputs)


@pytest.mark.parametrize("texts", [(), [OTHERS, IDS[1:], [9] * 12]])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt-oss", "bert"])
def test_mean_values_take_the_place_of_all_others(tiny, name, texts):
    dtype = torch.float32 if name == "gpt-oss" else torch.float64
    model = tiny(name, "eager", dtype)
    stack, ablation = "encoder" if name == "bert" else "decoder", list(texts) or "mean"
    inputs = {"input_ids": torch.tensor([IDS, IDS[::-1]])}
    expected = with_mean_values(model, inputs, in_stack(stack, ROWS), texts)
    with torch.no_grad(), edited(model, Only(ROWS, ablation=ablation)):
        found = model(**inputs)[0]
    # Softmaxes and norms of some models are float32.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11 if name == "gpt2" else 2e-5)
    assert (found - dense(model, inputs, in_stack(stack, ROWS))).abs().max() > 1e-2


def test_all_mean_values_are_an_ablation_of_values(gpt2):
    inputs = {"input_ids": torch.tensor([IDS])}
    for by in ("mean", [OTHERS, IDS]):
        with torch.no_grad(), edited(gpt2, Only([], ablation=by)):
            found = gpt2(**inputs).logits
        with torch.no_grad(), edited(gpt2, gattn.Ablate(by, what="values")):
            torch.testing.assert_close(found, gpt2(**inputs).logits, rtol=0, atol=1e-12)


def test_mean_messages_are_those_of_attention_as_other_edits_leave_it(gpt2):
    inputs, cut = {"input_ids": torch.tensor([IDS])}, ("decoder", 1, 0, 5, 3)

    def mixed(call, attention):
        scores = call.scores.clone()
        if call.place == cut[:2]:
            scores[0, *cut[2:]] = -torch.inf
        attention = scores.softmax(-1)
        mask = torch.zeros_like(attention)
        for stack, layer, *where in in_stack("decoder", ROWS):
            if (stack, layer) == call.place:
                mask[(slice(None), *where)] = 1
        call.value = torch.cat([call.value, call.value.mean(2, keepdim=True)], 2)
        return torch.cat([attention * mask, (attention * (1 - mask)).sum(-1, keepdim=True)], -1)

    expected = DENSE.run(gpt2, inputs | {"use_cache": False}, after=mixed)
    inner = edited(gpt2, Only(ROWS, ablation="mean"))
    with torch.no_grad(), edited(gpt2, Cut(*cut[1:])), inner:
        found = gpt2(**inputs).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_mean_over_some_of_the_positions_is_refused():
    def windows(q, k, v):
        q, k, v = (x.unflatten(2, (2, TOKENS // 2)) for x in (q, k, v))
        return ((q @ k.mT / ROOT).softmax(-1) @ v).flatten(2, 3)

    model, x = made(windows, 1)
    only = edited(model, Only([(0, 0, 1, 1)], ablation="mean"))
    with pytest.raises(EditError, match="only the 3 from 3 to 5: give a list of texts"), only:
        model(x)


def test_messages_of_another_text_are_those_of_each_stack(t5):
    inputs = {"input_ids": torch.tensor([IDS]), "decoder_input_ids": torch.tensor([OTHERS])}
    others = {
        "input_ids": torch.tensor([IDS[::-1]]),
        "decoder_input_ids": torch.tensor([OTHERS[::-1]]),
    }
    given = {"encoder": [(0, 1, 5, 0)], "cross": [(1, 1, 3, 2)], "decoder": [(1, 0, 3, 2)]}
    with torch.no_grad(), edited(t5, Only(given, ablation=others)):
        found = t5(**inputs).logits
    rows = [row for name, some in given.items() for row in in_stack(name, some)]
    torch.testing.assert_close(
        found, with_messages_of(t5, inputs, others, rows), rtol=0, atol=1e-12
    )


def test_all_stacks_are_edited_where_edges_name_them(t5):
    inputs = {"input_ids": torch.tensor([IDS]), "decoder_input_ids": torch.tensor([OTHERS])}
    given = {
        "encoder": [(0, 1, 5, 0), (1, 0, 2, 4)],
        "cross": [(1, 1, 3, 2), (0, 0, 2, 2)],
        "decoder": [(1, 0, 3, 2)],
    }
    with torch.no_grad(), edited(t5, Only(given)):
        found = t5(**inputs).logits
    rows = [row for name, some in given.items() for row in in_stack(name, some)]
    torch.testing.assert_close(found, dense(t5, inputs, rows), rtol=0, atol=1e-12)
    with torch.no_grad(), edited(t5, Only(given["cross"], stack="cross")):
        found = t5(**inputs).logits
    every = [
        (name, layer, head, query, key)
        for name, size in (("encoder", 6), ("decoder", 4))
        for layer in (0, 1)
        for head in (0, 1)
        for query in range(size)
        for key in range(size)
    ]
    expected = dense(t5, inputs, [*every, *in_stack("cross", given["cross"])])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    with pytest.raises(EditError, match="does not say which stack"), edited(t5, Only(ROWS)):
        t5(**inputs)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"crosss": [(0, 0, 0, 0)]}, "no stack 'crosss'; it has 'encoder'"),
        ({"crosss": []}, "no stack 'crosss'"),
        ({"cross": [(1, 1, 5, 2)]}, r"stack='cross'.* at query 5: the queries are 0 \.\. 3"),
        ({"cross": [(2, 0, 0, 0)]}, r"stack='cross'.* in layer 2: there is no layer 2"),
    ],
)
def test_each_stack_has_the_edges_that_are_named_in_it(t5, given, said):
    inputs = {"input_ids": torch.tensor([IDS]), "decoder_input_ids": torch.tensor([OTHERS])}
    encoder = [(0, 1, 5, 0), (1, 0, 2, 4)]
    with pytest.raises(EditError, match=said), edited(t5, Only({"encoder": encoder} | given)):
        t5(**inputs)
    with torch.no_grad(), edited(t5, Only({"encoder": encoder})):
        found = t5(**inputs).logits
    expected = dense(t5, inputs, in_stack("encoder", encoder))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_heads_that_attend_in_calls_of_their_own_are_counted():
    def loop(q, k, v):
        heads = [(q[:, h] @ k[:, h].mT / ROOT).softmax(-1) @ v[:, h] for h in range(HEADS)]
        return torch.stack(heads, 1)

    model, x = made(loop)
    rows = torch.tensor([(1, 0, 5, 4), (0, 3, 2, 1)])

    def only(attention, layer):
        mask = torch.zeros_like(attention)
        mask[(slice(None), *rows[rows[:, 0] == layer][0, 1:])] = 1
        return attention * mask

    with torch.no_grad(), edited(model, Only(rows)):
        found = model(x)
    expected = model.dense(x, only)[1]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for some in ([*rows.tolist(), (1, 9, 5, 4)], [(1, 9, 5, 4)]):
        with (
            pytest.raises(EditError, match=r"of head 9, but the heads are 0 \.\. 3"),
            edited(model, Only(some)),
        ):
            model(x)


def test_it_may_run_with_other_edits_of_some_heads(gpt2):
    inputs = {"input_ids": torch.tensor([IDS])}
    cut = Cut(1, 1, query=5, key=3, renormalize=False)
    with torch.no_grad(), edited(gpt2, cut), edited(gpt2, Only(ROWS)):
        found = gpt2(**inputs).logits
    left = [row for row in ROWS if row != (1, 1, 5, 3)]
    expected = dense(gpt2, inputs, in_stack("decoder", left))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_traces_and_effects_show_it(gpt2):
    ids = {"input_ids": torch.tensor([IDS])}
    with edited(gpt2, Only(ROWS)):
        trace = gattn.capture(ids, gpt2, keep=gattn.All())
    kept = {
        (layer, head, int(query), int(key))
        for (layer, head), graph in trace.only_stack.items()
        for query, key, share in zip(graph.query, graph.key, graph.attention, strict=True)
        if share
    }
    assert kept == set(ROWS)
    assert "Only(4 edges)" in str(trace)
    one, other = (Only(ROWS[:n]).record for n in (2, 3))
    assert one == Only(ROWS[:2]).record
    assert one != other


def test_gradients_reach_the_attention_that_is_kept(gpt2):
    ids = torch.tensor([IDS])
    with edited(gpt2, Only([(1, 1, 5, 3)])):
        (slope,) = torch.autograd.grad(
            gpt2(ids).logits[0, -1, 7], gpt2.transformer.h[1].attn.c_attn.weight
        )
    assert slope.abs().sum() > 0


@pytest.mark.parametrize("given", [[(1, 2, 3)], [(0, 0, -1, 0)], "1.1", [(0.5, 0, 0, 0)], 7])
def test_what_are_no_edges_is_refused(given):
    with pytest.raises(EditError, match=r"rows \(layer, head, query, key\)"):
        Only(given)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((7, 0, 1, 1), "no layer 7"),
        ((0, 5, 1, 1), "head 5, but the heads are 0 .. 1"),
        ((0, 0, 1, 3), "edge from key 3 to query 1"),
        ((0, 0, 30, 3), "had nothing to edit"),
    ],
)
def test_edges_that_the_model_does_not_have_are_refused(gpt2, row, said):
    with pytest.raises(EditError, match=said), edited(gpt2, Only([*ROWS, row])):
        gpt2(torch.tensor([IDS]))
