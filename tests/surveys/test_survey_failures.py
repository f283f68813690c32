"""Texts that fail, batches that fail, and models that cannot be captured."""

import pytest
import torch
from filelock import FileLock
from runs import TEXTS, raiser, run, stopped

import gattn
from gattn.errors import CaptureError, ModelError
from gattn.surveys.ask.reading import open_survey
from gattn.surveys.run import capture_graphs as capture
from gattn.surveys.run import running
from gattn.surveys.store import queue


def bad_head_table(trace):
    if "number 3" in trace.text:
        raise ZeroDivisionError("three")
    return gattn.analysis.head_table(trace, progress=False)


def test_texts_that_fail_leave_the_others_as_they_are(tmp_path, embedded, small_parts, contents):
    rows = [{"text": text, "source": "a"} for text in TEXTS]
    plain = run(rows, embedded, tmp_path / "plain", analyses=[bad_head_table])
    assert dict(plain.failures[["text_id", "reason"]].values) == {3: "ZeroDivisionError: three"}
    bad = {
        10: {"text": ""},
        11: {"text": "word " * 3000},
        12: {"text": "\ud800"},
        13: {"input_ids": [1, 99_999]},
        14: {"input_ids": [2**62]},
        15: {"input_ids": []},
        16: 17,
    }
    some = run([*rows, *bad.values()], embedded, tmp_path / "bad", analyses=[bad_head_table])
    reasons = dict(some.failures[["text_id", "reason"]].values)
    assert reasons.keys() == {3, *bad}
    for text_id, part in {
        10: "is empty",
        11: "the model takes at most 1024",
        12: "not valid Unicode",
        13: "the model's tokens are 0",
        15: "is empty",
        16: "expected a text, a row",
    }.items():
        assert part in reasons[text_id]
    for name, content in contents(tmp_path / "plain").items():
        if "000000000" in name or "000000004" in name:
            assert contents(tmp_path / "bad")[name] == content
    assert len(some) == len(plain) == 9


def test_a_text_without_the_tokens_of_an_edit_fails_whatever_runs_beside_it(tmp_path, embedded):
    texts = ["The cat sat on the mat", "A dog", "Dogs", "The cat slept"]
    found = run(texts, embedded, tmp_path, edits=[gattn.Cut(key="cat")])
    assert list(found.texts["text_id"]) == [0, 3]
    assert all("had nothing to edit" in reason for reason in found.failures["reason"])


def failing_above(length, error):
    """Capture as it is done, but fail where more texts than these run together."""
    whole = capture.capture_encoded

    def capture_encoded(encodings, *rest):
        if len(encodings) > length or any("number 5" in one.text for one in encodings):
            raise error
        return whole(encodings, *rest)

    return capture_encoded


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError("no"), RuntimeError("nan")]
)
def test_a_batch_that_fails_is_run_in_halves(error, whole, tmp_path, embedded, monkeypatch):
    monkeypatch.setattr(capture, "capture_encoded", failing_above(1, error))
    halved = run(TEXTS, embedded, tmp_path / "halved")
    assert dict(halved.failures[["text_id", "reason"]].values) == {
        5: f"{type(error).__name__}: {error}"
    }
    plain = open_survey(tmp_path / "whole")
    for text_id in (0, 4, 9):
        one, other = halved.trace(text_id)[1, 1], plain.trace(text_id)[1, 1]
        assert one.to_dense() == pytest.approx(other.to_dense(), abs=1e-5)


def test_a_survey_of_which_all_texts_fail_says_why(tmp_path, embedded):
    with pytest.raises(CaptureError, match=r"None of 3 texts .* reason is: The text is empty"):
        run(["", "", "\0" * 3000], embedded, tmp_path / "survey")
    assert len(open_survey(tmp_path / "survey").failures) == 3


def test_a_model_that_cannot_be_captured_stops_early(tmp_path, embedded, monkeypatch, small_parts):
    monkeypatch.setattr(running, "_PATIENCE", 6)
    monkeypatch.setattr(
        capture, "capture_encoded", raiser(CaptureError("Its attention is not to be seen."))
    )
    with pytest.raises(CaptureError, match=r"None of 8 texts .* The other 32 are still to do"):
        run(TEXTS * 4, embedded, tmp_path / "survey")
    assert FileLock(tmp_path / "survey" / ".lock").acquire(timeout=0)


def test_texts_that_no_model_could_take_stop_nothing(tmp_path, embedded, monkeypatch, small_parts):
    monkeypatch.setattr(running, "_PATIENCE", 6)
    bad = ["", "word " * 3000, "\ud800", 17] * 4
    found = run([*bad, "The dog"], embedded, tmp_path / "survey")
    assert (len(found), len(found.failures)) == (1, 16)


def test_failures_after_texts_that_were_captured_stop_nothing(
    tmp_path, embedded, monkeypatch, small_parts
):
    monkeypatch.setattr(running, "_PATIENCE", 1)
    texts = [*TEXTS[:8], "The number 3", ""]
    with stopped(), pytest.raises(KeyboardInterrupt):
        run(texts, embedded, tmp_path / "survey", analyses=[bad_head_table])
    found = run(texts, embedded, tmp_path / "survey", analyses=[bad_head_table])
    assert list(found.failures["text_id"]) == [3, 8, 9]


def test_a_model_without_a_tokenizer_ends_the_survey(tmp_path, tiny):
    with pytest.raises(ModelError, match="A text needs a tokenizer"):
        run(TEXTS, tiny("llama"), tmp_path / "survey")
    assert queue.parts(tmp_path / "survey") == [0]
