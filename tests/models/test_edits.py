"""What each edit means, against dense algebra that runs inside of the same model."""

from functools import partial

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gattn import (
    ALiBi,
    AttentionGraph,
    Cosine,
    Cut,
    Dot,
    ModelScore,
    PositionWeight,
    Restrict,
    Rotary,
    Scale,
    ScaledDotProduct,
    Sigmoid,
    Softmax,
    Sparsemax,
    SquaredDistance,
    Swap,
    TokenGraph,
    TopK,
    Use,
    WeightFunction,
    attention_graphs,
    capture,
    edited,
    load,
)
from gattn.cli.arguments.edits import read_edit
from gattn.errors import ContractError, EditError, SelectionError

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]
OTHERS = [44, 2, 9, 9, 30]
N = len(IDS)
ROUTED = (
    "bert", "roberta", "albert", "modernbert", "gpt2", "opt", "llama", "qwen2", "mistral",
    "gemma2", "gpt-oss", "t5", "bart",
)  # fmt: skip
# These compute in double precision all the way, the others norm or rotate in single.
EXACT = ("gpt2", "bert", "bart")


def inputs_of(model, ids=IDS):
    inputs = {"input_ids": torch.tensor([ids])}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([OTHERS])
    return inputs


def run(model, *edits, ids=IDS, **options):
    """Run a model with edits; its output."""
    with torch.no_grad():
        if not edits:
            return model(**inputs_of(model, ids))[0]
        with edited(model, *edits, **options):
            return model(**inputs_of(model, ids))[0]


def close(found, expected, name="llama", scale=1.0):
    atol = (1e-9 if name in EXACT else 2e-5) * scale
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def rows_of(model, layer, *edits, ids=IDS):
    """What goes into the output projection of a layer, with edits: (tokens, heads * dim)."""
    seen = []
    parts = [m for name, m in model.named_modules() if name.endswith(("o_proj", "attn.c_proj"))]
    handle = parts[layer].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    run(model, *edits, ids=ids)
    handle.remove()
    return seen[0].reshape(len(ids), -1)


@pytest.mark.parametrize("name", ROUTED)
def test_the_oracle_runs_a_model_as_it_is(tiny, dense, name):
    model = tiny(name, "eager")
    found = dense.run(model, inputs_of(model))
    torch.testing.assert_close(found, run(model), rtol=1e-4, atol=1e-4)


# Cut and Scale

WHERE = {
    "one edge": {"layer": 1, "head": 2, "query": 5, "key": 3},
    "an edge from the first": {"layer": 0, "head": 0, "query": 8, "key": 0},
    "a self-loop": {"layer": 0, "head": 3, "query": 4, "key": 4},
    "spans": {"layer": 0, "head": 1, "query": slice(4, 7), "key": range(1, 5)},
    "open spans": {"layer": 0, "head": 1, "query": slice(4, None), "key": slice(None, 3)},
    "lists": {"layer": [0, 1], "head": [0, 3], "query": [2, 8], "key": [0, 2, 7]},
    "all out of a token": {"layer": 1, "head": 1, "key": 2},
    "all into a token": {"layer": 1, "head": 1, "query": 6},
    "every head and layer": {"query": 7, "key": [0, 1]},
    "several tokens, all layers": {"head": 2, "key": slice(0, 4)},
}


@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE.keys())
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_edges_are_cut_and_scaled_as_dense_algebra_does(tiny, densely, name, implementation, where):
    model = tiny(name, implementation, torch.float64)
    inputs, plain = inputs_of(model), run(model)
    for edit, spec in (
        (Cut(**where), where),
        (Cut(**where, renormalize=False), where | {"factor": 0.0}),
        (Scale(2.5, **where), where | {"factor": 2.5}),
        (Scale(-1, **where), where | {"factor": -1.0}),
    ):
        found = run(model, edit)
        close(found, densely(model, inputs, spec), name)
        assert float((found - plain).abs().max()) > 1e-5, f"{edit} changed nothing"


@pytest.mark.parametrize("name", ROUTED)
def test_edges_are_cut_in_every_family(tiny, densely, name):
    model = tiny(name, "eager", torch.float32 if name == "gpt-oss" else torch.float64)
    stack = {"t5": "encoder", "bart": "encoder"}.get(name)
    where = {"layer": 0, "head": 1, "query": slice(3, 6), "key": [3, 4]}
    specs = [where]
    found = run(model, Cut(**where, stack=stack))
    close(found, densely(model, inputs_of(model), *specs), name, 10)
    assert float((found - run(model)).abs().max()) > 1e-4


def test_a_cut_head_is_a_head_set_to_zero_before_its_projection(tiny):
    for name, implementation in (("llama", "sdpa"), ("gpt2", "eager"), ("gpt-oss", "eager")):
        model = tiny(name, implementation)

        def ablate(module, given):
            changed = given[0].clone()
            changed[..., 2 * 8 : 3 * 8] = 0
            return (changed,)

        parts = [m for n, m in model.named_modules() if n.endswith(("o_proj", "attn.c_proj"))]
        handle = parts[1].register_forward_pre_hook(ablate)
        expected = run(model)
        handle.remove()
        for renormalize in (True, False):
            found = run(model, Cut(layer=1, head=2, renormalize=renormalize))
            close(found, expected)
        assert not torch.equal(expected, run(model))


def test_a_cut_of_a_key_afterwards_is_value_zeroing(tiny):
    """Zero the value of token 4 in heads 1 and 2: a slice of what GPT-2 projects."""
    model = tiny("gpt2", "sdpa", torch.float64)

    def zero(module, given, output):
        output = output.clone()
        output[:, 4, 64 + 8 : 64 + 24] = 0
        return output

    handle = model.transformer.h[0].attn.c_attn.register_forward_hook(zero)
    expected = run(model)
    handle.remove()
    found = run(model, Cut(layer=0, head=[1, 2], key=4, renormalize=False))
    close(found, expected, "gpt2")


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "gpt2"])
def test_a_query_without_edges_gets_zero(tiny, name):
    model = tiny(name, "eager")
    for edit in (Cut(layer=0, head=1, query=6), Cut(layer=0, head=1, query=6, key=slice(0, 7))):
        rows = rows_of(model, 0, edit).unflatten(1, (4, -1))
        assert not bool(rows[6, 1].any())
        assert bool(rows[6, [0, 2, 3]].any())
        assert bool(rows[[5, 7, 8], 1].any(1).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("edit", "rows"),
    [
        (Cut(layer=1, head=2, query=5, key=3), [5]),
        (Cut(layer=1, head=2, query=5, key=3, renormalize=False), [5]),
        (Cut(layer=1, head=2, key=6), [6, 7, 8]),
        (Cut(layer=1, head=2, query=slice(3, 6)), [3, 4, 5]),
        (Scale(3.0, layer=1, head=2, query=[1, 4], key=4), [4]),
        (Restrict(TokenGraph.window(64, 7), layer=1, head=2), [7, 8]),
    ],
    ids=repr,
)
def test_rows_that_an_edit_leaves_alone_stay_bit_for_bit(tiny, implementation, dtype, edit, rows):
    model = tiny("llama", implementation, dtype)
    plain, found = (rows_of(model, 1, *some).unflatten(1, (4, 8)) for some in ([], [edit]))
    assert torch.equal(found[:, [0, 1, 3]], plain[:, [0, 1, 3]])
    changed = (found[:, 2] != plain[:, 2]).any(1).nonzero()[:, 0].tolist()
    assert changed == rows


def test_many_keys_leave_the_rows_before_them_alone(tiny):
    model, ids = tiny("llama", max_position_embeddings=512), [7 + n % 40 for n in range(400)]
    for edit in (Cut(layer=0, head=0, key=slice(100, 400)), Scale(2.0, 0, 0, key=slice(100, None))):
        plain, found = (rows_of(model, 0, *some, ids=ids) for some in ([], [edit]))
        assert torch.equal(plain[:100], found[:100])
        assert bool((plain[100:, :8] != found[100:, :8]).any(1).all())


# Properties


def places(count):
    one = st.integers(0, count - 1)
    some = st.lists(one, min_size=1, max_size=4, unique=True)
    span = st.tuples(one, st.integers(1, count)).map(lambda x: slice(x[0], x[0] + x[1]))
    return st.one_of(st.none(), one, some, span)


SPECS = st.fixed_dictionaries(
    {
        "layer": st.just(0),
        "head": st.one_of(st.none(), st.integers(0, 3), st.just([0, 2])),
        "query": places(N),
        "key": places(N),
        "factor": st.one_of(st.none(), st.sampled_from([0.0, -1.0, 0.5, 3.0])),
    }
)


def edit_of(spec):
    where = {name: spec[name] for name in ("layer", "head", "query", "key")}
    if spec["factor"] is None:
        return Cut(**where)
    return (
        Cut(**where, renormalize=False) if spec["factor"] == 0 else Scale(spec["factor"], **where)
    )


def has_edges(spec):
    queries, keys = (
        [*range(N)][x] if isinstance(x, slice) else x for x in (spec["query"], spec["key"])
    )
    queries, keys = (
        [*range(N)] if x is None else [x] if isinstance(x, int) else x for x in (queries, keys)
    )
    return any(key <= query for query in queries for key in keys)


@pytest.fixture(scope="module")
def small(tiny):
    return {
        name: tiny(name, "sdpa", torch.float64, **{layers: 1})
        for name, layers in (("gpt2", "n_layer"), ("llama", "num_hidden_layers"))
    }


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@settings(max_examples=40)
@given(specs=st.lists(SPECS.filter(has_edges), min_size=1, max_size=5), data=st.data())
def test_any_edits_together_are_dense_algebra(small, densely, name, specs, data):
    model, edits = small[name], [edit_of(spec) for spec in specs]
    found = run(model, *edits)
    close(found, densely(model, inputs_of(model), *specs), name)
    order = data.draw(st.permutations(edits))
    close(run(model, *order), found, name)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@settings(max_examples=20)
@given(pairs=st.sets(st.tuples(st.integers(0, N - 1), st.integers(0, N - 1)), min_size=1))
def test_restricting_is_a_dense_mask(small, dense, name, pairs):
    model = small[name]
    inside = torch.zeros(N, N, dtype=torch.bool)
    for query, key in pairs:
        inside[query, key] = True
    graph = TokenGraph.from_mask(inside)
    expected = dense.run(
        model, inputs_of(model), lambda call, scores: scores.masked_fill(~inside, -torch.inf)
    )
    close(run(model, Restrict(graph)), expected, name)


# Restrict


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_restricting_to_a_window_is_the_models_own_window(tiny, implementation):
    local = tiny("mistral", implementation)
    everywhere = tiny("mistral", implementation, sliding_window=None)
    assert not torch.allclose(run(local), run(everywhere), atol=1e-3)
    found = run(everywhere, Restrict(TokenGraph.window(512, 4)))
    torch.testing.assert_close(found, run(local), rtol=0, atol=1e-5)


def test_restricting_a_model_is_running_it_with_a_mask(tiny, randn):
    model = tiny("llama", "eager")
    inside = (randn(N, N) > 0) | torch.eye(N, dtype=torch.bool)
    mask = torch.where(inside.tril(), 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        expected = model(**inputs_of(model), attention_mask=mask)[0]
    found = run(model, Restrict(TokenGraph.from_mask(inside)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    wider = torch.zeros(20, 20, dtype=torch.bool)
    wider[:N, :N] = inside
    again = run(model, Restrict(TokenGraph.from_mask(wider)))
    assert torch.equal(found, again)
    with edited(model, Restrict(TokenGraph.from_mask(wider))):
        head = capture(IDS, model)[1, 2]
    assert torch.equal(head.graph.mask(), inside.tril())


def test_a_graph_that_does_not_fit_is_refused(tiny):
    model = tiny("llama")
    with pytest.raises(
        EditError, match=r"8 queries and 8 keys, but the sequence\s+now has 9 and 9"
    ):
        run(model, Restrict(TokenGraph.causal(8)))
    bipartite = TokenGraph.bipartite(N, N)
    with pytest.raises(EditError, match=r"the given one joins two.*from_mask\(mask\)\."):
        run(model, Restrict(bipartite))
    with pytest.raises(EditError, match="start at position 3"):
        Restrict(TokenGraph.causal(9, query_offset=3))
    for wrong in (None, "window", torch.eye(3)):
        with pytest.raises(EditError, match="Restrict takes a TokenGraph"):
            Restrict(wrong)


# Use


@pytest.mark.parametrize("name", ["llama", "mistral", "bert", "gpt-oss"])
def test_a_head_with_its_own_graph_is_the_same_head(tiny, name):
    model = tiny(name, "eager")
    trace = capture(IDS, model)
    edits = [Use(graph, layer, head) for (layer, head), graph in trace.only_stack.items()]
    torch.testing.assert_close(run(model, *edits), run(model), rtol=0, atol=2e-4)
    assert len(edits) == 8


def test_a_head_runs_with_the_graph_of_another_run(tiny, dense):
    model = tiny("gpt2", "sdpa", torch.float64)
    other = capture([9, 8, 7, 6, 5, 4, 3, 2, 1, 11], model)[1, 3]
    given = torch.from_numpy(other.to_dense())[:N, :N]

    def after(call, attention):
        attention = attention.clone()
        if call.layer == 0:
            attention[:, [0, 2]] = given
        return attention

    expected = dense.run(model, inputs_of(model), after=after)
    close(run(model, Use(other, 0, [0, 2])), expected, "gpt2")


def test_a_head_runs_with_a_graph_edited_in_networkx(tiny, dense):
    model = tiny("llama", "sdpa", torch.float64)
    network = capture(IDS, model)[0, 1].to_networkx()
    network.remove_edge(3, 5)
    nx.set_edge_attributes(network, {(0, 8): {"weight": 0.75}})
    graph = AttentionGraph.from_networkx(network)
    matrix = nx.to_numpy_array(network, nodelist=range(N), weight="weight").T

    def after(call, attention):
        attention = attention.clone()
        if call.layer == 0:
            attention[:, 1] = torch.from_numpy(matrix)
        return attention

    expected = dense.run(model, inputs_of(model), after=after)
    found = run(model, Use(graph, 0, 1))
    close(found, expected)
    assert float((found - run(model)).abs().max()) > 1e-4


def test_kept_edges_are_used_as_they_are(tiny, dense):
    model = tiny("gpt2", "sdpa", torch.float64)
    head = capture(IDS, model)[0, 0]
    kept = head.keep(TopK(2))
    expected = dense.run(
        model,
        inputs_of(model),
        after=lambda call, attention: (
            torch.cat([torch.from_numpy(kept.to_dense()).expand(1, 1, N, N), attention[:, 1:]], 1)
            if call.layer == 0
            else attention
        ),
    )
    close(run(model, Use(kept, 0, 0)), expected, "gpt2")


def test_what_a_given_graph_would_replace_is_refused(tiny):
    model = tiny("llama")
    trace = capture(IDS, model)
    graph = Use(trace[0, 0], 0, [0, 1])
    for lost in (
        Scale(9.0, 0, 0),
        Cut(0, 1, key=3, renormalize=False),
        Use(trace[0, 1], 0, 0),
        Restrict(TokenGraph.window(N, 2)),
    ):
        with pytest.raises(EditError, match="sets a head's attention") as error:
            run(model, lost, graph)
        assert f"which overrides {lost}" in str(error.value)
        with (
            pytest.raises(EditError, match="which overrides"),
            edited(model, lost),
            edited(model, graph),
        ):
            run(model)
    assert torch.equal(run(model, Scale(9.0, 0, 2), graph), run(model, graph, Scale(9.0, 0, 2)))


def test_given_attention_can_be_scaled_but_not_cut_before_normalizing(tiny):
    model = tiny("llama", "sdpa", torch.float64)
    graph = capture(IDS, model)[0, 0]
    found = run(model, Use(graph, 0, 0), Scale(2.0, 0, 0, query=4))
    close(found, run(model, Scale(2.0, 0, 0, query=4)))
    for other in (Cut(layer=0, head=0, key=3), Swap(0, 0, normalizer=Sparsemax())):
        with pytest.raises(EditError, match="sets a head's attention"):
            run(model, Use(graph, 0, 0), other)
    close(run(model, Use(graph, 0, 0), Cut(layer=0, head=1, key=3)), run(model, Cut(0, 1, key=3)))


def test_a_graph_that_cannot_be_used_is_refused(tiny):
    model = tiny("llama")
    short = capture(IDS[:-1], model)[0, 0]
    with pytest.raises(EditError, match="build it for all tokens, generated ones too"):
        run(model, Use(short, 0, 0))
    with pytest.raises(EditError, match="takes an AttentionGraph"):
        Use(TokenGraph.causal(4), 0, 0)
    words = capture("the dog", None).only_stack[0, 0]
    with pytest.raises(EditError, match="not a subgraph"):
        Use(words.subgraph([1, 2]), 0, 0)


# Swap


@pytest.mark.parametrize("name", ROUTED)
def test_the_models_own_score_changes_nothing(tiny, name):
    model = tiny(name, "eager")
    stacks = ["encoder", "decoder", "cross"] if model.config.is_encoder_decoder else [None]
    for stack in stacks:
        found = run(model, Swap(weight=ModelScore(), stack=stack))
        torch.testing.assert_close(found, run(model), rtol=0, atol=1e-4)
        assert not torch.equal(found, run(model, Swap(weight=2 * ModelScore(), stack=stack)))


class Offset(PositionWeight):
    """Scores how far back a key is, one number per head."""

    def __init__(self, slopes):
        super().__init__()
        self.slopes = torch.nn.Parameter(slopes)

    def forward(self, query, key, pairs):
        return -self.slopes * pairs.offset


def distances():
    return (torch.arange(N)[:, None] - torch.arange(N)).double()


SWAPS = {
    "twice": (2 * ModelScore(), lambda call, scores: 2 * scores),
    "a bias": (
        ModelScore() + ALiBi(4),
        lambda call, scores: (
            scores
            - torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]).double().reshape(4, 1, 1)
            * distances().abs()
        ),
    ),
    "squared distance": (
        SquaredDistance(),
        lambda call, scores: (
            -(call.query[:, :, :, None] - call.key[:, :, None]).square().sum(-1)
        ).masked_fill(scores == -torch.inf, -torch.inf),
    ),
    "a plain function": (
        lambda query, key, pairs: (query * key).sum(-1) ** 3,
        lambda call, scores: ((call.query @ call.key.mT) ** 3).masked_fill(
            scores == -torch.inf, -torch.inf
        ),
    ),
    "dot": (
        Dot(),
        lambda call, scores: (call.query @ call.key.mT).masked_fill(
            scores == -torch.inf, -torch.inf
        ),
    ),
    "mixed": (
        0.5 * (ModelScore() + 3 * Cosine()),
        lambda call, scores: (
            0.5
            * (
                scores
                + 3
                * torch.nn.functional.normalize(call.query, dim=-1)
                @ torch.nn.functional.normalize(call.key, dim=-1).mT
            )
        ),
    ),
}


@pytest.mark.parametrize("head", [None, 2, [0, 3]], ids=str)
@pytest.mark.parametrize("case", SWAPS.values(), ids=SWAPS.keys())
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_a_swapped_weight_is_dense_algebra(tiny, dense, name, case, head):
    model = tiny(name, "eager", torch.float64)
    weight, formula = case
    heads = [*range(4)] if head is None else [head] if isinstance(head, int) else head

    def before(call, scores):
        if call.layer != 1:
            return scores
        found = scores.clone()
        found[:, heads] = formula(call, scores)[:, heads]
        return found

    expected = dense.run(model, inputs_of(model), before)
    found = run(model, Swap(1, head, weight=weight))
    close(found, expected, name)
    assert float((found - run(model)).abs().max()) > 1e-4


@pytest.mark.parametrize(("name", "stack"), [("t5", "encoder"), ("gemma2", None)])
def test_a_swapped_weight_replaces_scale_softcap_and_bias(tiny, dense, name, stack):
    model = tiny(name, "eager", torch.float64)

    def before(call, scores):
        if call.layer != 1:
            return scores
        return (call.query @ call.key.mT / 3).masked_fill(scores == -torch.inf, -torch.inf)

    expected = dense.run(model, inputs_of(model), before)
    found = run(model, Swap(1, weight=Dot() * (1 / 3), stack=stack))
    close(found, expected)
    assert float((found - run(model)).abs().max()) > 1e-4


def test_twice_the_score_is_half_the_temperature(tiny):
    for name in ("llama", "gemma2", "gpt2"):
        model = tiny(name, "eager", torch.float64)
        one = run(model, Swap(weight=2 * ModelScore()))
        other = run(model, Swap(normalizer=Softmax(temperature=0.5)))
        close(one, other, name)


def test_a_swapped_normalizer_is_dense_algebra(tiny, dense):
    model = tiny("gpt2", "sdpa", torch.float64)
    seen = {}

    def before(call, scores):
        seen["scores"] = scores
        return scores

    def after(call, attention):
        attention = attention.clone()
        attention[:, 1] = torch.sigmoid(seen["scores"][:, 1])
        return attention

    expected = dense.run(model, inputs_of(model), before, after)
    close(run(model, Swap(head=1, normalizer=Sigmoid(bias=0.0))), expected, "gpt2")


def test_a_swapped_normalizer_replaces_the_sink(tiny, dense):
    model = tiny("gpt-oss", "eager")
    seen = {}

    def before(call, scores):
        seen["scores"] = scores
        return scores

    def after(call, attention):
        return torch.softmax(seen["scores"], -1)

    expected = dense.run(model, inputs_of(model), before, after)
    found = run(model, Swap(normalizer=Softmax()))
    close(found, expected)
    assert float((found - run(model)).abs().max()) > 1e-4


def test_parameters_of_a_head_apiece_go_to_their_heads(tiny, dense):
    slopes = torch.tensor([0.3, -0.2, 1.0, 0.0], dtype=torch.float64)
    model = tiny("gpt2", "sdpa", torch.float64)
    change = slopes.reshape(4, 1, 1) * distances()
    for heads in ([0, 1, 2, 3], [2], [0, 2]):
        kept = torch.zeros(4, 1, 1, dtype=torch.float64)
        kept[heads] = 1
        expected = dense.run(
            model, inputs_of(model), lambda call, scores, kept=kept: scores + kept * change
        )
        found = run(model, Swap(head=heads, weight=ModelScore() + Offset(slopes)))
        close(found, expected, "gpt2")


def test_swaps_and_cuts_go_together(tiny, dense):
    model = tiny("gpt2", "sdpa", torch.float64)

    def before(call, scores):
        scores = 2 * scores
        scores[:, 1, 5:, 2] = -torch.inf
        return scores

    expected = dense.run(model, inputs_of(model), before)
    edits = [Swap(weight=2 * ModelScore()), Cut(head=1, query=slice(5, None), key=2)]
    close(run(model, *edits), expected, "gpt2")
    close(run(model, *edits[::-1]), expected, "gpt2")


def test_a_later_swap_builds_on_an_earlier_one_of_the_normalizer_alone(tiny):
    model = tiny("gpt2", "sdpa", torch.float64)
    both = run(model, Swap(weight=Dot()), Swap(normalizer=Sparsemax()))
    close(run(model, Swap(weight=Dot(), normalizer=Sparsemax())), both, "gpt2")
    last = run(model, Swap(weight=Dot()), Swap(weight=ScaledDotProduct()))
    close(last, run(model), "gpt2")


def test_what_cannot_be_swapped_is_refused():
    with pytest.raises(EditError, match="it got neither"):
        Swap(layer=1)
    with pytest.raises(EditError, match="normalizer must be a Normalizer"):
        Swap(normalizer=torch.softmax)
    for weight in (Rotary(Dot(), 8), ModelScore() + Rotary(Dot(), 8)):
        with pytest.raises(EditError, match=r"without Rotary"):
            Swap(weight=weight)
    with pytest.raises(ContractError, match="only inside Swap"):
        ModelScore()(torch.zeros(2), torch.zeros(2), None)
    assert isinstance(ModelScore(), WeightFunction)


# Wrong arguments


@pytest.mark.parametrize("wrong", [-1, 1.5, [], [0, -2], True, np.bool_(True), [1.5]], ids=repr)
@pytest.mark.parametrize("name", ["layer", "head"])
def test_a_layer_or_head_is_a_number(name, wrong):
    says = f"{name} (takes a whole number|is empty|counts from 0)"
    with pytest.raises(SelectionError, match=says):
        Cut(**{name: wrong})


@pytest.mark.parametrize("name", ["layer", "head"])
def test_more_layers_or_heads_than_any_model_has_are_refused_at_once(name):
    with pytest.raises(SelectionError, match=f"{name} names at most 100,000"):
        Cut(**{name: range(10**30)})
    assert Cut(**{name: range(3)}) == Cut(**{name: range(3)})


def test_heads_may_be_text_as_in_a_capture():
    assert Cut(layer=2, head="1") == Cut(layer=2, head=1)
    assert Cut(layer=2, head="0,2-3") == Cut(layer=2, head=[0, 2, 3])


PLACES = [
    ((2, 1), {"layer": 2, "head": 1}),
    ("2.1", {"layer": 2, "head": 1}),
    ([(2, 1)], {"layer": 2, "head": 1}),
    ((np.int64(2), 1), {"layer": 2, "head": 1}),
    (["2.1"], {"layer": 2, "head": 1}),
]


@pytest.mark.parametrize(("place", "named"), PLACES, ids=str)
def test_a_pair_or_its_text_is_a_head(place, named):
    for made, plain in (
        (Cut(place), Cut(**named)),
        (Scale(2.0, place), Scale(2.0, **named)),
        (Swap(place, weight=Dot()), Swap(**named, weight=Dot())),
        (Restrict(TokenGraph.causal(4), place), Restrict(TokenGraph.causal(4), **named)),
    ):
        assert repr(made) == repr(plain)
        assert made == plain
        assert (made.layer, made.head) == (2, 1)
    graph = AttentionGraph.from_dense(np.eye(4))
    assert repr(Use(graph, place)) == repr(Use(graph, **named))


WRITTEN = ["2", "0-2", "1,3", "2.1", "2.0-1", "0-2,5.1", "*.1", "*", "cross:2.1", "1.1,2.0"]
WRITTEN += ["cross:1.0-1,2.0", "layers.blocks:0.1", "1.1, 2.0", "decoder 2:1.0", "a to b:1.0,2.1"]


@pytest.mark.parametrize("text", WRITTEN)
def test_python_reads_places_as_the_command_line_does(text):
    assert Cut(text) == read_edit("--cut", text)(4, 9)
    assert Scale(0.5, text, query=9, key=4) == read_edit("--scale", f"0.5:{text}:9<-4")(4, 9)
    assert Swap(text, weight=Dot()) == read_edit("--swap", f"dot@{text}")(4, 9)


def test_text_names_heads_and_their_stack():
    assert Cut("cross:0-2.1") == Cut([0, 1, 2], 1, stack="cross")
    assert Cut("cross:2.1", stack="cross") == Cut(["cross:2.1"]) == Cut(2, 1, stack="cross")
    assert Cut("1.1,2.0") == Cut([(1, 1), (2, 0)]) == Cut(["1.1", (2, 0)])
    assert Cut("1.0-1,2.0") == Cut([(1, 0), (1, 1), (2, 0)])
    assert Cut("2", 1) == Cut(2, 1)
    with pytest.raises(SelectionError, match="already names a stack, so leave out stack='encoder'"):
        Cut("cross:2.1", stack="encoder")
    with pytest.raises(SelectionError, match="heads of one stack"):
        Cut(["cross:2.1", "decoder:2.0"])
    with pytest.raises(SelectionError, match="tokens are named by query= and key="):
        Cut("2.1:9<-4")


def test_places_cut_their_heads_and_no_others(tiny):
    model = tiny("gpt2", "sdpa", torch.float64)
    expected = run(model, Cut(0, 1), Cut(0, 3), Cut(1, 2))
    for places in ([(0, 1), (0, 3), (1, 2)], ((0, 1), (0, 3), (1, 2)), ["0.1", (1, 2), "0.3"]):
        assert torch.equal(run(model, Cut(places)), expected)
    both = run(model, Cut(0), Cut(1))
    assert torch.equal(run(model, Cut([0, 1])), both)
    assert torch.equal(run(model, Cut((0, 1))), run(model, Cut(layer=0, head=1)))
    with pytest.raises(EditError, match=r"had nothing to edit in layer 7"):
        run(model, Cut([(0, 1), (7, 1)]))
    with pytest.raises(SelectionError, match="names head 9"):
        run(model, Cut([(0, 1), (1, 9)]))


@pytest.mark.parametrize(
    ("wrong", "head", "says"),
    [
        ((2, 1), 0, r"write a list, as in layer=\[2, 1\]"),
        ("2.1", 0, "already names heads"),
        ("one", None, r"a place \[STACK:\]LAYER\[.HEAD\], both from 0, such as 2.1"),
        ("-2", None, r"a place \[STACK:\]LAYER\[.HEAD\], both from 0, such as 2.1"),
        ("3-2.1", None, "rising ranges"),
        (["2"], None, "heads with their layers"),
        ("0-99999.0-99999,1.1", None, "at most 100,000 heads"),
        ((2, -1), None, "count from 0"),
        ([2, (3, 1)], None, "names layers, such as"),
        ([(2, 1, 0)], None, "names layers, such as"),
    ],
)
def test_what_may_be_layers_or_heads_is_refused(wrong, head, says):
    with pytest.raises(SelectionError, match=says):
        Cut(wrong, head)


@pytest.mark.parametrize(
    "wrong",
    [1.5, [], True, range(-2, 3), slice(0, 4, 2), slice("a", None), [None], [0, 1.5]],
    ids=repr,
)
@pytest.mark.parametrize("name", ["query", "key"])
def test_a_token_is_a_position_or_a_text(name, wrong):
    with pytest.raises(SelectionError, match=f"{name} is a position that counts from 0"):
        Cut(**{name: wrong})
    with pytest.raises(SelectionError, match=name):
        Scale(2.0, **{name: wrong})


@pytest.mark.parametrize("factor", [None, "2", float("nan"), float("inf")], ids=repr)
def test_a_factor_is_a_finite_number(factor):
    with pytest.raises(EditError, match="The factor of Scale must be a finite number"):
        Scale(factor, key=1)


def test_a_factor_may_be_a_numpy_number():
    made = Scale(np.float32(0.5), key=1)
    assert made == Scale(0.5, key=1)
    assert type(made.factor) is float


def test_positions_beyond_all_numbers_of_a_tensor_are_no_tokens(tiny):
    model = tiny("gpt2", "sdpa", torch.float64)
    far = 2**63
    expected = run(model, Cut(0, 0, key=slice(3, None)))
    for key in (slice(3, far), range(3, far)):
        assert torch.equal(run(model, Cut(0, 0, key=key)), expected)
    for key in (far, [far], slice(far, None), range(far, 10**30, 7)):
        with pytest.raises(EditError, match="had nothing to edit"):
            run(model, Cut(0, 0, key=key))


def test_tensors_and_arrays_name_tokens_too(tiny):
    model = tiny("llama")
    expected = run(model, Cut(0, 0, query=[4, 5], key=[1, 2]))
    for kind in (np.array, torch.tensor):
        assert torch.equal(run(model, Cut(0, 0, query=kind([4, 5]), key=kind([1, 2]))), expected)
    assert torch.equal(
        run(model, Cut(np.int64(0), range(1), np.int64(4), 1)), run(model, Cut(0, 0, 4, 1))
    )


def test_edits_say_what_they_are():
    edit = Cut(layer=5, head=1, query=9, key="the")
    assert repr(edit) == ("Cut(layer=5, head=1, query=9, key='the')")
    with pytest.raises(AttributeError):
        edit.layer = 3


def test_edits_with_the_same_edges_are_equal_whatever_holds_their_keys(tmp_path):
    query = torch.randn(2, 20, 8)
    head = attention_graphs(query, query, TokenGraph.causal(20), keep=TopK(3))[0]
    head.save(tmp_path / "head.gattn")
    again = load(tmp_path / "head.gattn")
    assert Restrict(head.graph, layer=0) == Restrict(again.graph, layer=0)


def test_partial_functions_that_hold_other_tensors_are_other_edits():
    def scored(query, key, pairs, factors):
        return (query * key * factors).sum(-1)

    first, second, third = (
        Swap(layer=0, weight=partial(scored, factors=torch.full((8,), size)))
        for size in (1.0, 1.0, 2.0)
    )
    assert first == second
    assert first != third
