"""Surveys that are stopped, cannot write, or meet what is not theirs: nothing is lost or halved."""

import errno
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from runs import TEXTS, raiser, run, stopped

import gattn
from gattn import TopK
from gattn.errors import FileError
from gattn.surveys.run import capture_graphs as capture
from gattn.surveys.run import local, running
from gattn.surveys.store import parts, queue
from gattn.surveys.store.parts import parts_in
from gattn.surveys.store.text_rows import tables_of

# Stopped


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_survey_that_is_stopped_is_whole_and_goes_on(stop, whole, tmp_path, embedded, contents):
    with stopped(stop), pytest.raises(stop):
        run(TEXTS, embedded, tmp_path / "stopped")
    assert parts_in(tmp_path / "stopped") == [0, 4]
    assert queue.parts(tmp_path / "stopped") == [8]
    assert len(run(TEXTS, embedded, tmp_path / "stopped")) == len(TEXTS)
    assert contents(tmp_path / "stopped") == whole


def test_a_finished_part_that_is_still_on_the_queue_is_taken_off(
    whole, tmp_path, embedded, monkeypatch, contents
):
    monkeypatch.setattr(running, "CaptureGraphs", raiser(AssertionError("There is nothing to do.")))
    folder = tmp_path / "whole"
    queue.fill(tmp_path / "again", running.read_inputs(TEXTS))
    (tmp_path / "again" / "inputs" / "000000004.parquet").rename(
        folder / "inputs" / "000000004.parquet"
    )
    run(TEXTS, embedded, folder)
    assert contents(folder) == whole


def test_a_queue_that_was_removed_is_missed(whole, tmp_path, embedded):
    folder = tmp_path / "whole"
    shutil.rmtree(folder / "inputs")
    run(TEXTS, embedded, folder)
    (folder / "texts" / "000000004.parquet").unlink()
    with pytest.raises(FileError, match="holds 6 of 10 texts, and the others are no longer"):
        run(TEXTS, embedded, folder)


def test_texts_that_were_lost_are_missed_once_the_others_are_done(
    whole, tmp_path, embedded, small_parts
):
    folder = tmp_path / "whole"
    queue.fill(tmp_path / "again", running.read_inputs(TEXTS))
    (tmp_path / "again/inputs/000000008.parquet").rename(folder / "inputs/000000008.parquet")
    for first in (4, 8):
        (folder / f"texts/{first:09d}.parquet").unlink()
    with pytest.raises(FileError, match="holds 6 of 10 texts, and the others are no longer"):
        run(TEXTS, embedded, folder)
    assert parts_in(folder) == [0, 8]


def test_a_part_that_is_written_again_has_no_failures_of_an_earlier_try(tmp_path, embedded):
    capturing = capture.CaptureGraphs(embedded, analyses=[])
    for texts in (["", ""], ["The dog", ""], ["The dog", "The cat"]):
        tables = tables_of(capturing({"text_id": [0, 1], "text": texts}))
        parts.write_part(tmp_path, 0, tables)
        assert {path.parent.name for path in tmp_path.rglob("*.parquet")} == set(tables)
        (tmp_path / "texts" / "000000000.parquet").unlink()


def test_a_file_that_is_gone_stops_a_survey_and_harms_nothing(
    whole, tmp_path, embedded, monkeypatch, contents
):
    path, folder = tmp_path / "texts.jsonl", tmp_path / "survey"
    path.write_text("\n".join(map(json.dumps, TEXTS)))
    with monkeypatch.context() as patch:
        patch.setattr(local, "write_part", raiser(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(FileError):
            run(path, embedded, folder)
    before = contents(folder)
    path.rename(tmp_path / "gone.jsonl")
    with pytest.raises(FileError, match=r"texts\.jsonl: expected a file or folder"):
        run(path, embedded, folder)
    assert contents(folder) == before
    (tmp_path / "gone.jsonl").rename(path)
    run(path, embedded, folder)
    found = contents(folder)
    assert {**found, "manifest.json": b""} == {**whole, "manifest.json": b""}


# Disks and folders


@pytest.mark.slow
@pytest.mark.parametrize("number", range(8))
def test_a_disk_that_is_full_at_any_file_is_an_error_that_leaves_nothing_halved(
    number, whole, tmp_path, embedded, monkeypatch, contents
):
    write, calls = parts.write_file, []

    def full(table, path, **options):
        calls.append(path)
        if len(calls) > number:
            path.write_bytes(b"PAR1")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(table, path, **options)

    folder = tmp_path / "full"
    with monkeypatch.context() as patch:
        patch.setattr(parts, "write_file", full)
        done = 4 if number >= 5 else 0
        with pytest.raises(FileError, match=rf"No space left on device\. The {done} texts in it"):
            run(TEXTS, embedded, folder)
    names = [name for name in contents(folder) if "inputs" not in name]
    assert sorted(names) == sorted(
        name for name in whole if name == "manifest.json" or (done and "000000000" in name)
    )
    run(TEXTS, embedded, folder)
    assert contents(folder) == whole


@pytest.mark.parametrize(
    ("name", "place"), [("write_manifest", "one"), ("remove_leftovers", "whole")]
)
def test_a_folder_that_can_no_longer_be_written_is_an_error(
    name, place, whole, tmp_path, embedded, monkeypatch, contents
):
    with monkeypatch.context() as patch:
        patch.setattr(running, name, raiser(PermissionError(errno.EACCES, "Permission denied")))
        with pytest.raises(FileError, match=r"Permission denied\. The \d+ texts in it are"):
            run(TEXTS, embedded, tmp_path / place)
    run(TEXTS, embedded, tmp_path / place)
    assert contents(tmp_path / place) == whole


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, embedded):
    file = tmp_path / "file"
    file.write_text("mine")
    for folder in (file, file / "survey", Path("/proc/survey")):
        with pytest.raises(FileError, match=f"^{folder} is not writable: "):
            run(TEXTS, embedded, folder)
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["notes.txt", "texts/a.txt", "inputs/texts.jsonl", "inputs/000000000.parquet"]
)
def test_a_folder_with_strangers_is_refused_and_left_as_it_is(name, tmp_path, embedded):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    for _ in range(2):
        with pytest.raises(FileError, match="is neither empty nor a survey: it holds"):
            run(TEXTS, embedded, tmp_path)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


def test_strangers_within_a_survey_are_kept(whole, tmp_path, embedded, contents):
    folder = tmp_path / "whole"
    mine = {
        "notes.md": b"1",
        "edges/notes.md": b"2",
        "texts/.hidden": b"3",
        "edges/a.parquet": b"4",
    }
    for name, content in mine.items():
        (folder / name).write_bytes(content)
    (folder / "edges" / "000000005.parquet").write_bytes(b"left over")
    (folder / "heads" / ".gattn-0.part").write_bytes(b"left over")
    run(TEXTS, embedded, folder)
    assert contents(folder) == whole | mine
    (folder / "texts" / "mine.parquet").write_bytes(b"5")
    with pytest.raises(FileError, match=r"mine\.parquet is not part of a survey: move it"):
        run(TEXTS, embedded, folder)


def test_of_two_runs_on_one_folder_the_second_is_refused(whole, tmp_path, embedded, contents):
    with (
        FileLock(tmp_path / "whole" / ".lock"),
        pytest.raises(FileError, match="is in use by another run"),
    ):
        run(TEXTS, embedded, tmp_path / "whole")
    assert contents(tmp_path / "whole") == whole


def test_a_fault_of_the_writer_ends_the_run_with_the_lock_free(
    whole, tmp_path, embedded, monkeypatch, contents
):
    calls = []
    call = capture.CaptureGraphs.__call__
    with monkeypatch.context() as patch:
        patch.setattr(local, "write_part", raiser(RuntimeError("broken")))
        patch.setattr(
            capture.CaptureGraphs,
            "__call__",
            lambda self, batch: calls.append(1) or call(self, batch),
        )
        with pytest.raises(RuntimeError, match="broken"):
            run(TEXTS, embedded, tmp_path / "broken")
    assert len(calls) == 2  # the next part was under way
    run(TEXTS, embedded, tmp_path / "broken")
    assert contents(tmp_path / "broken") == whole


# Other surveys


def test_another_survey_is_refused_with_all_that_differs(whole, tmp_path, embedded, contents):
    folder = tmp_path / "whole"
    with pytest.raises(FileError) as caught:
        run([*TEXTS, "one more"], embedded, folder, keep=TopK(3), layers=[0], limit=20, scores=True)
    said = str(caught.value)
    for name in ("keep is 'Threshold(0.02)' there and 'TopK(3)' here", "layers is None there"):
        assert name in said
    for name in (
        "limit is None there and 20 here",
        "scores is False there",
        "the texts differ",
    ):
        assert name in said
    assert "model is" not in said
    assert contents(folder) == whole


def test_a_survey_of_another_gattn_is_not_gone_on_with(whole, tmp_path, embedded):
    path = tmp_path / "whole" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    for changed, said in (
        ({"gattn": "0.0.1"}, f"gattn is '0.0.1' there and '{gattn.__version__}' here"),
        ({"schema": 99}, "has schema 99, but this gattn reads 1: upgrade gattn"),
    ):
        path.write_text(json.dumps(manifest | changed))
        with pytest.raises(FileError, match=re.escape(said)):
            run(TEXTS, embedded, tmp_path / "whole")
    for damaged in ("", "[]", "{}", "null", whole["manifest.json"].decode()[:-20]):
        path.write_text(damaged)
        with pytest.raises(FileError, match=r"manifest\.json"):
            run(TEXTS, embedded, tmp_path / "whole")


def test_other_weights_and_other_tokenizers_are_other_surveys(whole, tmp_path, monkeypatch):
    model, tokenizer = gattn.load_model()
    monkeypatch.setattr("gattn.surveys.run.settings.find_tokenizer", lambda _: tokenizer)
    tokenizer("called before", truncation=True, max_length=2)
    run(TEXTS, model, tmp_path / "whole")
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1
    with pytest.raises(FileError, match="holds another survey: the model's files"):
        run(TEXTS, model, tmp_path / "whole")
    model, tokenizer = gattn.load_model()
    tokenizer.add_tokens(["chased"])
    with pytest.raises(FileError, match="holds another survey: the tokenizer differs"):
        run(TEXTS, model, tmp_path / "whole")


def test_a_folder_with_other_weights_is_another_model(tmp_path, small_parts):
    model, tokenizer = gattn.load_model()
    for _ in range(2):
        model.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        run(TEXTS, tmp_path / "model", tmp_path / "survey")
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(FileError, match="holds another survey: the model's files"):
        run(TEXTS, tmp_path / "model", tmp_path / "survey")


def _above(threshold, unit=1):
    def share(trace):
        heads = gattn.analysis.head_table(trace)[["entropy"]]
        return (heads > threshold * unit).add_prefix("high_")

    return share


def test_analyses_are_told_apart_by_what_they_do_and_not_by_their_names(whole, tmp_path, embedded):
    folder = tmp_path / "own"
    for _ in range(2):  # each a function of its own
        run(TEXTS, embedded, folder, analyses=[_above(1), lambda trace: _above(2, 2)(trace)[[]]])
    for other in (
        [_above(2), lambda trace: _above(2, 2)(trace)[[]]],
        [_above(1), lambda trace: _above(2, 3)(trace)[[]]],
        [_above(1), lambda trace: _above(2)(trace)[[]]],
        [_above(1), gattn.analysis.head_table],
    ):
        with pytest.raises(FileError, match=r"holds another survey: analyses is \["):
            run(TEXTS, embedded, folder, analyses=other)


def test_edits_are_told_apart_by_their_weights_and_not_by_where_they_lie(whole, tmp_path, embedded):
    def swaps(weight):
        return [gattn.Swap(layer=0, weight=weight)]

    torch.manual_seed(0)
    first, second = gattn.RelativePosition(4, 2), gattn.RelativePosition(4, 2)
    with torch.no_grad():
        next(first.parameters()).normal_()
    for name, one, other in (
        ("table", first, second),
        ("function", lambda q, k, pairs: 0 * (q - k).sum(-1), gattn.Cosine()),
    ):
        folder = tmp_path / name
        run(TEXTS, embedded, folder, edits=swaps(one))
        run(TEXTS, embedded, folder, edits=swaps(one))
        with pytest.raises(FileError, match=r"edits is \['Swap\("):
            run(TEXTS, embedded, folder, edits=swaps(other))
