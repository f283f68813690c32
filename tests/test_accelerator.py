"""gattn on an accelerator, in processes of their own: the pretend one is registered for good."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "accelerator"


@pytest.mark.slow
@pytest.mark.parametrize("file", ["on_itself.py", "on_engines.py", "on_models.py", "on_gpu.py"])
def test_on_an_accelerator(file):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    found = subprocess.run(
        [*command, "-o", "addopts=", "-o", "filterwarnings=", str(FOLDER / file)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=FOLDER.parents[1],
    )
    if found.returncode == 5 and "skipped" in found.stdout:  # such a device cannot be had
        pytest.skip(found.stdout)
    assert not found.returncode, found.stdout[-4000:] + found.stderr[-2000:]
