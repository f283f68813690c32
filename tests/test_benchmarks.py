"""The benchmarks' command lists its rows and measures one."""

import json
import subprocess
import sys
from functools import partial

import pytest
import torch
from processes import printed_by

from benchmarks.command import choose
from benchmarks.processes import CpuTime

benchmarks = partial(printed_by, "benchmarks")


@pytest.mark.slow
def test_it_lists_its_rows():
    listed = benchmarks("--list")
    for name in ("fused-causal/256/forward", "random-pair/10000/backward", "graphs-topk/8192"):
        assert name in listed


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_rows_of_a_gpu_say_that_none_is_here(tmp_path):
    path = tmp_path / "results.json"
    printed = benchmarks("--quick", "--rows", "emitted-topk", "flex-window", "--json", path)
    assert printed.count("skipped: it needs a GPU") == 3
    assert "skipped: it needs a GPU" in path.with_suffix(".md").read_text()


@pytest.mark.slow
def test_one_row_from_end_to_end(tmp_path):
    path = tmp_path / "results.json"
    printed = benchmarks("--quick", "--rows", "fused-causal/256/forward", "--json", path)
    (row,) = json.loads(path.read_text())["rows"]
    assert row["name"] == "fused-causal/256/forward"
    assert "failed" not in row
    for side in ("peer", "gattn"):
        assert row["seconds"][side] > 0
        assert row["mib"][side] >= 0
        assert row["faults"][side] >= 0
    assert row["name"] in printed
    assert row["name"] in path.with_suffix(".md").read_text()
    for picture in (path.with_suffix(".svg"), path.with_suffix(".png")):
        assert picture.stat().st_size > 1000


@pytest.mark.slow
def test_of_a_command_only_the_time_is_measured(tmp_path):
    path = tmp_path / "results.json"
    printed = benchmarks("--quick", "--rows", "cli-models", "--json", path)
    (row,) = json.loads(path.read_text())["rows"]
    assert "failed" not in row
    assert min(row["seconds"].values()) > 0
    assert not {"mib", "memory_ratio", "faults"} & set(row)
    assert row["name"] in printed


def test_rows_are_named_by_their_beginning():
    names = ["window/512/forward", "window/512/backward", "small-dot/karate/edges"]
    assert choose(names, []) == set(names)
    assert choose(names, ["window/512/b", "small"]) == {names[1], names[2]}
    assert choose(["memory/100", "memory/1000"], ["memory/100"]) == {"memory/100"}
    with pytest.raises(LookupError, match="Nothing is named smal1, w1"):
        choose(names, ["window", "smal1", "w1"])


def test_what_a_process_starts_is_not_others_work():
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    before = CpuTime.now()
    subprocess.run([sys.executable, "-c", busy], check=True)
    assert CpuTime.now().own - before.own > 0.4  # ticks of 10 ms
