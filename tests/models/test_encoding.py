"""Texts and ids as a model takes them, and the names of their tokens."""

import pytest
import torch
from transformers import AutoTokenizer

import gattn
from gattn.errors import CaptureError, ModelError
from gattn.models.load.encoding import Encoding, encode, pad
from gattn.models.load.loading import EMBEDDED_PATH
from gattn.models.load.token_texts import names_of, names_of_run, words_of_run

TEXTS = [
    "The dog chased the cat",
    "naïve café, zażółć",
    "你好，世界",
    "🙂👩‍👩‍👧 and more",
    "tabs\tand\n\nlines  here",
    "1234567 $x_1$ <b>",
]


@pytest.fixture(scope="module")
def embedded():
    return AutoTokenizer.from_pretrained(EMBEDDED_PATH)


def test_a_text_has_tensors_tokens_and_words(tiny, tokenizer):
    found = encode("The dog walked", tiny("bert"), tokenizer)
    assert found.tensors["input_ids"].tolist() == [1, 4, 5, 10, 11, 2]
    assert found.tensors["input_ids"].dtype == torch.long
    assert found.tokens == ("[CLS]", "The", "dog", "walk", "ed", "[SEP]")
    assert found.words == (None, 0, 1, 2, 2, None)
    assert len(found) == 6


def test_tokens_say_what_stands_in_the_text(tiny, tokenizer):
    found = encode("DOG zebra!", tiny("bert"), tokenizer)
    assert found.tensors["input_ids"].tolist() == [1, 5, 3, 3, 2]
    assert found.tokens == ("[CLS]", "DOG", "zebra", "!", "[SEP]")


@pytest.mark.parametrize("text", TEXTS)
def test_the_embedded_tokenizer_names_every_part_of_a_text(tiny, embedded, text):
    found = encode(text, tiny("llama", vocab_size=len(embedded)), embedded)
    ids = embedded(text).input_ids
    assert found.tensors["input_ids"].tolist() == ids
    assert len(found.tokens) == len(found.words) == len(ids)
    assert all(found.tokens)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(found.tokens)
    spans = embedded(text, return_offsets_mapping=True).offset_mapping
    for token, (start, stop) in zip(found.tokens, spans, strict=True):
        if stop > start and spans.count((start, stop)) == 1:
            assert token == text[start:stop]


def test_parts_of_one_character_do_not_all_claim_it(tiny, embedded):
    text = "🙂"
    found = encode(text, tiny("llama", vocab_size=len(embedded)), embedded)
    parts = found.tokens[1:]
    assert len(parts) > 1
    assert text not in parts


@pytest.mark.parametrize("kind", [list, tuple, torch.tensor])
def test_ids_are_named_by_the_tokenizer_or_by_themselves(tiny, tokenizer, kind):
    ids = kind([1, 5, 10, 11, 2])
    model = tiny("bert")
    assert encode(ids, model, None).tokens == ("1", "5", "10", "11", "2")
    found = encode(ids, model, tokenizer)
    assert found.tokens == ("[CLS]", "dog", "walk", "##ed", "[SEP]")
    assert found.words == (None, 0, 1, 1, None)
    assert encode(ids, model, None).words == ()
    assert found.tensors["input_ids"].tolist() == [1, 5, 10, 11, 2]


def test_an_id_that_the_tokenizer_does_not_know_is_named_by_its_number(tiny, tokenizer):
    with pytest.warns(UserWarning, match="none with the ids 55 that the model is given"):
        assert encode([5, 55], tiny("bert"), tokenizer).tokens == ("dog", "<55>")


def test_a_mapping_loses_its_batch_axis_and_its_padding(tiny, tokenizer):
    given = {
        "input_ids": torch.tensor([[1, 5, 2, 0, 0]]),
        "token_type_ids": torch.tensor([[0, 1, 0, 7, 7]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0, 0]]),
    }
    found = encode(given, tiny("bert"), tokenizer)
    assert found.tokens == ("[CLS]", "dog", "[SEP]")
    assert {name: x.tolist() for name, x in found.tensors.items()} == {
        "input_ids": [1, 5, 2],
        "token_type_ids": [0, 1, 0],
    }
    assert given["input_ids"].shape == (1, 5)
    assert set(given) == {"input_ids", "token_type_ids", "attention_mask"}


def test_stacks_have_names_of_their_own():
    given = {"input_ids": torch.tensor([5, 6]), "token_type_ids": torch.tensor([0, 1])}
    found = Encoding(given, ("a", "b"), (0, 1), ("x", "y", "z"))
    assert found.names("encoder") == {"tokens": ("a", "b"), "words": (0, 1), "segments": (0, 1)}
    assert found.names("decoder") == {"tokens": ("x", "y", "z")}
    assert found.names("cross") == {"tokens": ("a", "b"), "query_tokens": ("x", "y", "z")}
    assert Encoding({}, ("a", "b")).names("decoder")["tokens"] == ("a", "b")


def test_padding_is_on_the_right_and_masked(tiny):
    model = tiny("bart")
    given = [
        {"input_ids": [5, 6, 7], "decoder_input_ids": [8]},
        {"input_ids": [9], "decoder_input_ids": [3, 4]},
    ]
    batch = pad([encode(one, model, None) for one in given], 1)
    assert {name: x.tolist() for name, x in batch.items()} == {
        "input_ids": [[5, 6, 7], [9, 1, 1]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "decoder_input_ids": [[8, 1], [3, 4]],
        "decoder_attention_mask": [[1, 0], [1, 1]],
    }


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([[3, 4], [5, 6]], r"torch.int64 \(2, 2\)"),
        ([3.0, 4.0], r"torch.float32 \(2,\)"),
        ([True, False], r"torch.bool \(2,\)"),
        (torch.tensor(3), "a text, or one sequence of whole token ids, got 3"),
        (42, "got 42"),
        ({"input_ids": [[3], [4]]}, "batch of 2; capture_many"),
        ({"pixel_values": [1.0]}, r"'input_ids', got \['pixel_values'\]"),
        ({"input_ids": [3, 4], "attention_mask": [1]}, r"\(2,\), not \(1,\)"),
    ],
)
def test_what_is_no_single_sequence_is_named(tiny, given, named):
    with pytest.raises(CaptureError, match=named):
        encode(given, tiny("bert"), None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("output_attentions", True),
        ("return_dict", 1),
        ("token_type_ids", [0, 1]),
        ("token_type_ids", [[0, 1], [0, 1]]),
        ("decoder_input_ids", [3, 4]),
    ],
)
def test_what_is_no_tensor_of_the_batch_is_named(tiny, name, value):
    with pytest.raises(CaptureError, match=f"'{name}' must be a tensor with the same batch"):
        encode({"input_ids": [[3, 4]], name: value}, tiny("bart"), None)


def test_a_text_that_is_no_unicode_is_refused(tiny, tokenizer):
    with pytest.raises(CaptureError, match=r"character 1, '\\ud800'.*UTF-8"):
        encode("a\ud800b", tiny("bert"), tokenizer)


def test_a_text_needs_a_tokenizer(tiny):
    with pytest.raises(ModelError, match="pass tokenizer="):
        encode("the dog", tiny("bert"), None)


def test_a_long_text_is_named_without_a_warning(tiny, tokenizer):
    with pytest.raises(CaptureError, match=r"102 tokens.*at most 64"):
        encode("dog " * 100, tiny("bert"), tokenizer)


def test_words_of_many_bytes_are_whole_again_when_merged():
    trace = gattn.capture("naïve 猫 “hi” 5°")
    assert "<0xC3>" in trace.tokens
    assert list(trace[0, 0].merge_words().tokens[1:]) == ["naïve", "猫", "“", "hi", "”", "5", "°"]
    assert trace[0, 0].merge_words().subgraph(["猫"]).graph.num_queries == 1


def test_texts_and_their_ids_give_the_same_tokens():
    model, tokenizer = gattn.load_model()
    text = "The dog chased naïve 猫"
    by_ids = gattn.capture(tokenizer(text)["input_ids"], model, tokenizer)
    assert by_ids.tokens == gattn.capture(text, model, tokenizer).tokens
    assert gattn.capture("The dog").tokens[1:] == ["The", "dog"]


def test_capture_many_says_which_input_fails():
    with pytest.raises(CaptureError, match=r"^input 2: The text is empty"):
        list(gattn.capture_many(["one", "two", ""], batch_size=2, progress=False))


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_its_ids_and_its_encoding_have_the_same_words(text):
    model, tokenizer = gattn.load_model()
    expected = encode(text, model, tokenizer).words
    given = tokenizer(text)
    for inputs in (given["input_ids"], given, tokenizer(text, return_tensors="pt")):
        assert encode(inputs, model, tokenizer).words == expected
    assert {None, 0} < set(expected)


def test_an_encoding_tells_the_words_of_its_real_tokens(tiny, tokenizer):
    given = tokenizer("walked a dog", padding="max_length", max_length=9, return_tensors="pt")
    assert encode(given, tiny("bert"), tokenizer).words == (None, 0, 0, 1, 2, None)
    given["input_ids"] = torch.tensor([[1, 5, 5, 10, 11, 2, 0, 0, 0]])
    assert encode(given, tiny("bert"), tokenizer).words == (None, 0, 1, 2, 2, None)


def test_ids_that_no_text_encodes_to_have_no_words():
    model, tokenizer = gattn.load_model()
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "the"]
    assert encode([0, *letters], model, tokenizer).words == ()


def test_ids_of_several_texts_have_words_of_their_own(tiny, tokenizer):
    ids = [1, 10, 11, 2, 10, 11, 3, 2]
    assert encode(ids, tiny("bert"), tokenizer).words == (None, 0, 0, None, 1, 1, 2, None)


def test_what_is_generated_has_words_and_special_tokens():
    model, tokenizer = gattn.load_model()
    text = "The river tall green lamp river tall green lamp river tall"
    inputs = tokenizer(text, return_tensors="pt")
    with gattn.capturing(model, tokenizer) as run:
        model.generate(**inputs, max_new_tokens=4, do_sample=False)
    head = run.trace[1, 1]
    prompt = gattn.capture(text, model, tokenizer)[1, 1]
    assert head.words[: len(prompt.words)] == prompt.words
    assert None not in head.words[1:]
    assert len(head.words) == len(prompt.words) + 3
    assert head.merge_words().generated > 0


def test_where_what_is_generated_has_no_words_the_prompt_has_its_own():
    _, tokenizer = gattn.load_model()
    ids = tokenizer("The dog")["input_ids"]
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "the"]
    assert words_of_run([*ids, *letters], 3, tokenizer) == (None, 0, 1, None, None, None)
    assert words_of_run([*ids, *letters], 0, tokenizer) == ()


def test_a_text_far_too_long_is_refused_by_its_beginning(tiny, tokenizer, monkeypatch):
    model, read = tiny("bert"), []

    class Counting:
        def __init__(self, inner):
            self.inner = inner

        def __call__(self, text, **options):
            read.append(len(text))
            return self.inner(text, **options)

        def __getattr__(self, name):
            return getattr(self.inner, name)

    long = "The dog walked. " * 100_000
    with pytest.raises(CaptureError, match=r"1,600,000 characters.*at most 64; shorten or split"):
        encode(long, model, Counting(tokenizer))
    assert sum(read) < 5_000


def test_a_text_of_few_tokens_may_have_many_characters(tiny, tokenizer):
    spaces = "The dog" + " " * 50_000 + "walked"
    assert (
        encode(spaces, tiny("bert"), tokenizer).tokens
        == encode("The dog walked", tiny("bert"), tokenizer).tokens
    )


def test_ids_are_looked_up_once_however_many_there_are(embedded, monkeypatch):
    """Looked up one by one, names of a long text took longer than its layers."""
    asked = []
    convert = type(embedded).convert_ids_to_tokens

    def counted(self, ids, **options):
        asked.append(ids)
        return convert(self, ids, **options)

    monkeypatch.setattr(type(embedded), "convert_ids_to_tokens", counted)
    ids = [5, 6, 7] * 200
    names = names_of_run(ids, embedded)
    assert len(asked) == 1
    assert names == names_of(ids[:3], embedded) * 200
    with pytest.warns(UserWarning, match="none with the ids 99999"):
        assert names_of_run([*ids, 99999], embedded)[-1] == "<99999>"
    assert len(asked) == 3
