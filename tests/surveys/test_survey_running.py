"""Surveys in this process: the same again, in little memory, and a trace as it was captured."""

import gc
import json
import threading
import time
import weakref

import numpy as np
import pytest

import gattn
from benchmarks import zoo
from gattn.errors import FileError, GraphError, ModelError, SelectionError
from gattn.surveys.inputs.inputs import read_inputs
from gattn.surveys.run import local
from gattn.surveys.run.capture_graphs import CaptureGraphs
from gattn.surveys.run.local import run_here
from gattn.surveys.run.running import survey
from gattn.surveys.store import queue
from gattn.surveys.store.parts import parts_in

TEXTS = [f"The dog number {n} chased the cat. " * (1 + n % 3) for n in range(10)]


def run(texts, model, out, **options):
    return survey(texts, model, out=out, **{"progress": False} | options)


def test_a_trace_read_back_is_the_one_captured(tmp_path, embedded, small_parts):
    found = run(TEXTS, embedded, tmp_path, scores=True, most_tokens=1)
    for text_id, text in enumerate(TEXTS):
        expected = gattn.capture(text, embedded, keep=gattn.Threshold(0.02), scores=True)
        trace = found.trace(text_id)
        assert trace.text == text
        assert trace.tokens == expected.tokens
        assert list(trace.only_stack) == list(expected.only_stack)
        for place in expected.only_stack:
            one, other = trace[place], expected[place]
            assert str(one.graph) == str(other.graph)
            assert one.kept_by == (gattn.Threshold(0.02),)
            for name in ("query", "key", "attention", "score", "total_mass", "total_edges"):
                assert np.array_equal(getattr(one, name), getattr(other, name)), (place, name)


def test_the_same_survey_writes_the_same_bytes(tmp_path, embedded, small_parts, contents):
    for name in ("one", "two"):
        run(TEXTS, embedded, tmp_path / name)
    found = contents(tmp_path / "one")
    assert found == contents(tmp_path / "two")
    assert {name.split("/")[0] for name in found} == {
        *("texts", "edges", "queries", "heads", "tokens", "manifest.json")
    }
    time.sleep(0.01)
    run(TEXTS, embedded, tmp_path / "one")
    assert contents(tmp_path / "one") == found


def test_where_texts_lie_changes_no_number(tmp_path, embedded, small_parts):
    first = run(TEXTS, embedded, tmp_path / "first")
    drawn = run(TEXTS, embedded, tmp_path / "drawn", sample=3, seed=2)
    assert len(drawn) == 3
    for text_id in drawn.texts["text_id"]:
        for place in [(0, 0), (3, 3)]:
            one, other = first.trace(text_id)[place], drawn.trace(text_id)[place]
            assert one.to_dense() == pytest.approx(other.to_dense(), abs=1e-6)


def test_the_manifest_says_what_was_asked(tmp_path, embedded):
    run(TEXTS, embedded, tmp_path, layers=[1], limit=2, analyses=[])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    expected = {
        "schema": 1,
        "gattn": gattn.__version__,
        "model": "embedded",
        "architecture": "LlamaForCausalLM",
        "num_layers": 4,
        "num_heads": 4,
        "keep": "Threshold(0.02)",
        "layers": [1],
        "heads": None,
        "analyses": [],
        "limit": 2,
        "num_texts": 2,
    }
    assert {name: manifest[name] for name in expected} == expected
    for name in ("revision", "tokenizer"):
        assert manifest[name].startswith("sha256:")


def test_a_model_with_configurations_of_two_texts_is_described(tmp_path):
    """MusicGen has one of its text encoder and one of its decoder."""
    model = zoo.specimen("musicgen").model
    with pytest.raises(ModelError, match="needs a tokenizer"):
        run(["A tune"], model, tmp_path)


@pytest.mark.slow
def test_a_survey_holds_two_parts_at_once(tmp_path, small_parts):
    queue.fill(tmp_path, read_inputs(["The dog"] * 40))
    capture, made, most = CaptureGraphs(analyses=[]), [], []

    def alive():
        return sum(one() is not None for one in made)

    def counted(batch):
        for _ in range(2000):  # the writer's thread lets go of a part soon after it is written
            gc.collect()
            if alive() <= 1:
                break
            time.sleep(0.05)
        most.append(alive())  # parts that are held while another is captured
        rows = capture(batch)
        made.append(weakref.ref(rows))
        return rows

    done = list(run_here(tmp_path, queue.parts(tmp_path), counted))
    assert len(done) == len(most) == 10
    assert max(most) == 1
    gc.collect()
    assert not alive()


def test_a_part_is_written_while_the_next_one_is_captured(tmp_path, monkeypatch, small_parts):
    queue.fill(tmp_path, read_inputs(["The dog"] * 8))
    capture, finish, both = CaptureGraphs(analyses=[]), local.finish, threading.Barrier(2)

    def capturing(batch):
        if batch["text_id"][0].as_py():
            both.wait(60)
        return capture(batch)

    def finishing(folder, first, rows):
        if not first:
            both.wait(60)
        return finish(folder, first, rows)

    monkeypatch.setattr(local, "finish", finishing)
    done = list(run_here(tmp_path, queue.parts(tmp_path), capturing))
    assert [part.first for part in done] == parts_in(tmp_path) == [0, 4]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"keep": 0.02}, GraphError, "A keep says which edges stay"),
        ({"layers": [9]}, SelectionError, "9"),
        ({"layers": []}, SelectionError, "layers is empty"),
        ({"limit": 0}, FileError, "limit must be a whole number"),
        ({"sample": 99}, FileError, "than the 10 there are"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_written(
    options, error, said, tmp_path, embedded
):
    with pytest.raises(error, match=said):
        run(TEXTS, embedded, tmp_path / "survey", **options)
    assert not (tmp_path / "survey" / "texts").exists()
    assert len(run(TEXTS[1:3], embedded, tmp_path / "survey")) == 2


def test_numbers_of_numpy_are_those_of_python(tmp_path, embedded):
    plain = {"layers": [0, 1], "limit": 3, "sample": 2, "seed": 1, "most_tokens": 64}
    numpy = {name: np.array(value)[()] for name, value in plain.items()}
    run(TEXTS, embedded, tmp_path, analyses=[], **numpy)
    assert len(run(TEXTS, embedded, tmp_path, analyses=[], **plain)) == 2
    with pytest.raises(FileError, match=r"seed must be .* ≥ 0, not 1\.5"):
        run(TEXTS, embedded, tmp_path / "other", seed=1.5)


def test_heads_are_chosen_as_in_capture(tmp_path, embedded):
    chosen = {"heads": [(1, 2), "0.3"]}
    found = run(TEXTS[:2], embedded, tmp_path, analyses=[], **chosen)
    assert set(found.trace(0).only_stack) == {(1, 2), (0, 3)}
    assert len(run(TEXTS[:2], embedded, tmp_path, analyses=[], heads="1.2,0.3")) == 2
    with pytest.raises(FileError, match="heads"):
        run(TEXTS[:2], embedded, tmp_path, analyses=[], heads="1.2")
    with pytest.raises(SelectionError, match="heads must be a number"):
        run(TEXTS, embedded, tmp_path / "none", heads="mean of all")


def test_a_model_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ModelError, match="could not be loaded"):
        run(TEXTS, tmp_path / "nowhere", tmp_path / "survey")
    assert not (tmp_path / "survey").exists()


def test_an_iterator_is_read_once_and_compared_when_it_goes_on(tmp_path, embedded, contents):
    run(iter(TEXTS), embedded, tmp_path, analyses=[])
    found = contents(tmp_path)
    run(iter(TEXTS), embedded, tmp_path, analyses=[])
    assert contents(tmp_path) == found
    with pytest.raises(FileError, match="holds another survey: the texts differ"):
        run(iter([*TEXTS[1:], TEXTS[0]]), embedded, tmp_path, analyses=[])
