"""Surveys that are killed, meet full disks and bad texts: nothing is lost or halved."""

import errno
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import gattn
from gattn import TopK
from gattn.errors import CaptureError, FileError, ModelError
from gattn.surveys import capture, parts, queue, running
from gattn.surveys.parts import part_path, parts_in
from gattn.surveys.reading import open_survey
from gattn.surveys.running import survey

TEXTS = [f"The dog number {n} chased the cat. " * (1 + n % 3) for n in range(10)]


def run(texts, model, out, **options):
    options = {"analyses": [], "progress": False} | options
    return survey(texts, model, out=out, **options)


@pytest.fixture
def whole(tmp_path, embedded, small_parts, contents):
    """What an undisturbed survey of the texts writes."""
    run(TEXTS, embedded, tmp_path / "whole")
    return contents(tmp_path / "whole")


# Killed


class Victim:
    """A process whose children run surveys, and are killed."""

    def __init__(self, log):
        script = Path(__file__).with_name("victim.py")
        self.log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert self.process.stdout.readline() == "ready\n", log.read_text()

    def run(self, out, **order):
        """Run a survey; give its exit status, -9 where it was killed."""
        self.process.stdin.write(json.dumps({"out": str(out), **order}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    victim = Victim(tmp_path_factory.mktemp("victim") / "log")
    with victim.process:
        yield victim


def check_readable(folder, undisturbed, contents):
    """Each text that is in the survey is in all of its tables, as in an undisturbed one."""
    if not (folder / "manifest.json").exists():
        return
    found = contents(folder)
    known = {f"{first:09d}.parquet" for first in parts_in(folder)}
    expected = {
        name: content
        for name, content in undisturbed.items()
        if Path(name).name in known | {"manifest.json"}
    }
    assert expected.items() <= found.items()
    assert len(open_survey(folder).texts) == sum(
        parts.count_rows(part_path(folder, "texts", first)) for first in parts_in(folder)
    )


def test_a_survey_killed_before_any_of_its_steps_goes_on_as_if_it_had_not_been(
    victim, tmp_path, contents
):
    assert victim.run(tmp_path / "whole", texts=5) == 0
    undisturbed = contents(tmp_path / "whole")
    assert len([name for name in undisturbed if name.startswith("texts")]) == 2
    assert not [name for name in undisturbed if "inputs" in name or name.endswith(".part")]
    folder, step, status = tmp_path / "killed", 0, -9
    while status == -9:
        shutil.rmtree(folder, ignore_errors=True)
        status = victim.run(folder, texts=5, step=step)
        assert status in (-9, 0)
        check_readable(folder, undisturbed, contents)
        assert victim.run(folder, texts=5) == 0
        assert contents(folder) == undisturbed
        step += 1
    assert step > 2 * len(undisturbed)  # each file is made and renamed


def test_a_survey_killed_at_twenty_random_moments_is_the_same_in_the_end(
    victim, tmp_path, contents
):
    assert victim.run(tmp_path / "whole") == 0
    undisturbed = contents(tmp_path / "whole")
    chance, kills = random.Random(0), 0
    for attempt in range(200):
        folder = tmp_path / f"killed{attempt}"
        while kills < 20 and victim.run(folder, seconds=chance.uniform(0, 0.3)) == -9:
            kills += 1
            check_readable(folder, undisturbed, contents)
        assert victim.run(folder) == 0
        assert contents(folder) == undisturbed
        if kills == 20:
            break
    assert kills == 20


# Stopped


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_survey_that_is_stopped_is_whole_and_goes_on(
    stop, whole, tmp_path, embedded, monkeypatch, contents
):
    call, calls = capture.CaptureGraphs.__call__, []

    def stopping(self, batch):
        calls.append(batch)
        if len(calls) == 3:
            raise stop
        return call(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(capture.CaptureGraphs, "__call__", stopping)
        with pytest.raises(stop):
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
    with pytest.raises(FileError, match="holds 6 of 10 texts, and those left to do are no longer"):
        run(TEXTS, embedded, folder)


def test_a_file_that_is_gone_stops_a_survey_and_harms_nothing(
    whole, tmp_path, embedded, monkeypatch, contents
):
    path, folder = tmp_path / "texts.jsonl", tmp_path / "survey"
    path.write_text("\n".join(map(json.dumps, TEXTS)))
    with monkeypatch.context() as patch:
        patch.setattr(running, "write_part", raiser(OSError(errno.ENOSPC, "No space left")))
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


def raiser(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_file_that_may_not_grow_is_an_error_that_leaves_nothing_halved(
    victim, tmp_path, contents
):
    assert victim.run(tmp_path / "whole", texts=5) == 0
    undisturbed = contents(tmp_path / "whole")
    largest = max(map(len, undisturbed.values()))
    assert victim.run(tmp_path / "full", texts=5, largest=largest - 1) == 1
    said = victim.log.read_text().splitlines()[-1]
    assert said.startswith(f"FileError: {tmp_path / 'full'} cannot be written: ")
    assert "File too large" in said
    assert said.endswith(
        "texts that are in it are whole; make room, and run the same again to go on."
    )
    left = contents(tmp_path / "full")
    assert left.items() <= (undisturbed | {n: left[n] for n in left if "inputs" in n}).items()
    assert victim.run(tmp_path / "full", texts=5) == 0
    assert contents(tmp_path / "full") == undisturbed


@pytest.mark.parametrize("number", range(8))
def test_a_disk_that_is_full_at_any_file_is_an_error_that_leaves_nothing_halved(
    number, whole, tmp_path, embedded, monkeypatch, contents
):
    write, calls = parts.pq.write_table, []

    def full(table, path, **options):
        if isinstance(path, Path):  # the queue writes to open files
            calls.append(path)
        if len(calls) > number:
            path.write_bytes(b"PAR1")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(table, path, **options)

    folder = tmp_path / "full"
    with monkeypatch.context() as patch:
        patch.setattr(parts.pq, "write_table", full)
        done = 4 if number >= 5 else 0
        with pytest.raises(FileError, match=rf"No space left on device\. The {done} texts that"):
            run(TEXTS, embedded, folder)
    names = [name for name in contents(folder) if "inputs" not in name]
    assert sorted(names) == sorted(
        name for name in whole if name == "manifest.json" or (done and "000000000" in name)
    )
    run(TEXTS, embedded, folder)
    assert contents(folder) == whole


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, embedded):
    file = tmp_path / "file"
    file.write_text("mine")
    for folder in (file, file / "survey", Path("/proc/survey")):
        with pytest.raises(FileError, match=f"^{folder} cannot be written: "):
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
    with pytest.raises(FileError, match=r"mine\.parquet is no part of a survey: move it elsewhere"):
        run(TEXTS, embedded, folder)


def test_of_two_runs_on_one_folder_the_second_is_refused(whole, tmp_path, embedded, contents):
    with (
        FileLock(tmp_path / "whole" / ".lock"),
        pytest.raises(FileError, match="is being written by another process"),
    ):
        run(TEXTS, embedded, tmp_path / "whole")
    assert contents(tmp_path / "whole") == whole


def test_a_fault_of_the_writer_ends_the_run_with_the_lock_free(
    whole, tmp_path, embedded, monkeypatch, contents
):
    calls = []
    call = capture.CaptureGraphs.__call__
    with monkeypatch.context() as patch:
        patch.setattr(running, "write_part", raiser(RuntimeError("broken")))
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
    for name in ("limit is None there and 20 here", "scores is False there", "inputs is "):
        assert name in said
    assert "model is" not in said
    assert contents(folder) == whole


def test_other_weights_and_other_tokenizers_are_other_surveys(whole, tmp_path, monkeypatch):
    model, tokenizer = gattn.load_model()
    monkeypatch.setattr("gattn.surveys.manifest.find_tokenizer", lambda _: tokenizer)
    tokenizer("called before", truncation=True, max_length=2)
    run(TEXTS, model, tmp_path / "whole")
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1
    with pytest.raises(FileError, match="holds another survey: revision is "):
        run(TEXTS, model, tmp_path / "whole")
    model, tokenizer = gattn.load_model()
    tokenizer.add_tokens(["chased"])
    with pytest.raises(FileError, match="holds another survey: tokenizer is 'sha256:"):
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
    with pytest.raises(FileError, match="holds another survey: revision is "):
        run(TEXTS, tmp_path / "model", tmp_path / "survey")


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


# Failing texts


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
        13: "the model knows the tokens 0",
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
    with pytest.raises(CaptureError, match=r"None of 8 texts .* The other 32 are left to do"):
        run(TEXTS * 4, embedded, tmp_path / "survey")
    assert FileLock(tmp_path / "survey" / ".lock").acquire(timeout=0)


def test_a_model_without_a_tokenizer_ends_the_survey(tmp_path, tiny):
    with pytest.raises(ModelError, match="A text needs a tokenizer"):
        run(TEXTS, tiny("llama"), tmp_path / "survey")
    assert queue.parts(tmp_path / "survey") == [0]
