"""Surveys that are killed at any moment, or meet a full disk: they go on as if nothing had been."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gattn.surveys.ask.reading import open_survey
from gattn.surveys.store import parts
from gattn.surveys.store.parts import part_path, parts_in


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
        "texts in it are complete; make room, then run the same survey again to resume."
    )
    left = contents(tmp_path / "full")
    assert left.items() <= (undisturbed | {n: left[n] for n in left if "inputs" in n}).items()
    assert victim.run(tmp_path / "full", texts=5) == 0
    assert contents(tmp_path / "full") == undisturbed


@pytest.fixture
def small_disk(tmp_path):
    """A disk with room for little; only root can make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=240k", "tmpfs", str(folder)]
    if os.name != "posix" or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("No disk can be mounted here.")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_survey_on_a_full_disk_goes_on_once_there_is_room(victim, small_disk, tmp_path, contents):
    assert victim.run(tmp_path / "whole") == 0
    undisturbed = contents(tmp_path / "whole")
    assert victim.run(small_disk / "survey") == 1
    assert "No space left on device" in victim.log.read_text().splitlines()[-1]
    assert 0 < len(parts_in(small_disk / "survey")) < 20
    assert not list(small_disk.rglob("*.part"))
    check_readable(small_disk / "survey", undisturbed, contents)
    subprocess.run(["mount", "-o", "remount,size=9m", str(small_disk)], check=True)
    assert victim.run(small_disk / "survey") == 0
    assert contents(small_disk / "survey") == undisturbed
