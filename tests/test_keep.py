"""Keep rules against sorting in plain Python."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gattn.attention import attention_graphs
from gattn.errors import GraphError
from gattn.graph.token_graph import TokenGraph
from gattn.keep import All, Keep, Threshold, TopK, TopMass


@pytest.fixture(params=[True, False], ids=["as little", "as much"], scope="module", autouse=True)
def steps(request: pytest.FixtureRequest) -> Iterator[None]:
    """Look at blocks of any size in the steps that large ones take."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.param:
            patch.setattr("gattn.largest._LITTLE", 0)
        yield


def kept(keep: Keep, row: list[float], present: list[bool] | None = None) -> list[int]:
    there = torch.tensor([present or [True] * len(row)])
    (chosen,) = keep.select(torch.tensor([row], dtype=torch.float64), there)
    return chosen.nonzero()[:, 0].tolist()


eighths = st.lists(st.integers(-8, 8).map(lambda n: n / 8), min_size=1, max_size=9)


@given(eighths, st.integers(1, 10))
@settings(max_examples=60)
def test_top_k_keeps_the_strongest_and_of_equals_the_smaller_key(row: list[float], k: int) -> None:
    ranked = sorted(range(len(row)), key=lambda j: (-abs(row[j]), j))
    assert kept(TopK(k), row) == sorted(ranked[:k])


@given(eighths, st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9, 1.0]))
@settings(max_examples=60)
def test_top_mass_is_the_shortest_run_that_reaches_the_share(row: list[float], p: float) -> None:
    ranked = sorted(range(len(row)), key=lambda j: (-abs(row[j]), j))
    total = sum(map(abs, row))
    run = next(
        ranked[:size]
        for size in range(len(row) + 1)
        if sum(abs(row[j]) for j in ranked[:size]) >= p * total
    )
    assert kept(TopMass(p), row) == sorted(run)


@given(eighths, st.sampled_from([0.0, 0.125, 0.3, 0.5, 1.0]))
@settings(max_examples=40)
def test_threshold_compares_sizes(row: list[float], t: float) -> None:
    assert kept(Threshold(t), row) == [j for j, a in enumerate(row) if abs(a) >= t]


@pytest.mark.parametrize("keep", [All(), Threshold(0.0), TopK(2), TopMass(1.0)])
def test_slots_that_are_no_edges_are_never_kept(keep: Keep) -> None:
    assert kept(keep, [0.5, 9.0, 0.25, 7.0], [True, False, True, False]) == [0, 2]
    assert kept(keep, [1.0, 2.0], [False, False]) == []


@pytest.mark.parametrize("keep", [All(), Threshold(0.2), TopK(2), TopMass(0.7)])
def test_heads_and_rows_are_chosen_one_by_one(keep: Keep) -> None:
    attention = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(1)).softmax(-1)
    present = torch.ones(3, 5, dtype=torch.bool).tril(1)
    whole = keep.select(attention, present)
    assert whole.shape == attention.shape
    for head in range(2):
        for row in range(3):
            alone = keep.select(attention[head, row : row + 1], present[row : row + 1])
            assert torch.equal(whole[head, row], alone[0])


KEEPS = [All(), Threshold(0.0), Threshold(0.3), TopK(1), TopK(3), TopMass(0.7), TopMass(1.0)]


class EverySecond(Keep):
    """A keep of a user's own."""

    def select(self, attention: Tensor, present: Tensor) -> Tensor:
        second = torch.arange(attention.shape[-1]) % 2 == 0
        return second & present


def drawn(
    shape: tuple[int, ...], share: float, levels: int, seed: int, shift: int = 0
) -> tuple[Tensor, Tensor]:
    """Signed rows of few levels, so with many ties and zeros, and where they have slots."""
    generator = torch.Generator().manual_seed(seed)
    present = torch.rand(shape[-2:], generator=generator) < share
    attention = torch.randint(-levels, levels + 1, shape, generator=generator) + shift
    return (attention / (2 * levels)).double() * present, present


def ranked_by_hand(attention: Tensor, present: Tensor, k: int) -> list[int]:
    """Rank each row in plain Python: flat places."""
    slots = attention.shape[-1]
    rows = attention.flatten(0, 1).tolist()
    there = present.expand(attention.shape).flatten(0, 1).tolist()
    places = []
    for number, (row, edge) in enumerate(zip(rows, there, strict=True)):
        ranked = sorted((j for j in range(slots) if edge[j]), key=lambda j: (-abs(row[j]), j))
        places += [number * slots + j for j in sorted(ranked[:k])]
    return places


blocks = st.builds(
    drawn,
    st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 12)),
    st.sampled_from([0.0, 0.2, 0.7, 1.0]),
    st.integers(1, 4),
    st.integers(0, 10**6),
    st.sampled_from([0, 0, 4]),
)


@given(blocks, st.integers(1, 14))
@settings(max_examples=100)
def test_places_of_top_k_are_those_of_sorting(block: tuple[Tensor, Tensor], k: int) -> None:
    attention, present = block
    for rows in (attention, attention.float()):
        assert TopK(k).places(rows, present).tolist() == ranked_by_hand(rows, present, k)


@given(
    st.one_of(st.integers(30, 900), st.integers(900, 9000)),
    st.one_of(st.integers(1, 20), st.integers(20, 300)),
    st.sampled_from([0.01, 0.5, 1.0]),
    st.sampled_from([1, 3, 50, 10**6]),
    st.integers(0, 10**6),
    st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=100)
def test_places_in_long_rows_are_those_of_sorting(
    slots: int, k: int, share: float, levels: int, seed: int, dtype: torch.dtype
) -> None:
    attention, present = drawn((2, 3, slots), share, levels, seed)
    attention = attention.to(dtype)
    there = present.numpy()
    order = np.argsort(np.where(there, -np.abs(attention.numpy()), 1), axis=-1, kind="stable")
    kept = np.zeros(attention.shape, dtype=bool)
    np.put_along_axis(kept, order[..., :k], True, axis=-1)
    found = TopK(k).places(attention, present)
    np.testing.assert_array_equal(found.numpy(), np.flatnonzero(kept & there))


@pytest.mark.parametrize("slots", [50, 256, 300, 2047, 2048, 2100])
@pytest.mark.parametrize("p", [0.02, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("levels", [1, 40, 10**6])
def test_long_runs_reach_the_share_and_no_shorter_one_does(
    slots: int, p: float, levels: int
) -> None:
    attention, present = drawn((2, 4, slots), 0.8, levels, slots)
    attention[0, 0] = 0
    chosen = TopMass(p).select(attention, present).numpy()
    size = np.abs(attention.numpy())
    goal = p * size.sum(-1)
    order = np.argsort(np.where(present.numpy(), -size, 1), axis=-1, kind="stable")
    for place in np.ndindex(2, 4):
        run = order[place][: chosen[place].sum()]
        assert chosen[place][run].all()
        reached = size[place][run].cumsum()
        if not goal[place]:
            assert not len(run)
            continue
        assert reached[-1] >= goal[place] * (1 - 1e-11)
        assert len(run) == 1 or reached[-2] < goal[place]


@pytest.mark.parametrize("share", [0.002, 0.1, 1.0])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("slots", [1, 100, 1024, 1031])
def test_places_above_a_threshold_are_those_of_comparing(
    slots: int, sign: int, share: float
) -> None:
    generator = np.random.default_rng(slots)
    size = np.where(generator.random((3, 5, slots)) < share, generator.random((3, 5, slots)), 0.01)
    size[-1, -1, -1] = 0.1  # in the last chunk, and exactly the threshold
    signs = np.where(generator.random(size.shape) < 0.5, sign, 1)
    attention = torch.from_numpy(size * signs)
    found = Threshold(0.1).places(attention, torch.tensor(True))
    np.testing.assert_array_equal(found.numpy(), np.flatnonzero(size >= 0.1))
    assert len(found) > 0


@given(blocks, st.sampled_from([*KEEPS, EverySecond()]))
@settings(max_examples=100)
def test_places_are_where_select_is_true(block: tuple[Tensor, Tensor], keep: Keep) -> None:
    attention, present = block
    chosen = keep.select(attention, present).expand(attention.shape).numpy()
    found = keep.places(attention, present)
    np.testing.assert_array_equal(found.numpy(), np.flatnonzero(chosen))
    assert found.dtype == torch.int64
    assert not (chosen & ~present.expand(attention.shape).numpy()).any()


@pytest.mark.parametrize("keep", KEEPS, ids=str)
def test_present_broadcasts(keep: Keep) -> None:
    attention, _ = drawn((2, 3, 5), 1.0, 3, 0)
    everywhere = torch.ones(2, 3, 5, dtype=torch.bool)
    rows = torch.tensor([[True], [False], [True]])
    for present in (torch.tensor(True), everywhere[0, :1], everywhere[0, :, :1], rows):
        attention = attention * present
        whole = keep.places(attention, everywhere & present)
        assert torch.equal(keep.places(attention, present), whole)
        assert keep.select(attention, present).shape == (2, 3, 5)


@pytest.mark.parametrize("keep", KEEPS, ids=str)
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_no_slots_keep_nothing(keep: Keep, shape: tuple[int, ...]) -> None:
    attention, present = torch.zeros(shape), torch.ones(shape[1:], dtype=torch.bool)
    assert keep.places(attention, present).tolist() == []
    assert keep.select(attention, present).shape == shape


def test_equals_far_to_the_right_are_found() -> None:
    attention, present = torch.zeros(2, 1, 1000), torch.zeros(1, 1000, dtype=torch.bool)
    attention[0, 0, 500] = 0.25
    present[0, [500, 700, 998, 999]] = True
    assert TopK(3).places(attention, present).tolist() == [500, 700, 998, 1500, 1700, 1998]


@given(blocks, st.sampled_from([*KEEPS, EverySecond()]))
@settings(max_examples=60)
def test_no_more_is_kept_than_the_capacity(block: tuple[Tensor, Tensor], keep: Keep) -> None:
    attention, present = block
    most = keep.capacity(present.sum(-1))
    if isinstance(keep, All | TopK):
        assert most == len(keep.places(attention[:1], present))
    else:
        assert most is None


@pytest.mark.parametrize("run", [1, 32, 256, 2048])
def test_half_precision_is_added_up_exactly(run: int) -> None:
    row = torch.full((1, 4096), 1 / 4096, dtype=torch.float16)
    (chosen,) = TopMass(run / 4096).select(row, torch.ones(1, 4096, dtype=torch.bool))
    assert torch.equal(chosen.nonzero()[:, 0], torch.arange(run))


def test_places_of_a_keep_that_chooses_for_all_heads_at_once() -> None:
    attention, present = torch.ones(2, 2, 3), torch.tensor(True)
    keep = EverySecond()
    assert keep.places(attention, present).tolist() == [0, 2, 3, 5, 6, 8, 9, 11]


def test_a_softmax_row_has_at_most_1_over_t_edges_above_t() -> None:
    attention = torch.randn(50, 40, generator=torch.Generator().manual_seed(2)).mul(3).softmax(-1)
    for t in (0.05, 0.1, 0.3):
        chosen = Threshold(t).select(attention, torch.ones(50, 40, dtype=torch.bool))
        assert int(chosen.sum(-1).max()) <= 1 / t


def test_names_read_like_the_calls() -> None:
    keeps = [All(), Threshold(0.05), TopK(8), TopMass(0.9)]
    assert list(map(str, keeps)) == ["All()", "Threshold(0.05)", "TopK(8)", "TopMass(0.9)"]


@given(st.floats(0, 1, exclude_min=True))
@settings(max_examples=60)
def test_names_are_exact(number: float) -> None:
    for keep in (Threshold(number), TopMass(number), Threshold(np.float64(number))):
        assert eval(str(keep)) == keep
    assert str(Threshold(1 / 3)) == "Threshold(0.3333333333333333)"
    assert str(Threshold(np.float32(0.1))) == "Threshold(0.10000000149011612)"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Threshold(-0.1), "t ≥ 0, not -0.1"),
        (lambda: Threshold(float("nan")), "not nan"),
        (lambda: TopK(0), "whole number ≥ 1, not 0"),
        (lambda: TopK(2.0), "not 2.0"),
        (lambda: TopMass(0.0), "0 < p <= 1, not 0.0"),
        (lambda: TopMass(1.5), "not 1.5"),
    ],
)
def test_errors_name_what_came(build, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        build()


@pytest.mark.parametrize("k", [2**63 - 1, 2**63, 10**30])
def test_more_edges_than_any_row_has_are_all(k: int) -> None:
    graph = TokenGraph.causal(5)
    query, key = torch.randn(2, 1, 5, 4, generator=torch.Generator().manual_seed(0))
    (every,) = attention_graphs(query, key, graph, keep=All())
    (some,) = attention_graphs(query, key, graph, keep=TopK(k))
    assert some.graph.num_edges == every.keep(TopK(k)).graph.num_edges == 15
    assert np.array_equal(some.attention, every.attention)
    assert TopK(k).capacity(torch.tensor([1, 4])) == 5
