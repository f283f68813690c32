"""Words on the page: what is searched over several tokens, and why a control is grey."""

import numpy as np
import pytest
import torch
from decoding import Decoded
from looking import settle, state
from playwright.sync_api import expect

import gattn
from gattn.drawing.page.payload import titled
from gattn.heads.stack import Stack

BOOK = "Alice gave the book to Bob because Bob had asked Alice for the book"


@pytest.fixture(scope="module")
def book():
    trace = gattn.capture(BOOK)
    assert trace.tokens.count("Bob") == 0
    return trace


@pytest.mark.parametrize("fragment", ["", "words=1&"])
@pytest.mark.parametrize("query", ["Bob", "Ali", "the book"])
def test_a_search_goes_over_tokens_and_steps_through_words(look_at, book, fragment, query):
    page = look_at(book, f"{fragment}search={query.replace(' ', '+')}")
    expect(page.locator("#found")).to_have_text("2")
    words, tokens = book[0, 0].words, []
    for n in (1, 2, 1):
        page.locator("#search").press("Enter")
        expect(page.locator("#found")).to_have_text(f"{n} of 2")
        tokens.append(int(state(page)["token"]))
    assert tokens[0] == tokens[2] < tokens[1]
    said = [BOOK.split()[words[token]].lower() for token in tokens[:2]]
    assert said == [query.split()[0].lower().replace("ali", "alice")] * 2


def test_a_searched_word_is_counted_once_where_words_merge(look_at, book):
    page = look_at(book, "search=b")
    expect(page.locator("#found")).to_have_text("7")
    page.locator("#words").check()
    expect(page.locator("#found")).to_have_text("5")


def test_another_order_keeps_the_chosen_head(look_at, book):
    page = look_at(book, "layer=1&head=2")
    page.locator("#sort").select_option("induction")
    settle(page)
    assert (state(page)["layer"], state(page)["head"]) == ("1", "2")
    expect(page.locator("#head-title")).to_contain_text("layer 1 · head 2")


def test_a_grey_control_says_why(look_at, book):
    words, special = "label:has(#words)", "label:has(#special)"
    page = look_at(book)
    expect(page.locator("#words")).to_be_enabled()
    expect(page.locator(words)).to_have_attribute("title", "")
    page = look_at(book[0, 0].subgraph([1, 3]))
    expect(page.locator("#special")).to_be_disabled()
    expect(page.locator(special)).to_have_attribute("title", "There are no special tokens here")
    vectors = torch.eye(3)[None]
    page = look_at(gattn.attention_graphs(vectors, vectors, gattn.TokenGraph.causal(3))[0])
    for label in (words, special):
        expect(page.locator(label)).to_have_attribute(
            "title",
            "Unknown here: the tokens came without a tokenizer, or from ids that do not encode a "
            "text",
        )


def test_what_is_generated_merges_and_hides_like_the_prompt(look_at):
    model, tokenizer = gattn.load_model()
    with gattn.capturing(model, tokenizer) as run:
        model.generate(**tokenizer(BOOK, return_tensors="pt"), max_new_tokens=4, do_sample=False)
    page = look_at(run.trace)
    expect(page.locator("#title")).to_contain_text(BOOK)
    expect(page.locator("#words")).to_be_enabled()
    expect(page.locator("#special")).to_be_enabled()


@pytest.mark.parametrize(
    "text", ["Never staged. The crowd loved  it.", "$O(n \\log n)$", "你好, 🙂"]
)
def test_the_page_is_titled_by_the_text_that_was_given(look_at, text, tmp_path):
    trace = gattn.capture(text)
    assert trace.text == text
    trace.save(tmp_path / "text.gattn")
    page = look_at(gattn.load(tmp_path / "text.gattn"))
    expect(page.locator("#title")).to_have_text(text)
    assert page.locator("#title").text_content() == text
    assert page.evaluate("document.querySelector('title').textContent") == f"{text} · embedded"


def test_where_no_text_is_known_characters_are_whole_in_the_title(look_at):
    model, tokenizer = gattn.load_model()
    page = look_at(gattn.capture(tokenizer("你好 naïve 🙂")["input_ids"], model, tokenizer))
    assert "<0x" not in page.locator("#title").text_content()
    expect(page.locator("#title")).to_contain_text("naïve 🙂")


def dense(*shape):
    return np.random.default_rng(0).dirichlet(np.ones(shape[-1]), shape[:-1])


@pytest.mark.parametrize(
    ("keys", "title"),
    [
        (list("abcde"), "a b c d e"),
        ([" a", " b", "c", " d", " e"], "a bc d e"),
        ((), "5 tokens"),
    ],
)
def test_tokens_that_are_no_words_title_a_page(keys, title):
    trace = gattn.AttentionTrace.from_arrays(dense(1, 2, 5, 5), keys)
    assert titled(trace) == title


def test_many_nodes_of_a_graph_title_a_page_in_short():
    names = [f"member {n}" for n in range(34)]
    trace = gattn.AttentionTrace.from_arrays(dense(1, 2, 34, 34), names)
    assert titled(trace).startswith("member 0, member 1, ")
    assert titled(trace).endswith("… (34 tokens)")
    assert len(titled(trace)) < 80


def test_cross_attention_is_titled_by_keys_and_queries():
    long = ["Donaudampfschifffahrtsgesellschaft", "Fluss", "."]
    for keys, said in ((["Der", "Fluss", "."], "Der Fluss ."), (long, f"{long[0]}…")):
        head = gattn.AttentionGraph.from_dense(
            dense(2, 3), gattn.TokenGraph.bipartite(2, 3), layer=0, head=0,
            tokens=keys, query_tokens=["The", "river"],
        )  # fmt: skip
        trace = gattn.AttentionTrace({"cross": Stack("cross", {(0, 0): head})}, "m")
        assert titled(trace) == f"{said} → The river · m"


def test_the_stacks_of_a_translation_have_titles_of_their_own():
    own = gattn.AttentionTrace.from_arrays(dense(1, 1, 3, 3), ["Der", "Fluss", "."])
    head = gattn.AttentionGraph.from_dense(
        dense(2, 3), gattn.TokenGraph.bipartite(2, 3), layer=0, head=0,
        tokens=["Der", "Fluss", "."], query_tokens=["The", "river"],
    )  # fmt: skip
    read = gattn.AttentionGraph.from_dense(
        dense(2, 2), gattn.TokenGraph.complete(2), tokens=["The", "river"], layer=0, head=0
    )
    stacks = {"encoder": own.stacks.popitem()[1]}
    stacks |= {"cross": Stack("cross", {(0, 0): head}), "decoder": Stack("decoder", {(0, 0): read})}
    trace = gattn.AttentionTrace(stacks, "m", text="Der Fluss.")
    header = Decoded(trace.to_html()).header
    found = [stack["text"] for stack in header["traces"][0]["stacks"]]
    assert found == ["Der Fluss.", "Der Fluss. → The river", "The river"]
