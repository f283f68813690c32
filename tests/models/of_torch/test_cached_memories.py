"""Decoders of the user's own that read a text again with cached keys, step by step."""

import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError

WIDTH, HEADS, ROOM = 16, 4, 20


def in_heads(x):
    return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def attend(q, k, v, mask=None):
    a = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return a.transpose(1, 2).flatten(2)


class Own(nn.Module):
    """Self-attention, with the keys and values of earlier tokens."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, past=None, mask=None):
        q, k, v = map(in_heads, self.qkv(x).split(WIDTH, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        return self.out(attend(q, k, v, mask)), (k, v)


class Cross(nn.Module):
    """Cross-attention, whose keys and values may be given."""

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.held = None

    def forward(self, x, memory, past=None):
        pair = past or self.kv(memory).split(WIDTH, -1)  # Heads are split later, as by Whisper.
        k, v = (one if one.dim() == 4 else in_heads(one) for one in pair)
        return self.out(attend(in_heads(self.q(x)), k, v)), pair


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.cross = Own(), Cross()


class Reads(nn.Module):
    """Embeds ids with their positions."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(9, WIDTH), nn.Embedding(ROOM, WIDTH)

    def forward(self, ids, first=0):
        return self.embed(ids) + self.place(torch.arange(first, first + ids.shape[1]))


class Translator(nn.Module):
    """Reads a source, and a target step by step; `kept` says what of the source is kept.

    That are its keys and values, given (also "flat", not split into heads) or held by modules, what
    the encoder made of it, or nothing: then it is encoded at each step.
    """

    def __init__(self, kept):
        super().__init__()
        self.kept, self.source, self.target = kept, Reads(), Reads()
        self.encoder = nn.ModuleList(Own() for _ in range(2))
        self.decoder = nn.ModuleList(Layer() for _ in range(2))

    def encoded(self, source):
        x = self.source(source)
        for layer in self.encoder:
            x = x + layer(x)[0]
        return x

    def forward(self, source, target, past=None, memory=None):
        first = 0 if past is None else past[0][0][0].shape[2]
        if source is not None:
            memory = self.encoded(source)
        x, found = self.target(target, first), []
        size = first + target.shape[1]
        mask = torch.ones(size, size, dtype=torch.bool).tril()[first:]
        for n, layer in enumerate(self.decoder):
            before = past and past[n]
            y, own = layer.own(x, before and before[0], mask)
            x, pair = x + y, None
            if before and self.kept in ("given", "flat", "held"):
                pair = layer.cross.held if self.kept == "held" else before[1]
            y, pair = layer.cross(x, memory, pair)
            if self.kept != "flat":
                pair = tuple(one if one.dim() == 4 else in_heads(one) for one in pair)
            if self.kept == "held":
                layer.cross.held = pair
            x = x + y
            found.append((own, pair if self.kept in ("given", "flat") else None))
        return x, found, memory if self.kept == "encoded" else None


def dense(model, source, target, cut=None):
    """Attend to whole texts at once; `cut` is a layer, head, query and key of cross-attention."""
    memory, x, found = model.encoded(source), model.target(target), ([], [])
    size = target.shape[1]
    after = torch.ones(size, size, dtype=torch.bool).triu(1)
    for n, layer in enumerate(model.decoder):
        q, k, v = map(in_heads, layer.own.qkv(x).split(WIDTH, -1))
        weights = (q @ k.mT / 2).masked_fill(after, -torch.inf).softmax(-1)
        found[0].append(weights)
        x = x + layer.own.out((weights @ v).transpose(1, 2).flatten(2))
        q, (k, v) = (
            in_heads(layer.cross.q(x)),
            map(in_heads, layer.cross.kv(memory).split(WIDTH, -1)),
        )
        scores = q @ k.mT / 2
        if cut is not None and cut[0] == n:
            scores[:, cut[1], cut[2], cut[3]] = -torch.inf
        found[1].append(scores.softmax(-1))
        x = x + layer.cross.out((found[1][-1] @ v).transpose(1, 2).flatten(2))
    return {"decoder.own": found[0], "decoder.cross": found[1]}, x


def translated(model, source, target, first):
    x, past, memory = model(source, target[:, :first])
    found = [x]
    for n in range(first, target.shape[1]):
        again = source if model.kept == "nothing" else None
        x, past, memory = model(again, target[:, n : n + 1], past, memory)
        found.append(x)
    return torch.cat(found, 1)


@pytest.mark.parametrize(
    ("first", "batch"),
    [(1, 1), (3, 1), (3, 2), pytest.param(1, 2, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("kept", ["given", "flat", "held", "encoded", "nothing"])
def test_steps_read_the_source_again(kept, first, batch):
    torch.manual_seed(0)
    model = Translator(kept).double().eval()
    source, target = torch.randint(0, 9, (batch, 7)), torch.randint(0, 9, (batch, 5))
    with torch.no_grad():
        with gattn.capturing(model) as run:
            translated(model, source, target, first)
        wanted, _ = dense(model, source, target)
        assert len(run.traces) == batch
        for n, trace in enumerate(run.traces):
            assert trace.generated == 5 - first
            assert set(trace.stacks) == {"encoder", "decoder.own", "decoder.cross"}
            for stack, layers in wanted.items():
                for (layer, head), graph in trace[stack].items():
                    attention = torch.tensor(graph.to_dense())
                    torch.testing.assert_close(attention, layers[layer][n, head])
        for query in (4, [0, 4]):
            cut = gattn.Cut(stack="decoder.cross", layer=1, head=2, query=query, key=3)
            with gattn.edited(model, cut):
                x = translated(model, source, target, first)
            torch.testing.assert_close(x, dense(model, source, target, (1, 2, query, 3))[1])


@pytest.mark.parametrize("kept", ["given", "flat", "held"])
def test_steps_that_read_another_source_are_refused(kept):
    torch.manual_seed(0)
    model = Translator(kept).eval()
    source, target = torch.randint(0, 9, (2, 7)), torch.randint(0, 9, (1, 4))
    with torch.no_grad(), gattn.capturing(model):
        other = model(source[1:], target[:, :3])[1]
        held = [layer.cross.held for layer in model.decoder]
        past = model(source[:1], target[:, :3])[1]
        past = [(own, its[1]) for (own, _), its in zip(past, other, strict=True)]
        for layer, pair in zip(model.decoder, held, strict=True):
            layer.cross.held = pair
        with pytest.raises(CaptureError, match="to other keys than from its first tokens"):
            model(None, target[:, 3:], past)


def test_names_of_a_stack_do_not_concern_calls_without_it():
    torch.manual_seed(0)
    model = Translator("encoded").eval()
    source, target = torch.randint(0, 9, (1, 4)), torch.randint(0, 9, (1, 3))
    names = {"own": list("abcd")}
    own, cross = model.encoder[0], model.decoder[0].cross
    both = nn.ModuleDict({"own": own, "cross": cross}).eval()
    with torch.no_grad():
        x, y = model.source(source), model.target(target)
        with gattn.capturing(both, tokens=names) as run:
            both["cross"](y, both["own"](x)[0])
        assert [list(one.stacks) for one in run.traces] == [["own"], ["cross"]]
        assert run.traces[0][0, 0].tokens == tuple("abcd")
        wrong = pytest.raises(CaptureError, match="tokens= names the stack 'other'")
        with wrong, gattn.capturing(both, tokens={"other": list("abcd")}):
            both["cross"](y, both["own"](x)[0])
