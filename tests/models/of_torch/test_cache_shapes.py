"""Caches of a model's own in other shapes: one tensor for all layers, rolled, padded."""

import pytest
import torch
from caching_models import (
    HEADS,
    WIDTH,
    Attending,
    Text,
    check,
    compare,
    dense,
)
from torch import nn

import gattn
from gattn.errors import EditError

SIZE = WIDTH // HEADS


def in_parts(model, ids, parts):
    """Run a text in calls of so many tokens each."""
    found = [model(ids[:, at], at)[0] for at in torch.arange(ids.shape[1]).split(parts)]
    return torch.cat(found, 1)


class Together:
    """One tensor (layers, 2, batch, heads, room, dim), written at a place and grown by doubling."""

    def __init__(self, layers):
        self.layers, self.held, self.count = layers, None, 0

    def put(self, n, k, v):
        if self.held is None:
            self.held = k.new_zeros(self.layers, 2, *k.shape[:2], 2, SIZE)
        stop = self.count + k.shape[2]
        while stop > self.held.shape[4]:
            self.held = torch.cat([self.held, torch.zeros_like(self.held)], 4)
        self.held[n, :, :, :, self.count : stop] = torch.stack([k, v])
        if n == self.layers - 1:
            self.count = stop
        return self.held[n, :, :, :, :stop].unbind()

    def repeated(self, count):
        """Let several samples continue one text."""
        found = Together(self.layers)
        found.held, found.count = self.held.expand(-1, -1, count, -1, -1, -1).clone(), self.count
        return found


class InOne(nn.Module):
    """Attention, perhaps grouped-query, with the cache of all layers."""

    def __init__(self, number, groups):
        super().__init__()
        self.number, self.groups = number, groups
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * groups * SIZE)
        self.out = nn.Linear(WIDTH, WIDTH)

    def heads(self, x):
        q = self.q(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, self.groups, SIZE)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(self, x, cache):
        q, k, v = self.heads(x)
        k, v = cache.put(self.number, k, v)
        allowed = torch.ones(k.shape[2], k.shape[2], dtype=torch.bool).tril()[-x.shape[1] :]
        is_grouped = self.groups < HEADS
        attend = nn.functional.scaled_dot_product_attention
        a = attend(q, k, v, attn_mask=allowed, enable_gqa=is_grouped)
        return self.out(a.transpose(1, 2).flatten(2))


class Chat(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.embed, self.place = nn.Embedding(9, WIDTH), nn.Embedding(20, WIDTH)
        self.layers = nn.ModuleList(InOne(n, groups) for n in range(2))

    def forward(self, ids, cache):
        x = self.embed(ids) + self.place(torch.arange(cache.count, cache.count + ids.shape[1]))
        for layer in self.layers:
            x = x + layer(x, cache)
        return x


def at_once(model, ids, cut=None):
    """Compute grouped-query attention of a whole text, with its keys repeated."""
    count, found = ids.shape[1], []
    x = model.embed(ids) + model.place(torch.arange(count))
    for n, layer in enumerate(model.layers):
        q, k, v = layer.heads(x)
        k, v = (y.repeat_interleave(HEADS // layer.groups, 1) for y in (k, v))
        scores = q @ k.mT / SIZE**0.5
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
        if cut is not None and cut[0] == n:
            scores[:, cut[1], cut[2], cut[3]] = -torch.inf
        found.append(scores.softmax(-1).nan_to_num())
        x = x + layer.out((found[-1] @ v).transpose(1, 2).flatten(2))
    return torch.stack(found), x


def chat(ids, parts):
    def run(model):
        cache = Together(2)
        return torch.cat([model(part, cache) for part in ids.split(parts, 1)], 1)

    return run


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize(("batch", "parts"), [(1, [3, 1, 1]), (2, [1, 3, 1]), (3, [3, 1, 1])])
def test_one_tensor_may_be_the_cache_of_all_layers(batch, parts, groups):
    torch.manual_seed(0)
    model, ids = Chat(groups).double().eval(), torch.randint(0, 9, (batch, 5))
    traces = compare(model, ids, chat(ids, parts), at_once)
    assert {trace.generated for trace in traces} == {2 if parts == [3, 1, 1] else 1}


def test_several_samples_may_continue_one_text():
    torch.manual_seed(0)
    model, prompt = Chat(2).double().eval(), torch.randint(0, 9, (1, 3))
    after = torch.tensor([[1, 2], [2, 2], [3, 0]])
    ids = torch.cat([prompt.expand(3, -1), after], 1)

    def run(model):
        cache = Together(2)
        found = [model(prompt, cache).expand(3, -1, -1)]
        cache = cache.repeated(3)
        return torch.cat([*found, *(model(x, cache) for x in after.split(1, 1))], 1)

    compare(model, ids, run, at_once)


class Rolled(Attending):
    """Keeps the newest key at the end of a buffer, which is rolled to the left."""

    room = 8

    def forward(self, x, past=None, at=None):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if not int(at[0]):
            self.held = x.new_zeros(2, len(x), HEADS, self.room, SIZE)
        self.held = torch.cat([self.held, torch.stack([k, v])], 3)[:, :, :, -self.room :]
        where = torch.arange(self.room) + int(at[-1]) + 1 - self.room
        allowed = (where >= 0) & (where <= at[:, None])
        a = nn.functional.scaled_dot_product_attention(q, *self.held, attn_mask=allowed)
        return self.out(a.transpose(1, 2).flatten(2)), None


class RolledShort(Rolled):
    room = 4


@pytest.mark.parametrize(("batch", "parts"), [(1, [1, 1, 4]), (2, [3, 1, 1, 1]), (2, [2, 4])])
def test_a_buffer_may_be_filled_from_its_end(batch, parts):
    torch.manual_seed(0)
    model = Text(Rolled(None), Rolled(None)).double().eval()
    ids = torch.randint(0, 9, (batch, 6))
    compare(model, ids, lambda model: in_parts(model, ids, parts))


@pytest.mark.parametrize("first", [1, 3])
def test_a_rolled_buffer_may_drop_the_oldest_keys(first):
    torch.manual_seed(0)
    model = Text(RolledShort(None), RolledShort(None)).double().eval()
    ids, window = torch.randint(0, 9, (1, 6)), torch.ones(6, 6, dtype=torch.bool).triu(-3)

    def in_window(model, ids, cut=None):
        return dense(model, ids, cut, window)

    cuts = (1, 2, slice(None), 1), (0, 1, -1, 3)
    parts = [first] + [1] * (6 - first)
    compare(model, ids, lambda model: in_parts(model, ids, parts), in_window, cuts)


def test_unread_keys_of_another_text_are_none_of_this_one():
    """A prompt in a buffer that still holds the last text's keys does not continue that one."""
    torch.manual_seed(0)

    class Kept(Rolled):
        def forward(self, x, past=None, at=None):
            held = getattr(self, "held", None)
            if held is None or int(at[0]):
                return super().forward(x, past, at)
            k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)[1:]
            y, _ = super().forward(x, past, at)
            self.held = torch.cat([held, torch.stack([k, v])], 3)[:, :, :, -self.room :]
            return y, None

    model = Text(Kept(None), Kept(None)).double().eval()
    texts = torch.tensor([[1, 2, 3, 4, 5], [6, 2, 7, 8, 0]])
    with torch.no_grad():
        with gattn.capturing(model) as seen:
            for ids in texts:
                in_parts(model, ids[None], [3, 1, 1])
        for trace, ids in zip(seen.traces, texts, strict=True):
            check(trace, dense(model, ids[None])[0])


class Padded(Text):
    """Reads texts that are padded on the left, whose positions count real tokens.

    Padding reads nothing, itself, or everything.
    """

    reads = "nothing"

    def forward(self, ids, mask, past=None):
        real, count, size = mask, ids.shape[1], mask.shape[1]
        x, kept = self.embed(ids) + self.place((real.cumsum(1) - 1).clamp(min=0)[:, -count:]), []
        allowed = torch.ones(size, size, dtype=torch.bool).tril()[-count:] & real[:, None].bool()
        if self.reads != "nothing":
            own = torch.eye(size)[-count:] if self.reads == "itself" else torch.ones(count, size)
            allowed = allowed | (own.bool() & ~real[:, -count:, None].bool())
        for n, layer in enumerate(self.layers):
            y, pair = layer(x, allowed[:, None], past and past[n])
            x = x + y
            kept.append(pair)
        return x, kept


class Masked(Attending):
    def forward(self, x, allowed, past):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        scores = (q @ k.mT / SIZE**0.5).masked_fill(~allowed, -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)


@pytest.mark.parametrize("pads", [[0, 2], [2, 1], [1]])
@pytest.mark.parametrize("parts", [[4, 1, 1], [4, 2]])
@pytest.mark.parametrize("reads", ["nothing", "itself", "all"])
def test_texts_may_be_padded_on_the_left(parts, pads, reads):
    torch.manual_seed(0)
    model = Padded(Masked(None), Masked(None)).double().eval()
    model.reads = reads
    texts = [torch.randint(0, 9, (1, 6 - pad)) for pad in pads]
    real = torch.stack([torch.arange(6) >= pad for pad in pads])
    ids = torch.cat([nn.functional.pad(x, (6 - x.shape[1], 0)) for x in texts])

    def run():
        past, found = None, []
        for at in torch.arange(6).split(parts):
            x, past = model(ids[:, at], real[:, : at[-1] + 1], past)
            found.append(x)
        return torch.cat(found, 1)

    def check_outputs(outputs, cut=None):
        for n, (text, pad) in enumerate(zip(texts, pads, strict=True)):
            key = None if cut is None else (*cut[:3], cut[3] % (4 - pad))
            torch.testing.assert_close(outputs[n : n + 1, pad:], dense(model, text, key)[1])

    with torch.no_grad():
        with gattn.capturing(model) as seen:
            check_outputs(run())
        for trace, text in zip(seen.traces, texts, strict=True):
            check(trace, dense(model, text)[0])
        with gattn.edited(model, gattn.Cut(layer=1, head=2, key=1)):
            check_outputs(run(), (1, 2, slice(None), 1))
        if parts == [4, 1, 1]:
            with gattn.edited(model, gattn.Cut(layer=1, head=2, key=-1)):
                check_outputs(run(), (1, 2, slice(None), -1))
        else:
            with (
                pytest.raises(EditError, match="several calls of several tokens"),
                gattn.edited(model, gattn.Cut(layer=1, head=2, key=-1)),
            ):
                run()


class Untold(Padded):
    """Its input has a name that says nothing of padding."""

    def forward(self, ids, real, past=None):
        return super().forward(ids, real, past)


def test_padding_of_which_no_input_tells_is_shown_with_a_warning():
    model = Untold(Masked(None), Masked(None)).double().eval()
    model.reads = "itself"
    real = (torch.arange(6) >= torch.tensor([[0], [2]])).long()
    said = pytest.warns(UserWarning, match="which may mean padding that reads itself")
    with said, torch.no_grad(), gattn.capturing(model) as seen:
        model(torch.randint(1, 9, (2, 6)), real)
    assert [len(trace.tokens) for trace in seen.traces] == [6, 6]


class Scattered(Text):
    """Puts the keys of each text where its own tokens end, over those of padding on the right."""

    def forward(self, ids, at=None):
        at = torch.arange(ids.shape[1]).expand(len(ids), -1) if at is None else at
        x = self.embed(ids) + self.place(at)
        for layer in self.layers:
            x = x + layer(x, at)
        return x


class Scatter(Attending):
    room = 8

    def forward(self, x, at):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if x.shape[1] > 1:
            self.held = x.new_zeros(2, len(x), HEADS, self.room, SIZE)
        rows = torch.arange(len(x))[:, None]
        for held, new in zip(self.held, (k, v), strict=True):
            held[rows, :, at] = new.transpose(1, 2)
        allowed = torch.arange(self.room) <= at[..., None]
        a = nn.functional.scaled_dot_product_attention(q, *self.held, attn_mask=allowed[:, None])
        return self.out(a.transpose(1, 2).flatten(2))


def test_steps_may_replace_padding_on_the_right():
    """The prompt with its padding is a trace of its own, as is a draft that is taken back."""
    torch.manual_seed(0)
    model = Scattered(Scatter(None), Scatter(None)).double().eval()
    texts, sizes = [torch.randint(0, 9, (1, 4)), torch.randint(0, 9, (1, 6))], (2, 4)

    def run():
        prompts = [
            nn.functional.pad(x[:, :n], (0, 4 - n)) for x, n in zip(texts, sizes, strict=True)
        ]
        outputs = model(torch.cat(prompts))
        found = [[outputs[n : n + 1, :size]] for n, size in enumerate(sizes)]
        for step in range(2):
            at = torch.tensor(sizes)[:, None] + step
            ids = torch.cat([x[:, n + step, None] for x, n in zip(texts, sizes, strict=True)])
            for n, one in enumerate(model(ids, at).split(1)):
                found[n].append(one)
        return [torch.cat(one, 1) for one in found]

    with torch.no_grad():
        with gattn.capturing(model) as seen:
            run()
        prompt, second, first = seen.traces
        assert len(prompt.tokens) == 4
        check(first, dense(model, texts[0])[0])
        check(second, dense(model, texts[1])[0])
        with gattn.edited(model, gattn.Cut(layer=1, head=2, query=3, key=1)):
            outputs = run()
        for text, output in zip(texts, outputs, strict=True):
            torch.testing.assert_close(output, dense(model, text, (1, 2, 3, 1))[1])
