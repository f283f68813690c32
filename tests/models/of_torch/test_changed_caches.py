"""Caches of a model's own that were reordered, cropped, kept for later, or slide."""

import pytest
import torch
from caching_models import (
    HEADS,
    WIDTH,
    Attending,
    Text,
    check,
    dense,
    in_buffers,
    in_tuples,
    made,
    stepped,
)
from torch import nn

import gattn
from gattn.errors import CaptureError, EditError


def step(model, ids, n, past):
    return model(ids[:, n : n + 1], torch.tensor([n]), past)


def ids_of(count, length):
    """Make texts that differ in each token."""
    return (torch.arange(length) + 3 * torch.arange(count)[:, None]) % 9


@pytest.mark.parametrize("order", [[2, 0, 1], [0, 0, 2, 2]])
def test_rows_of_a_cache_may_be_reordered_and_repeated(order):
    """As in a beam search by hand: each text goes on where its keys are."""
    model, prompts = made(in_tuples), ids_of(3, 4)
    texts = torch.cat(
        [prompts[order], torch.tensor([[5, 1], [0, 7], [8, 8], [2, 6]])[: len(order)]], 1
    )
    cut = gattn.Cut(layer=1, head=2, key=1)

    def run():
        past = model(prompts, torch.arange(4))[1]
        past = [(k[order], v[order]) for k, v in past]
        past = step(model, texts, 4, past)[1]
        return step(model, texts, 5, past)[0]

    with torch.no_grad():
        with gattn.capturing(model) as seen:
            run()
        with gattn.edited(model, cut):
            out = run()
        wanted = dense(model, texts, (1, 2, slice(None), 1))[1]
        torch.testing.assert_close(out, wanted[:, 5:])
        whole, short = dense(model, texts)[0], dense(model, prompts)[0]
    short_rows = [n for n in range(3) if n not in order]
    wholes = [t for t in seen.traces if t[0, 0].graph.num_queries == 6]
    shorts = [t for t in seen.traces if t[0, 0].graph.num_queries == 4]
    for trace, row in zip(shorts, short_rows, strict=True):
        check(trace, short, row)
    left = list(range(len(order)))
    for trace in wholes:
        left.remove(next(n for n in left if is_of(trace, whole, n)))
    assert not left


def is_of(trace, wanted, row):
    try:
        check(trace, wanted, row)
    except AssertionError:
        return False
    return True


def test_each_continuation_of_a_prompt_has_a_trace():
    model, one = made(in_tuples), ids_of(1, 6)
    other = torch.cat([one[:, :3], (one[:, 3:] + 1) % 9], 1)
    with torch.no_grad():
        with gattn.capturing(model) as run:
            prompt = model(one[:, :3], torch.arange(3))[1]
            for ids in (one, other):
                past = prompt
                for n in range(3, 6):
                    past = step(model, ids, n, past)[1]
        for trace, ids in zip(run.traces, (one, other), strict=True):
            check(trace, dense(model, ids)[0])


@pytest.mark.parametrize("extended", [in_tuples, in_buffers])
def test_a_draft_may_be_taken_back(extended):
    """As in speculative decoding by hand."""
    model, ids = made(extended), ids_of(1, 8)
    draft = torch.cat([ids[:, :5], (ids[:, 5:] + 1) % 9], 1)
    is_given = extended is in_tuples

    def run():
        past = model(ids[:, :3], torch.arange(3))[1]
        past = model(draft[:, 3:7], torch.arange(3, 7), past if is_given else None)[1]
        past = [(k[:, :, :5], v[:, :, :5]) for k, v in past] if is_given else None
        return model(ids[:, 5:], torch.arange(5, 8), past)[0]

    with torch.no_grad():
        with gattn.capturing(model) as seen:
            run()
        check(seen.traces[0], dense(model, draft[:, :7])[0])
        check(seen.traces[1], dense(model, ids)[0])
        with gattn.edited(model, gattn.Cut(layer=0, head=1, query=[4, 6], key=2)):
            out = run()
        torch.testing.assert_close(out, dense(model, ids, (0, 1, [4, 6], 2))[1][:, 5:])


class Sliding(Attending):
    """Attends to the last `WINDOW` tokens, and keeps no others."""

    def forward(self, x, past=None, at=None):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        back = at[:, None] - (torch.arange(k.shape[2]) + at[-1] + 1 - k.shape[2])
        allowed = (back >= 0) & (back < WINDOW)
        a = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        kept = 1 - WINDOW
        return self.out(a.transpose(1, 2).flatten(2)), (k[:, :, kept:], v[:, :, kept:])


class Round(Attending):
    """Attends to the last `WINDOW` tokens; in steps, to a cache in which they go round."""

    def forward(self, x, past=None, at=None):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if len(at) > 1 or not int(at[0]):
            self.held = x.new_zeros(2, len(x), HEADS, WINDOW, WIDTH // HEADS)
            self.where = torch.full((WINDOW,), -1)
        last = at[-WINDOW:]
        self.held[0][:, :, last % WINDOW] = k[:, :, -WINDOW:]
        self.held[1][:, :, last % WINDOW] = v[:, :, -WINDOW:]
        self.where[last % WINDOW] = last
        k, v, where = (k, v, at) if len(at) > 1 else (*self.held, self.where)
        back = at[:, None] - where
        allowed = (back >= 0) & (back < WINDOW) & (where >= 0)
        a = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(a.transpose(1, 2).flatten(2)), None


WINDOW = 4


@pytest.mark.parametrize("first", [1, 3, 6])
@pytest.mark.parametrize("kind", [Sliding, Round])
def test_a_window_may_slide_over_the_text(kind, first):
    torch.manual_seed(0)
    model = Text(kind(None), kind(None)).double().eval()
    ids, keys = ids_of(2, 9), torch.ones(9, 9, dtype=torch.bool).triu(1 - WINDOW)
    with torch.no_grad():
        with gattn.capturing(model) as run:
            stepped(model, ids, first, kind is Sliding)
        for n, trace in enumerate(run.traces):
            check(trace, dense(model, ids, keys=keys)[0], n)
        with gattn.edited(model, gattn.Cut(layer=1, head=2, key=[2, 5])):
            outputs = stepped(model, ids, first, kind is Sliding)
    wanted = dense(model, ids, (1, 2, slice(None), [2, 5]), keys)[1]
    torch.testing.assert_close(torch.cat(outputs, 1), wanted)


def test_independent_prompts_are_texts_of_their_own():
    model, ids = made(in_tuples), ids_of(3, 4)
    with torch.no_grad():
        with gattn.capturing(model) as run:
            for text in (ids[:1], ids[1:2], ids[2:, :3], ids[:1]):
                model(text, torch.arange(text.shape[1]))
        wanted = dense(model, ids)[0]
        for trace, row in zip(run.traces, (0, 1, 2, 0), strict=True):
            count = trace[0, 0].graph.num_queries
            check(trace, wanted[..., :count, :count], row)


def test_a_text_may_be_run_anew_at_each_step():
    """Generation without a cache: each call is a text of its own."""
    model, ids = made(in_tuples), ids_of(1, 6)
    with torch.no_grad():
        with gattn.capturing(model) as run:
            for n in range(3, 7):
                model(ids[:, :n], torch.arange(n))
        assert len(run.traces) == 4
        for n, trace in enumerate(run.traces, 3):
            assert trace.generated == 0
            check(trace, dense(model, ids[:, :n])[0])


def test_steps_alone_count_keys_as_they_lie():
    """Their prompt ran before the context was opened: where it began is not known."""
    model, ids = made(in_tuples), ids_of(1, 6)
    cut = gattn.Cut(layer=1, head=2, key=1)
    with torch.no_grad():
        past = model(ids[:, :4], torch.arange(4))[1]
        with gattn.capturing(model) as run, gattn.edited(model, cut):
            x, past = step(model, ids, 4, past)
            y, _ = step(model, ids, 5, past)
        wanted, _ = dense(model, ids)
        cut_in_steps, both = dense(model, ids, (1, 2, slice(4, None), 1))
    torch.testing.assert_close(torch.cat([x, y], 1), both[:, 4:])
    assert [list(trace.stacks) for trace in run.traces] == [["layers"], ["layers"]]
    for n, trace in enumerate(run.traces, 4):
        for (layer, head), graph in trace.only_stack.heads.items():
            assert graph.graph.is_bipartite
            row = torch.tensor(graph.to_dense())
            of = cut_in_steps if (layer, head) == (1, 2) else wanted
            torch.testing.assert_close(row, of[layer, 0, head, n : n + 1, : n + 1])
    with (
        pytest.raises(EditError, match=r"the queries are 0 \.\. 0"),
        torch.no_grad(),
        gattn.edited(model, gattn.Cut(layer=1, query=5)),
    ):
        step(model, ids, 5, past)


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_cache_of_no_known_text_is_refused_beside_others(is_edited):
    model, ids = made(in_tuples), ids_of(2, 5)
    cut = gattn.Cut(layer=1, head=2, key=1)
    with torch.no_grad():
        past = model(ids[1:, :4], torch.arange(4))[1]
        with gattn.edited(model, cut) if is_edited else gattn.capturing(model):
            model(ids[:1, :4], torch.arange(4))
            with pytest.raises(CaptureError, match="exactly those of texts that ran together"):
                step(model, ids[1:], 4, past)


@pytest.mark.parametrize("changed", [0, 1])
def test_keys_that_were_changed_are_refused(changed):
    """In the first layer they are of no text; in a later one, of another than before."""
    model, ids = made(in_tuples), ids_of(1, 5)
    with torch.no_grad(), gattn.capturing(model):
        past = model(ids[:, :4], torch.arange(4))[1]
        past[changed][1][:, :, 2] += 1e-9
        said = "exactly those of texts" if changed == 0 else "other tokens than the layers before"
        with pytest.raises(CaptureError, match=said):
            step(model, ids, 4, past)


class Mixing(Attending):
    """Shows neither keys nor values of the softmax that it mixes."""

    def forward(self, x, past=None, at=None):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        hides = torch.arange(k.shape[2]) > at[:, None]
        weights = (q @ k.mT).masked_fill(hides, -torch.inf).softmax(-1)
        a = torch.einsum("gh,bhqk->bgqk", self.mix.weight, weights) @ v
        return self.out(a.transpose(1, 2).flatten(2)), (k, v)


@pytest.mark.filterwarnings("ignore:.*mixes the attention")
def test_steps_whose_keys_are_not_seen_are_refused():
    model = Text(Mixing(None), Mixing(None)).eval()
    for layer in model.layers:
        layer.mix = nn.Linear(HEADS, HEADS, bias=False)
    ids = ids_of(1, 5)
    with torch.no_grad(), gattn.capturing(model) as run:
        model(ids[:, :3], torch.arange(3))
    assert len(run.trace.only_stack.layers) == 2
    with (
        torch.no_grad(),
        pytest.raises(CaptureError, match="exactly those of texts"),
        gattn.capturing(model),
    ):
        stepped(model, ids, 3, True)


def test_a_text_of_one_repeated_token_has_no_known_place_in_a_shorter_cache():
    """Without positions, its first keys are like its last ones."""
    torch.manual_seed(0)
    model = Text(Attending(in_tuples)).double().eval()
    nn.init.zeros_(model.place.weight)
    ids = torch.full((1, 6), 4)
    with torch.no_grad(), gattn.capturing(model) as run:
        stepped(model, ids, 4, True)
    with torch.no_grad():
        check(run.trace, dense(model, ids)[0])
    with torch.no_grad(), gattn.capturing(model):
        past = model(ids[:, :4], torch.arange(4))[1]
        past = [(k[:, :, :2], v[:, :, :2]) for k, v in past]
        with pytest.raises(CaptureError, match="its tokens repeat"):
            step(model, ids, 2, past)
