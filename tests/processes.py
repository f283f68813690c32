"""Commands in processes of their own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def printed_by(module: str, *arguments: object) -> str:
    """What `python -m module` prints, run where the repository is."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
