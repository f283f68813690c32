"""Keep rules against sorting in plain Python."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gattn.errors import GraphError
from gattn.keep import All, Keep, Threshold, TopK, TopMass


def kept(keep: Keep, row: list[float], present: list[bool] | None = None) -> list[int]:
    there = torch.tensor([present or [True] * len(row)])
    (chosen,) = keep.select(torch.tensor([row], dtype=torch.float64), there)
    return chosen.nonzero()[:, 0].tolist()


eighths = st.lists(st.integers(-8, 8).map(lambda n: n / 8), min_size=1, max_size=9)


@given(eighths, st.integers(1, 10))
@settings(max_examples=60, deadline=None)
def test_top_k_keeps_the_strongest_and_of_equals_the_smaller_key(row: list[float], k: int) -> None:
    ranked = sorted(range(len(row)), key=lambda j: (-abs(row[j]), j))
    assert kept(TopK(k), row) == sorted(ranked[:k])


@given(eighths, st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9, 1.0]))
@settings(max_examples=60, deadline=None)
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
@settings(max_examples=40, deadline=None)
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


def test_half_precision_is_added_up_exactly() -> None:
    row = torch.full((1, 4096), 1 / 4096, dtype=torch.float16)
    (chosen,) = TopMass(0.5).select(row, torch.ones(1, 4096, dtype=torch.bool))
    assert torch.equal(chosen.nonzero()[:, 0], torch.arange(2048))


def test_a_softmax_row_has_at_most_1_over_t_edges_above_t() -> None:
    attention = torch.randn(50, 40, generator=torch.Generator().manual_seed(2)).mul(3).softmax(-1)
    for t in (0.05, 0.1, 0.3):
        chosen = Threshold(t).select(attention, torch.ones(50, 40, dtype=torch.bool))
        assert int(chosen.sum(-1).max()) <= 1 / t


def test_names_read_like_the_calls() -> None:
    keeps = [All(), Threshold(0.05), TopK(8), TopMass(0.9)]
    assert list(map(str, keeps)) == ["All()", "Threshold(0.05)", "TopK(8)", "TopMass(0.9)"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Threshold(-0.1), "t >= 0, not -0.1"),
        (lambda: Threshold(float("nan")), "not nan"),
        (lambda: TopK(0), "k >= 1, not 0"),
        (lambda: TopK(2.0), "not 2.0"),
        (lambda: TopMass(0.0), "0 < p <= 1, not 0.0"),
        (lambda: TopMass(1.5), "not 1.5"),
    ],
)
def test_errors_name_what_came(build, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        build()
