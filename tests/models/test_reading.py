"""Reading a routed call: mask, scale, softcap, bias and sink, proved against the output."""

from dataclasses import replace

import pytest
import torch
from pairs import all_pairs
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError
from gattn.graph.rules.simple import Complete
from gattn.graph.token_graph import TokenGraph
from gattn.models.doors.interface import RoutedCall
from gattn.models.read.masks import Mask
from gattn.models.read.places import Place, Side
from gattn.models.read.reading import read
from gattn.models.read.track.tracking import Tracker

SMALLEST = torch.finfo(torch.float32).min


class Attention(nn.Module):
    """An attention module of a model that attends to all keys."""

    is_causal = False


def routed(randn, mask=None, implementation="eager", groups=1, batch=1, sizes=(5, 5), **options):
    """A call whose output is softmax(q k / 2 + bias, mask) v, computed here by torch alone."""
    heads, (queries, keys) = 4, sizes
    query = randn(batch, heads, queries, 4).float()
    key, value = (randn(batch, heads // groups, keys, 4).float() for _ in range(2))
    wide_key, wide_value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ wide_key.mT * options.get("scaling", 0.5)
    if "softcap" in options:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    scores = scores + options.get("position_bias", torch.zeros(()))
    if isinstance(mask, torch.Tensor):
        given = mask if mask.is_floating_point() else torch.where(mask, 0.0, SMALLEST)
        scores = scores + given
    if "s_aux" in options:
        sink = options["s_aux"].reshape(1, -1, 1, 1).expand(batch, -1, queries, 1)
        attention = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
    else:
        attention = torch.softmax(scores, -1)
    output = (attention @ wide_value).transpose(1, 2)
    call = RoutedCall(Attention(), implementation, query, key, value, mask, options, output)
    return call, attention


def reading_of(call, is_bipartite=False, lengths=None, mask=None):
    """Read a call, each element of its batch with so many real tokens, as attention."""
    batch, _, queries, _ = call.query.shape
    keys = call.key.shape[2]
    lengths = lengths or [None] * batch
    queries, keys = (
        [Side(torch.arange(length or size), 0) for length in lengths] for size in (queries, keys)
    )
    place = Place("decoder", 0, is_bipartite, queries, keys, list(range(batch)))
    seen = call.seen("layers.0.attn")
    found = read(seen, place, mask or Mask.of(seen), [[] for _ in range(batch)])
    return [reading.attention for reading in found]


def read_call(call, is_bipartite=False):
    (found,) = reading_of(call, is_bipartite)
    return found


def attention_of(call):
    from gattn.engines import tiles

    return torch.cat([block.attention for block in tiles.row_blocks(call)], dim=2)


def whole_attention_of(call):
    from gattn.engines.shared.scoring import score_edges

    shape = call.query.shape[2], call.key.shape[2]
    whole = replace(call, graph=TokenGraph(Complete(), *shape, call.graph.query_offset))
    scores = score_edges(whole).unflatten(-1, shape)
    return call.normalizer(scores.masked_fill(~call.graph.mask(), -torch.inf))


LOWER = torch.ones(5, 5).tril().bool()
BAND = torch.ones(5, 5).triu(-1).tril(1).bool()
HOLES = torch.tensor([[1, 0, 0, 1, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0] * 4 + [1], [1] * 5])


@pytest.mark.parametrize("kind", ["additive", "boolean"])
@pytest.mark.parametrize(
    ("allowed", "rule"),
    [
        (torch.ones(5, 5).bool(), "Complete()"),
        (LOWER, "Causal()"),
        (LOWER & BAND, "Window(before=1, after=0, dilation=1)"),
        (BAND, "Window(before=1, after=1, dilation=1)"),
        (HOLES.bool(), "Edges"),
    ],
    ids=["complete", "causal", "window", "both sides", "holes"],
)
def test_a_mask_becomes_the_simplest_rule(randn, allowed, rule, kind):
    additive = torch.where(allowed, 0.0, SMALLEST)
    mask = (additive if kind == "additive" else allowed)[None, None]
    call, attention = routed(randn, mask, "eager" if kind == "additive" else "sdpa")
    found = read_call(call)
    assert str(found.graph.rule).startswith(rule)
    assert torch.equal(found.graph.mask(), allowed)
    torch.testing.assert_close(whole_attention_of(found), attention)


def test_no_mask_is_complete_or_where_the_kernel_is_told_so_causal(randn):
    call, _ = routed(randn)
    assert str(read_call(call).graph.rule) == "Complete()"
    call, attention = routed(randn, torch.where(LOWER, 0.0, SMALLEST)[None, None], "sdpa")
    for implementation in ("sdpa", "flash_attention_2"):
        causal = replace(
            call, mask=None, options={"is_causal": True}, implementation=implementation
        )
        found = read_call(causal)
        assert str(found.graph.rule) == "Causal()"
        torch.testing.assert_close(whole_attention_of(found), attention)
    # A wrong reading of the same output does not pass.
    with pytest.raises(CaptureError, match="does not compute softmax attention"):
        read_call(replace(call, mask=None, options={"is_causal": False}))


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scaling": 1.0},
        {"softcap": 0.5},
        {"s_aux": torch.tensor([0.5, -1.0, 2.0, 0.0])},
        {"s_aux": torch.tensor([0.5, -1.0, 2.0, 0.0]), "softcap": 0.7, "scaling": 0.3},
    ],
    ids=["plain", "scale", "softcap", "sink", "all"],
)
def test_options_are_read(randn, options, groups):
    mask = torch.where(LOWER, 0.0, SMALLEST)[None, None]
    call, attention = routed(randn, mask, groups=groups, **options)
    found = read_call(call)
    torch.testing.assert_close(whole_attention_of(found), attention)
    assert found.normalizer.has_sink == ("s_aux" in options)


def test_a_position_bias_is_a_part_of_the_score(randn):
    bias = randn(1, 4, 5, 5).float()
    mask = torch.where(LOWER, 0.0, SMALLEST)[None, None]
    call, attention = routed(randn, mask, position_bias=bias)
    found = read_call(call)
    torch.testing.assert_close(whole_attention_of(found), attention)
    assert repr(found.weight).endswith(" + the model's bias")
    with pytest.raises(CaptureError, match="does not compute"):
        read_call(replace(call, options={}))


def test_biases_and_sinks_keep_double_precision(randn):
    mask = randn(1, 4, 5, 5).masked_fill(~LOWER, torch.finfo(torch.float64).min)
    bias, sink = randn(1, 4, 5, 5), randn(4)
    query, key, value = (randn(1, 4, 5, 4) for _ in range(3))
    scores = query @ key.mT / 2 + bias + mask
    with_sink = torch.cat([scores, sink.reshape(1, 4, 1, 1).expand(-1, -1, 5, -1)], -1)
    attention = torch.softmax(with_sink, -1)[..., :-1]
    options = {"position_bias": bias, "s_aux": sink}
    output = (attention @ value).transpose(1, 2)
    call = RoutedCall(Attention(), "eager", query, key, value, mask, options, output)
    found = whole_attention_of(read_call(call))
    torch.testing.assert_close(found, attention, rtol=0, atol=1e-14)


def test_a_mask_that_holds_numbers_is_a_part_of_the_score(randn):
    mask = randn(1, 4, 5, 5).float().masked_fill(~LOWER, SMALLEST)
    call, attention = routed(randn, mask)
    found = read_call(call)
    assert str(found.graph.rule) == "Causal()"
    torch.testing.assert_close(whole_attention_of(found), attention)


def test_a_mask_added_to_another_still_says_no_edge(randn):
    mask = torch.where(LOWER, 0.0, SMALLEST * 0.75)[None, None]
    found = read_call(routed(randn, mask)[0])
    assert str(found.graph.rule) == "Causal()"


def test_heads_may_have_masks_of_their_own(randn):
    mask = torch.stack([LOWER, BAND, LOWER & BAND, torch.ones(5, 5).bool()])[None]
    for given, implementation in ((mask, "sdpa"), (torch.where(mask, 0.0, SMALLEST), "eager")):
        call, attention = routed(randn, given, implementation)
        found = read_call(call)
        assert torch.equal(found.graph.mask(), mask[0].any(0))
        torch.testing.assert_close(whole_attention_of(found), attention)


def test_padding_is_cut_from_each_element(randn):
    lengths = torch.tensor([3, 5])
    real = torch.arange(5) < lengths[:, None]
    mask = torch.where(LOWER & real[:, None, None], 0.0, SMALLEST)
    call, attention = routed(randn, mask, batch=2)
    readings = reading_of(call, lengths=[3, 5])
    for element, (length, found) in enumerate(zip([3, 5], readings, strict=True)):
        assert str(found.graph.rule) == "Causal()"
        assert found.graph.num_tokens == length
        expected = attention[element : element + 1, :, :length, :length]
        torch.testing.assert_close(whole_attention_of(found), expected)


def test_cross_attention_is_bipartite(randn):
    call, attention = routed(randn, sizes=(3, 6))
    found = read_call(call, is_bipartite=True)
    assert found.graph.is_bipartite
    assert found.graph.mask().shape == (3, 6)
    torch.testing.assert_close(attention_of(found), attention)


def test_a_mask_is_read_once_for_all_layers(randn):
    mask = torch.where(HOLES.bool(), 0.0, SMALLEST)[None, None]
    tracker = Tracker(Attention())
    calls = [routed(randn, given)[0] for given in (mask, mask, mask.clone())]
    graphs = [reading_of(call, mask=tracker.mask(call.seen("attn")))[0].graph for call in calls]
    assert graphs[0] is graphs[1]
    assert graphs[2] is not graphs[0]


def test_alike_elements_are_read_together(randn):
    mask = torch.where(LOWER, 0.0, SMALLEST)[None, None]
    call, attention = routed(randn, mask, batch=3)
    (found,) = reading_of(call)
    torch.testing.assert_close(whole_attention_of(found), attention)
    real = torch.arange(5) < torch.tensor([5, 3, 5])[:, None]
    call, _ = routed(randn, torch.where(LOWER & real[:, None, None], 0.0, SMALLEST), batch=3)
    assert [len(x.query) for x in reading_of(call, lengths=[5, 3, 5])] == [1, 1, 1]


def test_an_output_that_is_not_this_attention_is_refused(randn):
    call, _ = routed(randn)
    for wrong in (call.output * 1.01, call.output.flip(2), torch.zeros_like(call.output)):
        with pytest.raises(CaptureError, match=r"layers\.0\.attn \(Attention\) does not compute"):
            read_call(replace(call, output=wrong))


@pytest.mark.parametrize("row", [0, 4])
def test_nan_in_the_output_is_named(randn, row):
    call, _ = routed(randn)
    call.output[0, row, 2] = torch.nan
    with pytest.raises(CaptureError, match=rf"NaN or infinite at head 2, query {row}"):
        read_call(call)


@pytest.mark.parametrize("implementation", ["flash_attention_2", "flex_attention", "eager"])
@pytest.mark.parametrize("mask", [torch.zeros(1, 5), "blocks"], ids=["flat", "blocks"])
def test_a_mask_of_another_kind_is_refused(randn, implementation, mask):
    call, _ = routed(randn, torch.zeros(1, 1, 5, 5), implementation)
    read_call(call)
    with pytest.raises(CaptureError, match=rf"{implementation}.*does not read.*'eager', 'sdpa'"):
        read_call(replace(call, mask=mask))


# Queries whose mask holds all keys.


def held(row, kind, heads=1, count=9):
    """A causal mask that holds one query back from all keys, in the last of its heads."""
    allowed = torch.ones(1, heads, count, count, dtype=torch.bool).tril()
    allowed[:, -1, row] = False
    if kind == "boolean":
        return allowed
    least = torch.finfo(torch.float32).min if kind == "least" else -1e5
    return torch.zeros(allowed.shape).masked_fill(~allowed, least)


@pytest.mark.parametrize(
    ("row", "heads", "kind", "implementation"),
    all_pairs(range(1, 9), [1, 4], ["least", "large"], ["eager", "sdpa"]),
)
def test_even_attention_is_no_empty_row(tiny, row, heads, kind, implementation):
    """Others read what the query makes of all keys, so that it is no padding."""
    model, ids = tiny("llama", implementation), torch.tensor([list(range(3, 12))])
    mask = held(row, kind, heads)
    head = heads - 1 if heads > 1 else 0
    match = f"attends at query {row}, head {head}, though its mask excludes"
    if row == 8 and heads == 1:  # Nobody reads the last query, nor does it read: it is padding.
        with capturing(model) as run, torch.no_grad():
            model(ids, attention_mask=mask)
        assert run.trace[0, 0].graph.num_tokens == 8
        return
    with pytest.raises(CaptureError, match=match), capturing(model), torch.no_grad():
        model(ids, attention_mask=mask)
    with (
        pytest.raises(CaptureError, match=match),
        edited(model, Cut(layer=0, head=0, key=0)),
        torch.no_grad(),
    ):
        model(ids, attention_mask=mask)


@pytest.mark.parametrize("row", range(1, 8))
def test_a_query_that_reads_nothing_is_an_empty_row(tiny, row):
    """What booleans hold back, torch's kernel gives no output: the oracle is its own."""
    model, outputs = tiny("llama", "sdpa"), []
    ids = torch.tensor([list(range(3, 12))])
    model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(
        lambda module, given: outputs.append(given[0])
    )
    with capturing(model) as run, torch.no_grad():
        model(ids, attention_mask=held(row, "boolean"))
    assert not outputs[0][0, row].any()
    assert run.trace[0, 0].to_dense().any(1).tolist() == [n != row for n in range(9)]
