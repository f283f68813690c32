"""Tokenizers of other libraries are refused at every door, with what to give instead."""

import inspect

import pytest
import torch

import gattn
from gattn.errors import ModelError
from tests.plain_models import built

_WORDS = {"[UNK]": 0, **{f"w{n}": n for n in range(1, 20)}}


class Plain:
    """Encodes and decodes, and has nothing else of a tokenizer."""

    def encode(self, text):
        return [_WORDS[word] for word in text.split()]

    def decode(self, ids):
        return " ".join(f"w{n}" for n in ids)


def of_tokenizers():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    return Tokenizer(WordLevel(_WORDS, unk_token="[UNK]"))


def ask(name, function, tokenizer):
    """Ask a public function that takes a tokenizer for anything, with this one."""
    model, run = built("gpt")
    if name in ("capturing", "edited"):
        with function(model, *[gattn.Cut(layer=0)] * (name == "edited"), tokenizer=tokenizer):
            run()
        return
    takes = inspect.signature(function).parameters
    given = {
        "text": run,
        "inputs": [[1, 2]] if name == "capture_many" else run,
        "texts": [run],
        "model": model if {"text", "inputs", "texts"} & takes.keys() else None,
        "edits": [gattn.Cut(layer=0)],
        "rankings": torch.rand(2, 4, 6, 6).numpy(),
        "layer": 0,
        "head": 0,
        "edges": lambda tokens: [],
    }
    if "graph" in takes:
        given["graph"] = gattn.analysis.routes(run, model, progress=False)
    found = function(**{n: x for n, x in given.items() if n in takes}, tokenizer=tokenizer)
    if name == "capture_many":
        list(found)


_DOORS = {
    name: one
    for space in (gattn, gattn.analysis)
    for name in space.__all__
    if inspect.isfunction(one := getattr(space, name))
    and "tokenizer" in inspect.signature(one).parameters
}


def test_there_are_doors():
    assert {"capture", "capturing", "capture_many", "edited", "effect", "routes"} <= _DOORS.keys()


@pytest.mark.parametrize("make", [Plain, of_tokenizers])
@pytest.mark.parametrize("name", _DOORS)
def test_a_tokenizer_of_another_library_is_refused_with_what_to_give(name, make):
    with pytest.raises(ModelError, match=r"transformers tokenizer.*by tokens=.*tokenizer_object="):
        ask(name, _DOORS[name], make())


def test_the_advice_is_good():
    """A wrapped tokenizer names tokens, as texts by tokens= do."""
    from transformers import PreTrainedTokenizerFast

    model, run = built("gpt")
    names = [f"w{n}" for n in (3, 7, 1, 7, 12, 5)]
    wrapped = PreTrainedTokenizerFast(tokenizer_object=of_tokenizers(), unk_token="[UNK]")
    for given in ({"tokenizer": wrapped}, {"tokens": names}):
        with gattn.capturing(model, **given) as seen:
            run()
        assert list(seen.trace[0, 0].tokens) == names
        with gattn.edited(model, gattn.Cut(layer=1, key="w12"), **given):
            found = run()
        with gattn.edited(model, gattn.Cut(layer=1, key=4)):
            assert torch.equal(found, run())


def worded(count):
    """A tokenizer of so many words, which says [UNK] of whatever it does not have."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {"[UNK]": 0, **{f"w{n}": n for n in range(1, count)}}
    model = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=model, unk_token="[UNK]")


class Embedded(torch.nn.Module):
    """A model of one's own that is given ids."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(60, 16)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, input_ids):
        return self.layer(self.embed(input_ids))


_GIVEN = [5, 17, 42, 8, 0]


@pytest.mark.parametrize("kind", ["llama", "bert", None])
def test_a_tokenizer_without_some_of_the_ids_is_warned_of(tiny, kind):
    """Many tokenizers call all that they do not have [UNK], whose own id is another."""
    model = Embedded().eval() if kind is None else tiny(kind)
    expected = ["w5", "<17>", "<42>", "w8", "[UNK]"]
    said = "has 10 tokens, but none with the ids 17, 42 that.*of another model.*tokens="
    with gattn.capturing(model, worded(10)) as run:
        model(input_ids=torch.tensor([_GIVEN]))
    with pytest.warns(UserWarning, match=said):
        assert run.trace.tokens == expected
    if kind is not None:
        with pytest.warns(UserWarning, match=said):
            assert gattn.capture(_GIVEN, model, worded(10)).tokens == expected
    with gattn.capturing(model, worded(60)) as run:  # its own: nothing is said
        model(input_ids=torch.tensor([_GIVEN]))
    assert run.trace.tokens == ["w5", "w17", "w42", "w8", "[UNK]"]


def test_a_tokenizer_of_more_tokens_than_the_model_is_warned_of(tiny):
    model = tiny("bert")
    known = model.get_input_embeddings().num_embeddings
    said = rf"has {known + 1} tokens, and the BertModel only {known}: it is probably"
    with pytest.warns(UserWarning, match=said):
        gattn.capture(_GIVEN, model, worded(known + 1))
    own = worded(known)
    own.add_tokens(["added"])  # which a model may be given later
    gattn.capture(_GIVEN, model, own)
