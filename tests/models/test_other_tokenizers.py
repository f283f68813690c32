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
