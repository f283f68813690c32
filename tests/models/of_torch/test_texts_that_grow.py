"""A loop that generates without a cache reads a text that grows from call to call."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from gattn import Cut, capturing, edited, effect
from gattn.errors import CaptureError, EditError

NAMES = list("abcdefgh")


class Generating(nn.Module):
    """A causal layer over words and positions, which writes the likeliest word next."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(40, 16), nn.Embedding(16, 16)
        self.qkv, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 40)
        self.cut = None

    def forward(self, ids):
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        if self.cut is None:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            kept = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
            kept[:, self.cut] = False
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=kept).nan_to_num()
        return self.head(x + self.out(y.transpose(1, 2).flatten(2)))

    @torch.no_grad()
    def generate(self, ids, count):
        for _ in range(count):
            ids = torch.cat([ids, self(ids)[:, -1:].argmax(-1)], dim=1)
        return ids


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Generating().double().eval()


@pytest.fixture(scope="module")
def prompts():
    return torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@pytest.mark.parametrize("given", [NAMES[:5], NAMES[:8], [*NAMES, "i"]], ids=len)
def test_names_of_a_prompt_or_of_the_whole_text_name_each_step(model, prompts, given):
    with capturing(model, tokens=given) as run:
        model.generate(prompts[:1], 4)
    assert [len(trace.tokens) for trace in run.traces] == [5, 6, 7, 8]
    whole = [*given, *map(str, range(len(given), 8))]
    for trace in run.traces:
        assert trace.tokens == whole[: len(trace.tokens)]


def test_each_text_of_a_batch_has_its_names(model, prompts):
    given = [NAMES[:5], list("vwxyz")]
    with capturing(model, tokens=given) as run:
        model.generate(prompts, 2)
    assert [trace.tokens for trace in run.traces] == [*given, *([*one, "5"] for one in given)]


def test_lists_for_each_sequence_of_several_calls_name_these(model, prompts):
    given = [NAMES[:5], list("vwxyz"), list("ABCDEF"), list("GHIJKL")]
    with capturing(model, tokens=given) as run:
        model.generate(prompts, 2)
    assert [trace.tokens for trace in run.traces] == given


@pytest.mark.parametrize("count", [2, 4, 6, 10])
def test_names_of_other_counts_are_refused(model, prompts, count):
    given = [*NAMES, "i", "j"][:count]
    wrong = pytest.raises(CaptureError, match=f"gives {count} texts")
    with wrong, capturing(model, tokens=given):
        model.generate(prompts[:1], 4)


def test_texts_that_do_not_grow_are_no_steps(model, prompts):
    wrong = pytest.raises(CaptureError, match="has 5 tokens")
    with wrong, capturing(model, tokens=NAMES[:6]):
        model(prompts[:1])
        model(torch.cat([prompts[1:], prompts[1:, :1]], dim=1))


@pytest.mark.parametrize("given", [NAMES[:5], NAMES[:8], [*NAMES, "i"]], ids=len)
def test_an_edit_by_name_holds_at_each_step(model, prompts, given):
    with edited(model, Cut(layer=0, key="b"), tokens=given):
        found = model.generate(prompts[:1], 4)
    model.cut = 1
    try:
        wanted = model.generate(prompts[:1], 4)
    finally:
        model.cut = None
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("later", [None, (1, [0, 1, 2, 3, 4, 0]), (1, [0, 1, 2])])
def test_more_names_than_the_text_grows_to_are_refused(model, prompts, later):
    def run():
        model(prompts[:1])
        if later is not None:
            model(prompts[later][None])

    wrong = pytest.raises(EditError, match="gives 6 texts, and the ")
    with wrong, edited(model, Cut(layer=0, key="b"), tokens=NAMES[:6]):
        run()


def test_names_of_a_step_in_between_are_refused_alike(model, prompts):
    for context, kind in (
        (capturing(model, tokens=NAMES[:6]), CaptureError),
        (edited(model, Cut(layer=0, key="b"), tokens=NAMES[:6]), EditError),
    ):
        with pytest.raises(kind, match="gives 6 texts"), context:
            model.generate(prompts[:1], 4)


class Translating(nn.Module):
    """A translator on the ids of two texts."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(30, 16), nn.Linear(16, 30)
        self.inner = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1]).to(torch.float64)
        return self.head(self.inner(self.words(source), self.words(target), tgt_mask=mask))

    @torch.no_grad()
    def generate(self, source, target, count):
        for _ in range(count):
            target = torch.cat([target, self(source, target)[:, -1:].argmax(-1)], dim=1)
        return target


def test_a_decoder_that_runs_anew_has_names_at_each_step(prompts):
    torch.manual_seed(1)
    model, words = Translating().double().eval(), list("vwxyz")
    layers = "inner.decoder.layers"
    sides = {"query": NAMES[:4], "key": words}
    tokens = {f"{layers}.self_attn": NAMES[:4], f"{layers}.multihead_attn": sides}
    start = torch.tensor([[0, 7]])
    with capturing(model, tokens=tokens) as run:
        written = model.generate(prompts[:1], start, 3)
    for count, trace in zip((2, 3, 4), run.traces, strict=True):
        own, cross = (trace.stacks[stack][0, 0] for stack in tokens)
        assert (own.tokens, cross.query_tokens) == (tuple(NAMES[:count]),) * 2
        assert cross.tokens == tuple(words)

    cuts = [
        Cut(layer=0, query="b", key="y", stack=f"{layers}.multihead_attn"),
        Cut(layer=0, query=1, key=3, stack=f"{layers}.multihead_attn"),
    ]
    found = []
    for cut in cuts:
        with torch.no_grad(), edited(model, cut, tokens=tokens):
            found.append([model(prompts[:1], written[:, :count]) for count in (2, 3, 4)])
    for named, placed in zip(*found, strict=True):
        assert torch.equal(named, placed)
    with torch.no_grad():
        assert not torch.equal(found[0][0], model(prompts[:1], start))


def test_an_effect_on_a_loop_names_the_prompt(model, prompts):
    def last():
        return model(model.generate(prompts[:1], 3))[0, -1, 3]

    found = effect(last, [Cut(layer=0, key="b")], model=model, tokens=NAMES[:5])
    with torch.no_grad():
        plain = last()
        model.cut = 1
        try:
            cut = last()
        finally:
            model.cut = None
    assert found["effect"][0] == pytest.approx(float(cut - plain), abs=1e-10)


class Placed(nn.Module):
    """A layer over vectors at positions, which are the same of all texts."""

    def __init__(self):
        super().__init__()
        self.positions, self.inner = nn.Embedding(16, 16), nn.MultiheadAttention(16, 2)
        self.inner.batch_first = True

    def forward(self, x, positions):
        x = x + self.positions(positions)
        return x + self.inner(x, x, x, need_weights=False)[0]


@pytest.fixture(scope="module")
def placed():
    torch.manual_seed(2)
    model, text = Placed().double().eval(), torch.randn(1, 6, 16).double()

    @torch.no_grad()
    def run(*texts):
        return [model(x, torch.arange(x.shape[1])[None]) for x in texts]

    return model, text, run


def test_vectors_that_differ_are_no_text_that_grows(placed):
    model, text, run = placed
    other = torch.flip(text, (1,))
    for count, kind in ((5, EditError), (6, EditError), (5, CaptureError)):
        named = (
            capturing(model, tokens=NAMES[:5])
            if kind is CaptureError
            else edited(model, Cut(layer=0, key="b"), tokens=NAMES[:count])
        )
        with pytest.raises(kind, match=f"gives {count} texts"), named:
            run(other[:, :5], text)


def test_vectors_of_a_text_that_grows_have_its_names(placed):
    model, text, run = placed
    with capturing(model, tokens=NAMES[:5]) as seen:
        run(text[:, :5], text)
    assert [trace.tokens for trace in seen.traces] == [NAMES[:5], [*NAMES[:5], "5"]]
    with edited(model, Cut(layer=0, key="b"), tokens=NAMES[:6]):
        found = run(text[:, :5], text)
    with edited(model, Cut(layer=0, key=1)):
        wanted = run(text[:, :5], text)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


def test_texts_that_do_not_begin_alike_are_told(model, prompts):
    wrong = pytest.raises(EditError, match="were not those of one text")
    with wrong, edited(model, Cut(layer=0, key="b"), tokens=NAMES[:8]):
        model.generate(prompts[:1], 4)
        model.generate(prompts[1:], 4)


class Biased(nn.Module):
    """A layer over words that is given a bias of all pairs of these."""

    def __init__(self):
        super().__init__()
        self.words, self.qkv, self.out = nn.Embedding(40, 16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, ids, bias, key=None):
        x = self.words(ids)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        bias = bias if bias.dim() == 4 else bias[..., None, :, :]
        if key is not None:
            bias = bias.masked_fill(torch.arange(ids.shape[1]) == key, -torch.inf)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return x + self.out(y.transpose(1, 2).flatten(2))


def distances(count, slope=0.1):
    places = torch.arange(count).double()
    return -slope * (places - places[:, None]).abs()


BIASES = {
    "(texts, tokens, tokens)": lambda x: x.expand(2, -1, -1),
    "(tokens, tokens)": lambda x: x,
    "(texts, heads, tokens, tokens)": lambda x: torch.stack((x, 2 * x)).expand(2, -1, -1, -1),
    "(1, heads, tokens, tokens)": lambda x: torch.stack((x, 2 * x))[None],
}


@pytest.fixture(scope="module")
def biased():
    torch.manual_seed(3)
    return Biased().double().eval(), torch.randint(40, (2, 7))


@pytest.mark.parametrize("shape", BIASES)
def test_a_bias_of_pairs_that_grows_with_the_text_is_no_other_text(biased, shape):
    model, ids = biased

    def run(key=None):
        with torch.no_grad():
            return [model(ids[:, :n], BIASES[shape](distances(n)), key) for n in (5, 6, 7)]

    names = [NAMES[:7], list("tuvwxyz")]
    with capturing(model, tokens=names) as seen:
        run()
    assert [one.tokens for one in seen.traces] == [one[:n] for n in (5, 6, 7) for one in names]
    with edited(model, Cut(layer=0, key="b"), tokens=[NAMES[:7], list("tbvwxyz")]):
        found = run()
    for one, other in zip(found, run(1), strict=True):
        torch.testing.assert_close(one, other)


def test_a_bias_of_other_pairs_is_of_another_text(biased):
    model, ids = biased
    for context in (
        capturing(model, tokens=NAMES[:6]),
        edited(model, Cut(layer=0, key="b"), tokens=NAMES[:6]),
    ):
        with pytest.raises((CaptureError, EditError), match="gives 6 texts"), context:
            [model(ids[:1, :n], distances(n, n / 50)[None]) for n in (5, 6)]


def test_vectors_with_as_many_channels_as_tokens_are_told_by_these(placed):
    model, _, run = placed
    text = torch.randn(1, 18, 16).double()
    model.positions = nn.Embedding(18, 16).double()
    with capturing(model, tokens=[str(n) for n in range(100, 118)]) as seen:
        run(*(text[:, :n] for n in range(14, 19)))
    assert [one.tokens[-1] for one in seen.traces] == ["113", "114", "115", "116", "117"]
    with pytest.raises(CaptureError), capturing(model, tokens=[str(n) for n in range(16)]):
        run(text[:, :15], text.flip(1)[:, :16])
