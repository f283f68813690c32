"""Surveys on a real Ray cluster, which these tests start on this machine."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gattn
from gattn.analysis import head_table
from gattn.errors import CaptureError, DependencyError, ModelError, SelectionError
from gattn.surveys.inputs.inputs import read_inputs
from gattn.surveys.run import ray_pool, ray_worker
from gattn.surveys.run.capture_graphs import CaptureGraphs
from gattn.surveys.run.ray_pool import RayPool
from gattn.surveys.run.ray_worker import CapturePart
from gattn.surveys.run.running import survey
from gattn.surveys.store import queue

ray = pytest.importorskip("ray")
duckdb = pytest.importorskip("duckdb")

_OWN = "DeprecationWarning:ray.data.context"
pytestmark = [
    pytest.mark.ray,
    # Ray Data warns of settings of its own.
    pytest.mark.filterwarnings(f"ignore::{_OWN}"),
]
TEXTS = [f"The river tall green lamp {n} river tall green" for n in range(30)] + ["", "dog\0'\n"]


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(queue, "MOST_TEXTS", 4)


def run(folder: Path, texts=TEXTS, **options):
    return survey(texts, out=folder, progress=False, **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def workers() -> list[psutil.Process]:
    """The pool's processes, of this test's cluster alone."""
    own = psutil.Process().children(recursive=True)
    return [process for process in own if name_of(process).startswith("ray::MapWorker")]


def name_of(process: psutil.Process) -> str:
    try:
        return process.cmdline()[0]
    except (psutil.Error, IndexError):
        return ""


def wait_until(is_so, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never came to be so"
        time.sleep(0.02)


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path):
    worker = CapturePart(tmp_path / "elsewhere", {"model": None}, 0, None)
    (answer,) = worker({"first": [0]})["answer"]
    assert json.loads(answer)["error"] == "FileError"
    assert f"finds no survey in {tmp_path}/elsewhere: choose" in json.loads(answer)["message"]


def test_a_fault_of_a_worker_ends_the_run_with_its_traceback(tmp_path, monkeypatch):
    def broken(folder, first):
        raise ZeroDivisionError("never")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(ray_worker, "read_manifest", lambda folder: {})
    monkeypatch.setattr(queue, "read", broken)
    (answer,) = CapturePart(tmp_path, {"model": None}, 0, None)({"first": [0]})["answer"]
    with pytest.raises(CaptureError, match=r"^A worker raised ZeroDivisionError: never") as raised:
        ray_pool._done(json.loads(answer))
    assert "in broken" in raised.value.__notes__[0]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_an_error_of_a_worker_is_raised_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(CapturePart, "_begin", lambda *_: None)
    monkeypatch.setattr(ray_worker, "read_manifest", lambda folder: {})
    queue.fill(tmp_path, read_inputs(TEXTS))
    worker = CapturePart(tmp_path, {"model": None, "layers": [17]}, 1, None)
    (answer,) = worker({"first": [4]})["answer"]
    with pytest.raises(SelectionError, match=r"^No layer 17; the model has layers 0 \.\. 3\.$"):
        ray_pool._done(json.loads(answer))


def test_what_workers_cannot_be_sent_is_refused_before_anything_begins(tmp_path):
    model, _ = gattn.load_model()
    with pytest.raises(ModelError, match=r"this one is in memory\. Pass its name"):
        run(tmp_path / "out", model=model, ray=RayPool())
    lock = Lock()
    with pytest.raises(CaptureError, match=r"analyses cannot be sent to Ray's workers: .*lock"):
        run(tmp_path / "out", analyses=[lambda trace: lock], ray=RayPool())
    assert not (tmp_path / "out").exists()


def test_without_ray_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(DependencyError, match=r"pip install 'gattn\[ray\]'"):
        run(tmp_path / "out", ray=RayPool())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"num_gpus": -1}, {"num_gpus": 1.5}])
def test_pools_that_cannot_be(wrong):
    with pytest.raises(CaptureError, match="Expected"):
        RayPool(**wrong)


def test_a_lost_worker_changes_no_byte_of_the_dataset(cluster, tmp_path):
    killed = []

    def kill_one():
        wait_until(lambda: len(list((tmp_path / "ray/texts").glob("*.parquet"))) > 1)
        killed.append(workers()[0])
        killed[0].kill()

    def slow(trace):
        time.sleep(0.05)
        return head_table(trace)

    slow.__module__, slow.__qualname__ = "tests", "slow"
    killer = Thread(target=kill_one)
    killer.start()
    made = run(tmp_path / "ray", analyses=[slow], ray=RayPool(workers=2))
    killer.join()
    assert not killed[0].is_running()
    run(tmp_path / "here", analyses=[slow])
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")
    assert len(contents(tmp_path / "ray")) == 8 * 5 + 1 + 1  # parts, failures, the manifest
    assert (len(made.texts), len(made.failures)) == (31, 1)
    assert queue.parts(tmp_path / "ray") == []
    assert ray.is_initialized()


def test_texts_that_kill_their_workers_again_and_again_are_named(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_pool, "_MOST_TRIES", 2)
    here = os.getpid()

    def deadly(trace):
        if "lamp 6" in trace.text:
            if os.getpid() == here:
                raise KeyboardInterrupt
            os.kill(os.getpid(), 9)
        return head_table(trace)

    # Here parts run in order, so that the first is written; workers may begin with either.
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, TEXTS[:8], analyses=[deadly])
    assert queue.parts(tmp_path) == [4]
    with pytest.raises(CaptureError, match="2 workers were lost on texts 4 to 7, which"):
        run(tmp_path, TEXTS[:8], analyses=[deadly], ray=RayPool(workers=1))
    wait_until(lambda: not workers())
    assert queue.parts(tmp_path) == [4]
    assert (tmp_path / "texts/000000000.parquet").is_file()


def test_more_workers_than_there_is_room_for_are_refused(cluster, tmp_path):
    with pytest.raises(CaptureError, match=r"room for 2 workers .* not for 3: .* has 3 CPUs"):
        run(tmp_path, ray=RayPool(workers=3))
    with pytest.raises(CaptureError, match=r"room for 0 workers .* 0\.5 GPUs each, not for 1"):
        run(tmp_path, ray=RayPool(num_gpus=0.5))
    assert len(queue.parts(tmp_path)) == 8


def test_no_more_than_two_parts_a_worker_are_under_way(cluster, tmp_path):
    log = tmp_path / "log"

    def slow_to_write(trace):
        from gattn.surveys.run import ray_worker

        finish = ray_worker.finish
        if finish.__name__ == "finish":

            def slowly(folder, first, rows):
                with log.open("a") as file:
                    file.write("captured\n")
                for _ in range(600):  # until the next part is captured, if there is one
                    lines = log.read_text().split()
                    captured, written = lines.count("captured"), lines.count("written")
                    if captured == 4 or captured - written == 2:
                        break
                    time.sleep(0.1)
                time.sleep(0.4)
                with log.open("a") as file:
                    file.write("written\n")
                return finish(folder, first, rows)

            ray_worker.finish = slowly
        return head_table(trace)

    run(tmp_path / "out", TEXTS[:16], analyses=[slow_to_write], ray=RayPool(workers=1))
    lines = log.read_text().split()
    waiting = [
        lines[:n].count("captured") - lines[:n].count("written") for n in range(len(lines) + 1)
    ]
    assert lines.count("written") == 4
    assert max(waiting) == 2
    assert waiting[-1] == 0


def test_capture_graphs_in_a_pipeline_of_ones_own(cluster, tmp_path):
    texts = ["The dog chased the cat", None, "The cat", ""]
    ids = pa.array([None, [5, 6, 7], None, None], pa.list_(pa.int64()))
    columns = {"text_id": [7, 8, 9, 10], "text": texts, "input_ids": ids, "year": [1, None, 3, 4]}
    pq.write_table(pa.table(columns), tmp_path / "texts.parquet")
    source = ray.data.read_parquet(str(tmp_path / "texts.parquet")).materialize()
    source.context.enable_progress_bars = False
    source.map_batches(
        gattn.CaptureGraphs,
        fn_constructor_kwargs={"keep": gattn.TopK(2)},
        batch_size=16,
        compute=ray.data.ActorPoolStrategy(size=1),
    ).write_parquet(str(tmp_path / "out"))
    capture = CaptureGraphs(keep=gattn.TopK(2))
    found = pq.read_table(tmp_path / "out").sort_by("text_id").drop(["metadata"])
    for kind in ("numpy", "pandas", "pyarrow"):
        (batch,) = source.iter_batches(batch_size=16, batch_format=kind)
        rows = capture(batch).sort_by("text_id").select(found.column_names)
        assert rows.to_pylist() == found.to_pylist()

    rows = f"read_parquet('{tmp_path}/out/*.parquet')"
    known = duckdb.sql(f"SELECT reason IS NULL, num_tokens FROM {rows} ORDER BY text_id").fetchall()
    alone = [gattn.capture(texts[0]), gattn.capture(texts[2])]
    sizes = [len(trace.tokens) for trace in alone]
    assert known == [(True, sizes[0]), (True, 3), (True, sizes[1]), (False, None)]
    edges = duckdb.sql(
        f"SELECT count(*) FROM (SELECT unnest(edges) FROM {rows} WHERE text_id = 9)"
    ).fetchall()
    kept = gattn.capture(texts[2], keep=gattn.TopK(2))
    assert edges == [(sum(head.graph.num_edges for head in kept.only_stack.values()),)]


SCRIPT = """
import os, sys, time
import gattn
from gattn.surveys.store import queue
from gattn.surveys.run.ray_pool import RayPool
from gattn.surveys.run.running import survey

queue.MOST_TEXTS = 4
pause = float(sys.argv[2])

def analysis(trace):
    time.sleep(pause)
    return gattn.analysis.head_table(trace)

analysis.__module__ = analysis.__qualname__ = "analysis"
texts = [f"The river tall green lamp {n} river tall green" for n in range(16)]
pool = RayPool(*sys.argv[3:], workers=1)
survey(texts, out=sys.argv[1], analyses=[analysis], ray=pool, progress=False)
import ray
assert not ray.is_initialized()
"""


def start(tmp_path: Path, pause: float, *address: str) -> subprocess.Popen:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-W", "error", "-W", f"ignore::{_OWN}", str(script)]
    return subprocess.Popen(
        [*command, str(tmp_path / "out"), str(pause), *address],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_a_cluster_goes_with_a_run_that_is_killed_and_another_one_goes_on(cluster, tmp_path):
    parts = tmp_path / "out" / "texts"
    killed = start(tmp_path, 0.2)
    wait_until(lambda: len(list(parts.glob("*.parquet"))) > 0)
    rays = psutil.Process(killed.pid).children(recursive=True)
    assert any(process.name() == "raylet" for process in rays)
    killed.kill()
    killed.communicate()
    left = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}  # by Ray, to themselves
    wait_until(lambda: {name_of(one) for one in rays if one.is_running()} <= left | {""})
    for agent in rays:
        with suppress(psutil.NoSuchProcess):
            agent.kill()
    assert 0 < len(queue.parts(tmp_path / "out")) < 4

    again = start(tmp_path, 0, ray.get_runtime_context().gcs_address)
    said, _ = again.communicate(timeout=600)
    assert (said, again.returncode) == (b"", 0)
    assert sorted(int(path.stem) for path in parts.iterdir()) == [0, 4, 8, 12]
    assert queue.parts(tmp_path / "out") == []
