"""Damaged files: read for what they were, or refused, within seconds and little memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mutations
import pytest

from gattn.errors import FileError
from gattn.files import load

FORMATS = list(mutations.formats())
FEW, PER_FORMAT = 10, 1000
MEGABYTES = 1024


@pytest.mark.parametrize("name", FORMATS)
def test_a_few_damaged_files(name, tmp_path):
    found = mutations.run(name, FEW, tmp_path)
    assert sum(found.values()) - found["slowest"] == FEW


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_thousand_damaged_files(name):
    """In a process of its own, which may crash."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    said = subprocess.run(
        [sys.executable, "-X", "faulthandler", mutations.__file__, name, str(PER_FORMAT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert said.returncode == 0, said.stderr[-3000:]
    found = json.loads(said.stdout.splitlines()[-1])
    print(name, found)
    assert found.get("same", 0) < PER_FORMAT / 2, "most of the damage is damage"
    assert found["megabytes"] < MEGABYTES


@pytest.mark.parametrize("suffix", [".gexf", ".dot", ".gv", ".csv", ".html"])
def test_exports_are_never_read(suffix, tmp_path):
    path = tmp_path / f"head{suffix}"
    path.write_bytes(b"anything")
    with pytest.raises(FileError, match="cannot be loaded"):
        load(path)
