"""Functions that users register themselves are read where the proof of all rows passes."""

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask, sdpa_mask

from gattn import Cut, Scale, capture, capturing, edited
from gattn.engines import tiles
from gattn.errors import CaptureError

NAME = "a-function-of-ones-own"
IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]
BATCH = torch.tensor([[0, 0, 0, 0, 5, 6, 7, 8, 9], IDS])


@pytest.fixture
def register():
    def put(function, mask=None):
        AttentionInterface.register(NAME, function)
        if mask is not None:
            AttentionMaskInterface.register(NAME, mask)

    yield put
    AttentionInterface._global_mapping.pop(NAME)
    AttentionMaskInterface._global_mapping.pop(NAME, None)


def attention(module, query, key, value, attention_mask, scaling=None, change=None, **options):
    """Attend as softmax attention does, written out; `change` may change the attention."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.mT * scaling
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        else:
            scores = scores + attention_mask
    weights = scores.softmax(-1)
    weights = weights if change is None else change(weights)
    return (weights @ value).transpose(1, 2).contiguous(), None


def causal(module, query, key, value, attention_mask, **options):
    """Attend causally, whatever the mask."""
    rows, columns = query.shape[2], key.shape[2]
    mask = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)[None, None]
    return attention(module, query, key, value, mask, **options)


def booleans(*args, **options):
    """Make sdpa's mask, which is never left out."""
    return sdpa_mask(*args, **options | {"allow_is_causal_skip": False})


def changed(change):
    def function(*args, **options):
        return attention(*args, change=change, **options)

    return function


def inputs(padded):
    if not padded:
        return {"input_ids": torch.tensor([IDS])}
    return {"input_ids": BATCH, "attention_mask": (BATCH != 0).long()}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mask", [eager_mask, booleans])
@pytest.mark.parametrize("name", ["llama", "bert", "mistral"])
def test_a_function_with_a_mask_is_captured_and_edited(tiny, register, name, mask, padded):
    register(attention, mask)
    model, usual = tiny(name, NAME), tiny(name, "eager")
    with capturing(usual) as expected, torch.no_grad():
        usual(**inputs(padded))
    with capturing(model) as run, torch.no_grad():
        model(**inputs(padded))
    for trace, other in zip(run.traces, expected.traces, strict=True):
        for place, head in other.only_stack.items():
            assert torch.equal(trace[place].graph.edge_index, head.graph.edge_index)
            np.testing.assert_allclose(trace[place].attention, head.attention, atol=1e-5)
    for edit in (Cut(layer=1, head=2, key=1), Scale(1.0)):
        outputs = []
        for one in (model, usual):
            with torch.no_grad(), edited(one, edit):
                outputs.append(one(**inputs(padded))[0])
        real = inputs(padded).get("attention_mask", torch.ones(1, len(IDS))).bool()
        torch.testing.assert_close(outputs[0][real], outputs[1][real], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "bert"])
@pytest.mark.parametrize("function", [attention, causal])
def test_without_a_mask_function_the_output_tells_who_attends_to_whom(
    tiny, register, name, function
):
    register(function)
    trace = capture(IDS, tiny(name, NAME))
    expected = {attention: len(IDS) ** 2, causal: len(IDS) * (len(IDS) + 1) // 2}[function]
    assert {head.graph.num_edges for head in trace.heads()} == {expected}
    if function is causal and name == "llama":
        usual = capture(IDS, tiny("llama", "eager"))
        for place, head in usual.only_stack.items():
            np.testing.assert_allclose(trace[place].to_dense(), head.to_dense(), atol=1e-6)


def test_generation_is_recorded(tiny, register):
    register(attention, eager_mask)
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    traces = []
    for implementation in (NAME, "eager"):
        model = tiny("llama", implementation)
        for cache in (None, "static"):
            more = {"cache_implementation": cache} if cache else {}
            with capturing(model) as run:
                model.generate(torch.tensor([IDS]), **options, **more)
            traces.append(run.trace)
    for trace in traces[1:]:
        for place, head in traces[0].only_stack.items():
            np.testing.assert_allclose(trace[place].to_dense(), head.to_dense(), atol=1e-5)


def alibi(weights):
    return (weights.log() - torch.arange(weights.shape[-1])).softmax(-1)


def one_row(weights):
    """Change a single row, which is none of the four that are compared of other functions."""
    weights = weights.clone()
    if weights.shape[2] > 5:
        weights[:, :, 5, :2] = weights[:, :, 5, :2].flip(-1)
    return weights


def steps(weights):
    """Forget the first key, as caches that evict tokens do, at single steps alone."""
    if weights.shape[2] > 1:
        return weights
    weights = weights.clone()
    weights[..., 0] = 0
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("mask", [eager_mask, booleans, None])
@pytest.mark.parametrize("change", [alibi, one_row])
def test_a_function_that_does_something_else_is_refused(tiny, register, change, mask):
    register(changed(change), mask)
    model = tiny("llama", NAME)
    with pytest.raises(CaptureError, match="does not compute softmax attention as gattn reads it"):
        capture(IDS, model)
    context = edited(model, Cut(layer=1))
    with pytest.raises(CaptureError, match="does not compute"), torch.no_grad(), context:
        model(torch.tensor([IDS]))


def test_a_function_that_does_something_else_at_steps_is_refused(tiny, register):
    register(changed(steps), eager_mask)
    model = tiny("llama", NAME)
    capture(IDS, model)
    with pytest.raises(CaptureError, match="does not compute"), capturing(model):
        model.generate(torch.tensor([IDS]), max_new_tokens=4, min_new_tokens=4, do_sample=False)


def test_a_mask_turned_around_is_refused(tiny, register):
    """True means "may attend"; where a function takes it the other way, the proof fails."""

    def around(module, query, key, value, attention_mask, **options):
        return attention(module, query, key, value, ~attention_mask, **options)

    # Within the model all is as usual, but what the mask says to gattn is not.

    def mask(*args, **options):
        return ~booleans(*args, **options)

    register(around, mask)
    with pytest.raises(CaptureError, match="its mask excludes all keys"):
        capture(IDS, tiny("llama", NAME))


def test_rows_are_proved_in_blocks(tiny, register, monkeypatch):
    """All rows are proved, some at a time, in memory that does not grow with their number."""
    sizes, plain = [], tiles.some_rows

    def some_rows(call, rows):
        sizes.append(len(rows) * call.key.shape[2] * call.batch_heads * 8)
        return plain(call, rows)

    monkeypatch.setattr(tiles, "some_rows", some_rows)
    monkeypatch.setattr(tiles, "BLOCK_BYTES", 1200)
    seen = []

    def wrong_at(*args, **options):
        output, weights = attention(*args, **options)
        output[:, seen[0]] += 1
        return output, weights

    for function in (attention, wrong_at):
        register(function, eager_mask)
        model = tiny("llama", NAME)
        for row in range(len(IDS)):
            seen[:] = [row]
            if function is attention:
                capture(IDS, model)
                break
            with pytest.raises(CaptureError, match="does not compute softmax attention"):
                capture(IDS, model)
    assert 288 < max(sizes) <= 1200


@pytest.mark.parametrize("mask", [None, eager_mask])
def test_a_function_is_refused_under_dropout_where_nothing_can_be_proved(tiny, register, mask):
    def dropping(*args, dropout=0.0, **options):
        drop = torch.nn.functional.dropout
        function = attention if mask else causal
        return function(*args, change=lambda a: drop(a, dropout), **options)

    register(dropping, mask)
    model = tiny("llama", NAME, attention_dropout=0.2).train()
    with edited(model, Scale(0.5, layer=0)):
        with pytest.raises(CaptureError, match=r"under dropout: call model.eval\(\) or set"):
            model(**inputs(False))
        model.eval()(**inputs(False))
    model = tiny("llama", NAME, attention_dropout=0.0).train()
    with edited(model, Scale(0.5, layer=0)):
        model(**inputs(False))
