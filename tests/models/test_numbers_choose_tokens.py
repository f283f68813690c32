"""Names are left out where numbers made of values, and no index or mask, choose or order tokens."""

import pytest
import torch
from test_values_order_tokens import NAMES, One, X
from torch import nn

from gattn import capturing


class Chosen(nn.Module):
    """Reads tokens backwards or not, by a number that values decided."""

    def forward(self, x):
        return self.way(x, x.mean((1, 2), keepdim=True))

    @staticmethod
    def way(x, mean):
        raise NotImplementedError


class BySign(Chosen):
    @staticmethod
    def way(x, mean):
        is_large = ((mean - 3).sign() + 1) / 2
        return x.flip(1) * is_large + x * (1 - is_large)


class ByRounding(Chosen):
    @staticmethod
    def way(x, mean):
        return x.lerp(x.flip(1), (mean / 8).round())


class ByFloor(Chosen):
    @staticmethod
    def way(x, mean):
        is_large = torch.floor(mean / 3).clamp(0, 1)
        return (x * is_large).flip(1) + x * (1 - is_large)


class EachBySign(Chosen):
    @staticmethod
    def way(x, mean):
        is_large = (x.mean(2, keepdim=True).sign() + 1) / 2
        return x.flip(1) * is_large + x * (1 - is_large)


class EachByRounding(Chosen):
    @staticmethod
    def way(x, mean):
        is_large = x.mean(2, keepdim=True).sigmoid().round()
        return x.flip(1) * is_large + x * (1 - is_large)


class OverTokens(Chosen):
    """Puts each channel in order over the tokens, which are the last dimension."""

    @staticmethod
    def way(x, mean):
        return x.mT.sort(-1)[0].mT


class TopOverTokens(Chosen):
    @staticmethod
    def way(x, mean):
        return 2 * x.mT.topk(x.shape[1]).values.mT


@pytest.mark.parametrize(
    "kind", [BySign, ByRounding, ByFloor, EachBySign, EachByRounding, OverTokens, TopOverTokens]
)
@torch.no_grad()
def test_names_are_left_out_where_numbers_made_of_values_choose_tokens(kind):
    model = One(kind).eval()
    for x in (X, X + 5):
        with (
            pytest.warns(UserWarning, match="picks or orders"),
            capturing(model, tokens=NAMES) as run,
        ):
            model(x)
        assert run.trace[0, 0].tokens == ()


class OverChannels(Chosen):
    @staticmethod
    def way(x, mean):
        return x.sort(-1)[0] + x.topk(1).values


class Rounded(Chosen):
    @staticmethod
    def way(x, mean):
        return x.round() + (x.sign() * x).roll(0, 1) + mean.round()


class AboveTheThird(Chosen):
    """Weakens what is below the third largest token, which stays where it is."""

    @staticmethod
    def way(x, mean):
        score = x.mean(-1)
        return x * (1 + (score >= score.topk(3).values[:, -1:])[..., None])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [OverChannels, Rounded, AboveTheThird])
@torch.no_grad()
def test_names_stay_where_values_change_numbers_in_place(kind):
    model = One(kind).eval()
    with capturing(model, tokens=NAMES) as run:
        model(X)
    assert "".join(run.trace[0, 0].tokens) == "abcdefgh"
