"""Decoders that end by what they wrote, in the module that attends: greedy, and beside others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

WIDTH, WORDS, MOST = 12, 9, 7

Ends = Callable[[Tensor, int], bool]
ENDS: dict[str, Ends] = {
    "item": lambda word, end: word.item() == end,
    "bool": lambda word, end: bool(word == end),
    "any": lambda word, end: bool((word == end).any()),
    "all": lambda word, end: bool((word == end).all()),
    "int": lambda word, end: int(word) == end,
}


class Greedy(nn.Module):
    """Translates word by word, and stops at the last one of a text."""

    def __init__(self, ends: Ends, *, by_number: bool = False) -> None:
        super().__init__()
        self.embed, self.encoder = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, 1, True, True)
        self.score = nn.Linear(WIDTH, WIDTH)
        self.cell, self.out = nn.GRUCell(2 * WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)
        self.ends, self.by_number, self.end = ends, by_number, -1
        self.cut: list[int] = []
        self.shown: list[Tensor] = []

    def forward(self, source: Tensor) -> Tensor:
        keys, hidden = self.encoder(self.embed(source))
        state, word, rows, self.shown = hidden[0], source.new_zeros(len(source)), [], []
        for _ in range(MOST):
            scores = (keys @ self.score(state)[..., None])[..., 0]
            scores[:, self.cut] = -torch.inf
            weights = scores.softmax(-1)
            self.shown.append(weights.detach().clone())
            read = (weights[:, None] @ keys)[:, 0]
            state = self.cell(torch.cat([self.embed(word), read], -1), state)
            rows.append(self.out(state))
            word = rows[-1].argmax(-1)
            word = torch.tensor([word.item()]) if self.by_number else word
            if self.ends(word, self.end):
                break
        return torch.stack(rows, 1)


def _made(ends: Ends, seed: int, *, by_number: bool = False) -> tuple[Greedy, Tensor]:
    """Make a model that writes four words, unless one comes twice."""
    torch.manual_seed(seed)
    model = Greedy(ends, by_number=by_number).double().eval()
    for x in model.parameters():
        x.data *= 4
    source = torch.randint(1, WORDS, (1, 6))
    with torch.no_grad():
        model.end = int(model(source).argmax(-1)[0, 3])
    return model, source


@pytest.mark.parametrize("by_number", [False, True])
@pytest.mark.parametrize("name", ENDS)
def test_all_steps_are_read(name: str, by_number: bool) -> None:
    counts = set()
    for seed in range(3):
        model, source = _made(ENDS[name], seed, by_number=by_number)
        with torch.no_grad(), capturing(model) as run:
            written = model(source)
        counts.add(written.shape[1])
        if written.shape[1] < 2:
            continue
        found = run.trace[0, 0].to_dense()
        assert found.shape == (written.shape[1], 6)
        assert found == pytest.approx(torch.cat(model.shown).numpy(), rel=0, abs=1e-6)
    assert len(counts) > 1


class Logging(Greedy):
    """Returns what each step attended to as a list, too."""

    def forward(self, source: Tensor) -> tuple[Tensor, list[Tensor]]:  # type: ignore[override]
        return super().forward(source), [x[0] for x in self.shown]


def test_a_list_of_what_steps_attend_to_is_no_row_of_words() -> None:
    for seed in range(3):
        model, source = _made(ENDS["item"], seed)
        logging = Logging(ENDS["item"]).double().eval()
        logging.load_state_dict(model.state_dict())
        with torch.no_grad(), capturing(logging) as run:
            logging(source)
        wanted = torch.cat(logging.shown).numpy()
        assert run.trace[0, 0].to_dense() == pytest.approx(wanted, rel=0, abs=1e-6)


def test_other_texts_end_elsewhere_in_the_same_context() -> None:
    model, source = _made(ENDS["item"], 1)
    texts = [source, *torch.randint(1, WORDS, (4, 1, 6))]
    shown = []
    with torch.no_grad(), capturing(model) as run:
        for text in texts:
            model(text)
            shown.append(torch.cat(model.shown))
    assert len({len(x) for x in shown}) > 1
    for trace, wanted in zip(run.traces, shown, strict=True):
        assert trace[0, 0].to_dense() == pytest.approx(wanted.numpy(), rel=0, abs=1e-6)


def test_edits_that_end_it_sooner_or_later_are_as_by_hand_or_refused() -> None:
    seen = set()
    for seed in range(16):
        model, source = _made(ENDS["item"], seed)
        for key in range(0, 6, 2):
            model.cut = []
            plain = model(source)
            model.cut = [key]
            wanted, model.cut = model(source), []
            try:
                with torch.no_grad(), edited(model, Cut(key=key)):
                    found = model(source)
            except CaptureError as error:
                found = error
            if wanted.shape[1] > plain.shape[1]:
                assert "give it the words, or a number of steps" in str(found)
                seen.add("refused")
                continue
            torch.testing.assert_close(found, wanted)
            seen.add("sooner" if wanted.shape[1] < plain.shape[1] else "alike")
    assert seen == {"sooner", "alike", "refused"}
