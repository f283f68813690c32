"""CaptureGraphs: a batch of columns in, a row per text out."""

import ctypes
import json
import sys
import weakref
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn.analysis import head_table, spectral_table
from gattn.engines.tensors.memory import return_freed_memory
from gattn.errors import CaptureError, ModelError, SelectionError
from gattn.heads.trace import AttentionTrace
from gattn.surveys.run import capture_graphs as capture_module
from gattn.surveys.run.capture_graphs import CaptureGraphs
from gattn.surveys.store.rebuilding import trace_of
from gattn.surveys.store.text_rows import tables_of

TEXTS = [
    "The dog chased the cat, and the cat chased the dog",
    "The river",
    "A tall green lamp stood by the river; a tall green lamp",
    "dog",
]
KEEP = gattn.Threshold(0.02)


@pytest.fixture(scope="module")
def loaded():
    return gattn.load_model()


def traces(rows: pa.Table, model: str = "embedded") -> dict[int, AttentionTrace]:
    tables = tables_of(rows)
    found = {}
    for text_id in tables["texts"]["text_id"].to_pylist():
        own = {
            name: table.filter(pc.equal(table["text_id"], text_id))
            for name, table in tables.items()
        }
        found[text_id] = trace_of(own, model)
    return found


def assert_alike(one: AttentionTrace, other: AttentionTrace) -> None:
    """Equal but for the last bits, which the size of a batch may change."""
    assert one.text == other.text
    assert one.tokens == other.tokens
    assert list(one.only_stack) == list(other.only_stack)
    for place, head in one.only_stack.items():
        np.testing.assert_allclose(head.to_dense(), other[place].to_dense(), atol=1e-6)
        np.testing.assert_array_equal(head.total_edges, other[place].total_edges)


def test_each_text_is_captured_as_by_itself_and_in_order(loaded) -> None:
    rows = CaptureGraphs(loaded[0], keep=gattn.All())({"text_id": [7, 3, 5, 9], "text": TEXTS})
    assert rows["text_id"].to_pylist() == [7, 3, 5, 9]
    assert rows["text"].to_pylist() == TEXTS
    found = traces(rows)
    for text_id, text in zip([7, 3, 5, 9], TEXTS, strict=True):
        assert_alike(found[text_id], gattn.capture(text, *loaded))


def test_what_is_dropped_is_counted(loaded) -> None:
    rows = CaptureGraphs(loaded[0], keep=gattn.TopK(2))({"text": TEXTS[:1]})
    trace = gattn.capture(TEXTS[0], *loaded, keep=gattn.TopK(2))
    (row,) = rows.to_pylist()
    assert row["num_edges"] == sum(head.graph.num_edges for head in trace.heads())
    assert row["num_tokens"] == len(trace.tokens)
    kept = {(head["layer"], head["head"]): head["kept"] for head in row["heads"]}
    for place, head in trace.only_stack.items():
        assert kept[place] == pytest.approx(head.share_kept, abs=1e-6)
        assert 0 < kept[place] < 1


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    most_tokens=st.integers(1, 120),
)
@pytest.mark.slow
def test_how_texts_are_put_together_changes_nothing(lengths, most_tokens) -> None:
    model = _double()
    ids = [list(range(5, 5 + length)) for length in lengths]
    keep = gattn.All()
    alone = CaptureGraphs(model, keep=keep, analyses=(), most_tokens=1)({"input_ids": ids})
    together = CaptureGraphs(model, keep=keep, analyses=(), most_tokens=most_tokens)
    rows = together({"input_ids": ids})
    assert rows["num_tokens"].to_pylist() == lengths
    for one, other in zip(alone.to_pylist(), rows.to_pylist(), strict=True):
        assert one["num_edges"] == other["num_edges"]
        for edge, same in zip(one["edges"], other["edges"], strict=True):
            assert edge.pop("attention") == pytest.approx(same.pop("attention"), abs=1e-12)
            assert edge == same


@cache
def _double():
    return gattn.load_model()[0].double()


def test_batches_hold_at_most_so_many_tokens(loaded, monkeypatch) -> None:
    sizes = []
    plain = capture_module.capture_encoded

    def counted(encodings, *rest):
        sizes.append((len(encodings), max(map(len, encodings))))
        return plain(encodings, *rest)

    monkeypatch.setattr(capture_module, "capture_encoded", counted)
    ids = [list(range(5, 5 + n)) for n in (3, 30, 4, 31, 5, 32, 90)]
    CaptureGraphs(loaded[0], analyses=(), most_tokens=64)({"input_ids": ids})
    assert sum(count for count, _ in sizes) == len(ids)
    assert all(count * longest <= 64 or count == 1 for count, longest in sizes)
    assert max(count for count, _ in sizes) > 1


def test_a_text_that_fails_has_its_reason_and_spoils_no_other(loaded) -> None:
    capture = CaptureGraphs(loaded[0], keep=KEEP)
    bad = ["", "\ud800", "x" * 9000, None]
    rows = capture({"text_id": list(range(8)), "text": [*TEXTS, *bad]})
    reasons = rows["reason"].to_pylist()
    assert reasons[:4] == [None] * 4
    assert "empty" in reasons[4]
    assert "Unicode" in reasons[5]
    assert "at most" in reasons[6]
    assert "no 'text'" in reasons[7]
    tables = tables_of(rows)
    assert tables["failures"]["text_id"].to_pylist() == [4, 5, 6, 7]
    assert tables["failures"]["reason"].to_pylist() == reasons[4:]
    assert set(tables["edges"]["text_id"].to_pylist()) == {0, 1, 2, 3}
    plain = tables_of(capture({"text_id": list(range(4)), "text": TEXTS}))
    for name in ("edges", "queries", "heads", "tokens", "texts"):
        assert tables[name].equals(plain[name]), name


def test_ids_out_of_range_and_reasons_given_are_failures(loaded) -> None:
    batch = {
        "text_id": [0, 1, 2],
        "input_ids": [[5, 6, 7], [10**6], None],
        "decoder_input_ids": [None] * 3,
        "text": [None, None, None],
        "reason": [None, None, "line 3 is no JSON"],
        "metadata": ["{}"] * 3,
    }
    rows = CaptureGraphs(loaded[0])(batch)
    first, second, third = rows["reason"].to_pylist()
    assert first is None
    assert "the model's tokens are" in second
    assert third == "line 3 is no JSON"


def test_an_error_of_the_model_is_found_by_halves(loaded, monkeypatch) -> None:
    plain = capture_module.capture_encoded
    asked = []

    def failing(encodings, *rest):
        asked.append(len(encodings))
        if any(encoding.text == TEXTS[2] for encoding in encodings):
            raise torch.OutOfMemoryError("too much")
        return plain(encodings, *rest)

    monkeypatch.setattr(capture_module, "capture_encoded", failing)
    rows = CaptureGraphs(loaded[0])({"text": TEXTS})
    assert rows["reason"].to_pylist() == [None, None, "OutOfMemoryError: too much", None]
    assert asked[0] == 4
    assert max(asked[1:]) == 2


def test_what_a_batch_held_as_it_failed_is_gone_when_its_halves_run(loaded, monkeypatch) -> None:
    plain, held = capture_module.capture_encoded, []

    def failing(encodings, *rest):
        assert all(tensor() is None for tensor in held)
        large = torch.zeros(1)
        held.append(weakref.ref(large))
        if len(encodings) > 1:
            raise torch.OutOfMemoryError("too much")
        return plain(encodings, *rest)

    monkeypatch.setattr(capture_module, "capture_encoded", failing)
    rows = CaptureGraphs(loaded[0], analyses=())({"text": TEXTS})
    assert rows["reason"].to_pylist() == [None] * 4
    assert len(held) == 7


@pytest.mark.parametrize(
    "error",
    [
        ModelError("no model"),
        OSError("no disk"),
        torch.AcceleratorError("CUDA error: unspecified launch failure"),
    ],
)
def test_an_error_that_no_text_is_to_blame_for_is_raised(loaded, monkeypatch, error) -> None:
    def failing(*_):
        raise error

    monkeypatch.setattr(capture_module, "capture_encoded", failing)
    with pytest.raises(type(error)):
        CaptureGraphs(loaded[0])({"text": TEXTS})


def test_a_layer_that_is_not_there_is_raised(loaded) -> None:
    with pytest.raises(SelectionError, match="No layer 9"):
        CaptureGraphs(loaded[0], layers=[9])({"text": TEXTS})


def test_analyses_are_columns_of_heads(loaded) -> None:
    analyses = [head_table, partial(spectral_table, progress=False)]
    rows = CaptureGraphs(loaded[0], keep=gattn.All(), analyses=analyses)({"text": TEXTS[:1]})
    heads = pd.DataFrame(rows["heads"][0].as_py()).set_index(["layer", "head"])
    trace = gattn.capture(TEXTS[0], *loaded)
    for table in (head_table(trace).droplevel("stack"), spectral_table(trace, progress=False)):
        for name in table.columns:
            if name == "label":
                assert heads[name].tolist() == table[name].tolist()
            else:
                assert heads[name].dtype == float
                np.testing.assert_allclose(heads[name], table[name], atol=1e-5, err_msg=name)


def test_an_analysis_that_raises_fails_its_text_alone(loaded) -> None:
    def picky(trace):
        if len(trace.tokens) < 5:
            raise ValueError("too short to say")
        return head_table(trace)

    rows = CaptureGraphs(loaded[0], analyses=[picky])({"text": TEXTS})
    assert [reason is None for reason in rows["reason"].to_pylist()] == [
        len(gattn.capture(text, *loaded).tokens) >= 5 for text in TEXTS
    ]
    assert "ValueError: too short to say" in rows["reason"].to_pylist()


def test_an_analysis_needs_one_row_a_head(loaded) -> None:
    unnamed = [lambda trace: pd.DataFrame({"x": [1.0]})]
    rows = CaptureGraphs(loaded[0], analyses=unnamed)({"text": TEXTS[:1]})
    assert "one row per head" in rows["reason"][0].as_py()


def test_words_missing_from_an_analysis_are_null(loaded) -> None:
    def some(trace):
        table = head_table(trace)[["label"]].iloc[:3]
        table.loc[table.index[0], "label"] = None
        return table

    rows = CaptureGraphs(loaded[0], analyses=[some])({"text": TEXTS[:1]})
    labels = [head["label"] for head in rows["heads"][0].as_py()]
    assert labels[0] is None
    assert all(isinstance(label, str) for label in labels[1:3])
    assert labels[3:] == [None] * 13


@pytest.mark.parametrize("wrong", [head_table, "heads", ["heads"], [head_table, None], None])
def test_analyses_are_a_list_of_functions(loaded, wrong) -> None:
    with pytest.raises(CaptureError, match=r"such as \[gattn\.analysis\.head_table\], not "):
        CaptureGraphs(loaded[0], analyses=wrong)


@pytest.mark.parametrize(("of_cats", "of_others"), [(None, "words"), (1.5, "words"), (np.nan, 2)])
def test_scores_of_other_kinds_in_other_texts_are_put_together(loaded, of_cats, of_others) -> None:
    def some(trace):
        heads = head_table(trace)[[]]
        return heads.assign(said=of_cats if "cat" in trace.text else of_others, flag=True, no=None)

    rows = CaptureGraphs(loaded[0], analyses=[some])(
        {"text_id": [0, 1, 2], "text": ["The cat", "", "The dog"]}
    )
    heads = tables_of(rows)["heads"]
    kind = str if of_others == "words" else float
    known = [value if value is None else kind(value) for value in (of_cats, of_others)]
    expected = [None if value != value else value for value in known for _ in range(16)]
    assert heads["said"].to_pylist() == expected
    assert heads["flag"].to_pylist() == [1.0] * 32
    assert "no" not in heads.column_names


@pytest.mark.parametrize("name", ["entropy", "Entropy", "num_edges", "Layer", "text_id"])
def test_two_columns_of_one_name_are_refused(loaded, name) -> None:
    def more(trace):
        return head_table(trace)[["label"]].set_axis([name], axis=1)

    rows = CaptureGraphs(loaded[0], analyses=[head_table, more])({"text": TEXTS[:1]})
    assert f"{name.lower()!r} is taken: rename it" in rows["reason"][0].as_py()


def test_edits_are_made(loaded) -> None:
    cut = gattn.Cut(layer=1, head=2, key=0)
    rows = CaptureGraphs(loaded[0], keep=gattn.All(), edits=[cut])(
        {"text_id": [0], "text": TEXTS[:1]}
    )
    found = traces(rows)
    with gattn.edited(loaded[0], cut):
        assert_alike(next(iter(found.values())), gattn.capture(TEXTS[0], *loaded))
    assert rows["num_edges"][0].as_py() < sum(
        head.graph.num_edges for head in gattn.capture(TEXTS[0], *loaded).heads()
    )


def test_other_columns_become_metadata(loaded) -> None:
    batch = {"text": TEXTS[:2], "language": ["en", None], "year": np.array([1999, 2001])}
    rows = CaptureGraphs(loaded[0])(batch)
    assert [json.loads(one) for one in rows["metadata"].to_pylist()] == [
        {"language": "en", "year": 1999},
        {"language": None, "year": 2001},
    ]
    assert rows["text_id"].to_pylist() == [None, None]


def test_columns_of_a_users_own_are_metadata_whatever_they_are_called(loaded) -> None:
    batch = {"text": TEXTS[:1], "metadata": [{"x": 1}], "reason": ["mine"]}
    (row,) = CaptureGraphs(loaded[0])(batch).to_pylist()
    assert json.loads(row["metadata"]) == {"metadata": {"x": 1}, "reason": "mine"}
    assert row["reason"] is None


def test_numpy_columns_and_tables_are_read_alike(loaded) -> None:
    capture = CaptureGraphs(loaded[0], keep=KEEP)
    plain = capture({"text_id": [0, 1, 2], "text": [*TEXTS[:2], None]})
    arrays = {
        "text_id": np.arange(3),
        "text": np.array([*TEXTS[:2], None], dtype=object),
    }
    table = pa.table({"text_id": [0, 1, 2], "text": [*TEXTS[:2], None]})
    for batch in (arrays, table, table.to_pandas()):
        assert capture(batch).equals(plain)


def test_an_empty_batch_gives_no_rows(loaded) -> None:
    rows = CaptureGraphs(loaded[0])({"text": []})
    assert len(rows) == 0
    assert "reason" in rows.column_names


def test_columns_without_a_text_are_refused(loaded) -> None:
    with pytest.raises(CaptureError, match=r"'text' or 'input_ids'.*'content'"):
        CaptureGraphs(loaded[0])({"content": TEXTS})


def test_options_are_checked_when_it_is_made(loaded) -> None:
    with pytest.raises(gattn.errors.GraphError, match="TopK"):
        CaptureGraphs(loaded[0], keep=3)
    with pytest.raises(CaptureError, match="most_tokens"):
        CaptureGraphs(loaded[0], most_tokens=0)


def table_of(rows: pa.Table) -> pd.DataFrame:
    return pd.DataFrame(rows["heads"][0].as_py()).set_index(["stack", "layer", "head"])


def test_scores_are_of_all_edges_and_what_is_stored_of_those_kept(loaded) -> None:
    keep = gattn.TopK(2)
    rows = CaptureGraphs(loaded[0], keep=keep)({"text_id": [0], "text": TEXTS[:1]})
    whole, kept = gattn.capture(TEXTS[0], *loaded), gattn.capture(TEXTS[0], *loaded, keep=keep)
    assert_alike(traces(rows)[0], kept)
    assert all(head.kept_by == (gattn.TopK(2),) for head in traces(rows)[0].heads())
    found, expected = table_of(rows), head_table(whole)
    for name in ("entropy", "induction", "even_locality", "edges_for_90"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
    assert (found["entropy"] > head_table(kept)["entropy"] + 0.01).sum() > 5
    assert found["label"].tolist() == expected["label"].tolist()
    np.testing.assert_allclose(found["kept"], head_table(kept)["kept"], atol=1e-6)


def test_scores_of_kept_edges_where_asked_for(loaded) -> None:
    capture = CaptureGraphs(loaded[0], keep=gattn.TopK(2), analyse="kept")
    rows = capture({"text_id": [0], "text": TEXTS[:1]})
    kept = gattn.capture(TEXTS[0], *loaded, keep=gattn.TopK(2))
    np.testing.assert_allclose(table_of(rows)["entropy"], head_table(kept)["entropy"], atol=1e-5)


def test_all_edges_that_would_take_too_much_are_a_failure_that_says_so(loaded, monkeypatch) -> None:
    monkeypatch.setattr(capture_module, "_MOST_BYTES", 10_000)
    monkeypatch.setattr(capture_module, "_BATCH_BYTES", 10_000)
    batch = {"text": TEXTS}
    whole = [head_table, partial(spectral_table, progress=False)]
    reasons = CaptureGraphs(loaded[0], analyses=whole)(batch)["reason"].to_pylist()
    assert [reason is None for reason in reasons] == [False, True, False, True]
    assert "analyse only the 'kept'" in reasons[0]
    for options in ({"analyse": "kept"}, {"analyses": whole[:1]}, {"keep": gattn.All()}):
        options = {"analyses": whole} | options
        assert CaptureGraphs(loaded[0], **options)(batch)["reason"].null_count == 4
    with pytest.raises(CaptureError, match="'all' or 'kept'"):
        CaptureGraphs(loaded[0], analyse="some")


def test_batches_hold_no_more_edges_than_fit(loaded, monkeypatch) -> None:
    sizes = []
    plain = capture_module.capture_encoded

    def counted(encodings, *rest):
        sizes.append(sum(4 * 16 * len(encoding) ** 2 for encoding in encodings))
        return plain(encodings, *rest)

    monkeypatch.setattr(capture_module, "capture_encoded", counted)
    monkeypatch.setattr(capture_module, "_BATCH_BYTES", 4 * 16 * 800)
    ids = [list(range(5, 5 + n)) for n in (20, 19, 18, 3, 4, 28, 5)]
    spectral = partial(spectral_table, progress=False)
    CaptureGraphs(loaded[0], analyses=[spectral])({"input_ids": ids})
    assert len(sizes) == 4
    assert max(sizes) <= 4 * 16 * 800


def test_memory_is_given_back_after_each_batch(loaded, monkeypatch) -> None:
    given = []
    monkeypatch.setattr(capture_module, "return_freed_memory", lambda: given.append(1))
    capture = CaptureGraphs(loaded[0])
    for texts in (TEXTS[:1], [""], []):
        capture({"text": texts})
    assert len(given) == 3


def test_memory_is_given_back_where_that_takes_asking(monkeypatch) -> None:
    asked = []
    libraries = iter([SimpleNamespace(malloc_trim=asked.append), SimpleNamespace()])
    monkeypatch.setattr(ctypes, "CDLL", lambda _: next(libraries))
    for platform in ("linux", "linux", "win32"):  # glibc, another library, another system
        monkeypatch.setattr(sys, "platform", platform)
        return_freed_memory()
    assert asked == [0]
