import pytest
import torch
from torch import nn

from gattn.errors import ContractError
from gattn.normalizers import Identity, Normalizer, Softmax
from gattn.testing import check_normalizer, check_weight_function
from gattn.weights import ALiBi, Dot, Softcap, WeightFunction
from gattn.weights.pairs import DotForm


def test_plain_callables_pass():
    check_weight_function(lambda q, k, pairs: torch.cosine_similarity(q, k, dim=-1))
    check_weight_function(lambda q, k, pairs: -0.5 * pairs.offset.abs())
    check_weight_function(lambda q, k, pairs: pairs.offset)


def test_sizes_are_the_callers():
    check_weight_function(
        lambda q, k, pairs: (q[..., :2] * k).sum(-1) * pairs.features.sum(-1, keepdim=True),
        num_heads=2,
        query_dim=5,
        key_dim=2,
        edge_features=4,
    )


def test_the_original_is_left_alone():
    weight = nn.Parameter(torch.ones(3)) * Dot()
    check_weight_function(weight)
    assert weight.factor.tolist() == [1.0, 1.0, 1.0]
    assert weight.factor.dtype == torch.float32


class ForgetsToReduce(WeightFunction):
    def forward(self, query, key, pairs):
        return query * key


class KnowsOnlyEdges(WeightFunction):
    def forward(self, query, key, pairs):
        return torch.einsum("ehd,ehd->eh", query[0], key[0])[None]


class TileOfItsOwn(Dot):
    def on_tile(self, query, key, pairs):
        return query @ key.mT + 1


class WrongDotForm(Dot):
    def dot_form(self, query, key):
        return DotForm(2 * query, key)


class WrongBias(Dot):
    def dot_form(self, query, key):
        return DotForm(query, key, (Constant(),))


class WrongCap(Softcap):
    def capped_form(self, query, key):
        return super().capped_form(query, key)._replace(cap=2 * self.cap)


class ReadsTheQuery(ALiBi):
    def forward(self, query, key, pairs):
        return super().forward(query, key, pairs) * (pairs.query % 2)


class Constant(WeightFunction):
    def forward(self, query, key, pairs):
        return torch.ones_like(pairs.offset, dtype=torch.float64)


class DropsTokens(Dot):
    def prepare(self, query, key, positions):
        return query[:, :, :1], key


class LooksAtAllKeys(Dot):
    def prepare(self, query, key, positions):
        return query, key - key.mean(-2, keepdim=True)


class LooksAtTheBatch(Dot):
    def prepare(self, query, key, positions):
        return query, key - key.mean(0, keepdim=True)


class CutsTheGradient(Dot):
    def forward(self, query, key, pairs):
        return super().forward(query, key.detach(), pairs)

    def dot_form(self, query, key):
        return None


class Widens(Dot):
    def prepare(self, query, key, positions):
        return query.double(), key.double()


class NeedsAnEdge(Dot):
    def forward(self, query, key, pairs):
        return super().forward(query, key, pairs) + 0 * float(pairs.offset.max())

    def on_tile(self, query, key, pairs):
        return query @ key.mT


@pytest.mark.parametrize(
    ("weight", "clause"),
    [
        (ForgetsToReduce(), r"an edge list scores as a tile does.*must return one score"),
        (KnowsOnlyEdges(), "an edge list scores as a tile does"),
        (TileOfItsOwn(), r"an edge list scores as a tile does.*expected -?\d.*got -?\d"),
        (WrongDotForm(), r"the dot form is the score.*expected -?\d.*got -?\d"),
        (WrongBias(), "the dot form is the score"),
        (WrongCap(Dot(), 1.5), "the capped form is the score"),
        (ReadsTheQuery(3), "a relative score depends on the offset alone"),
        (DropsTokens(), r"prepare keeps tokens apart.*\(2, 3 or 1, 5, any\), got \(2, 3, 1, 4\)"),
        (LooksAtAllKeys(), "a pair's score depends on that pair alone"),
        (LooksAtTheBatch(), "batch items do not mix"),
        (CutsTheGradient(), "gradients are right"),
        (Widens(), r"half precision suffices.*expected torch.bfloat16.*got torch.float64"),
        (NeedsAnEdge(), "no edges, no scores"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_broken_weight_function_is_refused(weight, clause):
    with pytest.raises(ContractError, match=f"(?s){type(weight).__name__}.*breaks.*{clause}"):
        check_weight_function(weight)


def test_wrong_sizes_are_refused():
    with pytest.raises(ContractError):
        check_weight_function(torch.ones(4) * Dot(), num_heads=3)


def misspells(q, k, pairs):
    return q.summ(-1)


def of_eight(q, k, pairs):
    return (q * torch.ones(8, dtype=q.dtype)).sum(-1)


@pytest.mark.parametrize(
    ("weight", "error"),
    [
        (misspells, "AttributeError: .*summ"),
        (of_eight, "RuntimeError: .*size"),
    ],
)
def test_what_the_function_raises_is_told_as_its_own_with_the_sizes(weight, error):
    with pytest.raises(ContractError, match=f"(?s)your function raised {error}") as caught:
        check_weight_function(weight)
    assert "an edge list scores as a tile does" not in str(caught.value)
    assert "num_heads=3, query_dim=4, key_dim=4" in str(caught.value)
    assert "pass num_heads=, query_dim=" in str(caught.value)


def test_sizes_that_a_weight_function_does_not_have_are_named():
    with pytest.raises(ContractError, match="num_heads=3, query_dim=4"):
        check_weight_function(torch.ones(4) * Dot(), num_heads=3)


class FrozenBias(WeightFunction):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, query, key, pairs):
        return self.slope * pairs.offset


def test_gradients_are_asked_for_where_scores_depend_on_a_side():
    with pytest.raises(ContractError, match=r"gradients are right.*depend on query but give it no"):
        check_weight_function(lambda q, k, pairs: (q * k).sum(-1).detach())
    with pytest.raises(ContractError, match=r"gradients are right.*depend on key but give it no"):
        check_weight_function(lambda q, k, pairs: (q * k.detach()).sum(-1))
    check_weight_function(lambda q, k, pairs: q.sum(-1) - pairs.offset.abs())
    check_weight_function(lambda q, k, pairs: k.sum(-1) - pairs.offset.abs())
    check_weight_function(FrozenBias())


class PlainSoftmax(Normalizer):
    is_distribution = True

    def forward(self, scores):
        return torch.softmax(scores, -1)


class LeaksGradient(Identity):
    def forward(self, scores):
        return torch.where(scores == -torch.inf, scores.exp().sqrt(), scores)


class OtherOnEdges(Softmax):
    def on_edges(self, scores, query, num_queries):
        return 0.5 * super().on_edges(scores, query, num_queries)


class TrustsEveryEdge(Softmax):
    def on_edges(self, scores, query, num_queries):
        return super().on_edges(scores.clamp_min(-3.0), query, num_queries)


class CutOnEdges(Softmax):
    def on_edges(self, scores, query, num_queries):
        return super().on_edges(scores.detach(), query, num_queries) + 0 * scores


class PrefersTheFirstKey(Softmax):
    def forward(self, scores):
        bias = torch.arange(scores.shape[-1], dtype=scores.dtype)
        return super().forward(scores - bias)

    def on_edges(self, scores, query, num_queries):
        return Normalizer.on_edges(self, scores, query, num_queries)


class OverAllRows(Softmax):
    def forward(self, scores):
        return super().forward(scores.flatten(-2)).unflatten(-1, scores.shape[-2:])

    def on_edges(self, scores, query, num_queries):
        return super().on_edges(scores, 0 * query, num_queries)


class CallsItselfADistribution(Identity):
    is_distribution = True


class CallsItselfUnsigned(Identity):
    is_signed = False


class Narrow(Identity):
    def forward(self, scores):
        return super().forward(scores).double()


class NoGradient(Identity):
    def forward(self, scores):
        return super().forward(scores) + scores.detach().nan_to_num(neginf=0.0)


class NeedsKeys(Identity):
    def forward(self, scores):
        return super().forward(scores) + 0 * scores.nan_to_num(neginf=0.0).max().detach()


class OtherShape(Identity):
    def forward(self, scores):
        return super().forward(scores).sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("normalizer", "clause"),
    [
        (PlainSoftmax(), "no edge, no attention and no gradient"),
        (LeaksGradient(), "the gradient where there is no edge"),
        (OtherOnEdges(), r"an edge list is normalized as rows are.*expected 0\.\d+, got 0\.\d"),
        (TrustsEveryEdge(), "a listed edge with score -inf is no edge"),
        (CutOnEdges(), "the gradient of on_edges"),
        (PrefersTheFirstKey(), "an edge list is normalized|keys may be permuted"),
        (OverAllRows(), "rows do not mix"),
        (CallsItselfADistribution(), "is_distribution is True"),
        (CallsItselfUnsigned(), "is_signed is False"),
        (Narrow(), "half precision stays"),
        (NoGradient(), "gradients are right"),
        (NeedsKeys(), "no edges, no attention"),
        (OtherShape(), "breaks"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_broken_normalizer_is_refused(normalizer, clause):
    with pytest.raises(ContractError, match=f"(?s){type(normalizer).__name__}.*({clause})"):
        check_normalizer(normalizer)


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (lambda q, k, pairs: -pairs.offset.abs().to(q).log(), "scores inf .*position 2 and the"),
        (lambda q, k, pairs: (q * k).sum(-1) / pairs.offset, r"inf .*offset 0"),
        (lambda q, k, pairs: (q * k).sum(-1).sqrt(), "nan"),
    ],
)
def test_scores_that_are_no_numbers_are_named(weight, says):
    with pytest.raises(ContractError, match=f"'scores are finite, or -inf for no edge': .*{says}"):
        check_weight_function(weight)


def test_scores_of_minus_infinity_are_equal_and_pass():
    check_weight_function(lambda q, k, pairs: pairs.offset.abs().to(q).log())
    check_weight_function(
        lambda q, k, pairs: (q * k).sum(-1).masked_fill(pairs.offset > 0, -torch.inf)
    )
