"""The notebooks of the tutorials, for Colab too: what they have that the scripts do not."""

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

ROOT = Path(__file__).parents[1]
SAVED = re.compile(r"""savefig\("([^"]+)\"""")
FILES = {"plot_gaussian_attention": "training/embedded/heldout.txt"}
"""What an example reads of the repository: its notebook brings it along."""


def first_cell(source: str) -> str:
    """Return what the notebook of a tutorial runs first, such as in Colab."""
    return f"""# gattn, where it is not installed yet, as in Colab
import importlib.util
import sys

if importlib.util.find_spec("gattn") is None:
    %pip install -q "{source}"

from IPython.display import Image, display

%matplotlib agg
sys.argv = ["examples/tutorial.py"]  # with the options that the script has by default"""


def described(picture: str, said: Mapping[str, str]) -> str:
    """Describe a saved picture in words."""
    return shorten(said.get(picture) or Path(picture).stem.replace("_", " "), 300)


def finish(notebook: dict[str, Any], name: str, said: Mapping[str, str]) -> None:
    """Let cells show the pictures that they save, and bring along the file that they read.

    `said` has what pictures say, by the name of the file.
    """
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        code = "".join(cell["source"])
        for picture in SAVED.findall(code):
            words = json.dumps(described(picture, said), ensure_ascii=False)
            code += f'\ndisplay(Image("{picture}", alt={words}))'
        cell["source"] = [code]
    if name in FILES:
        path = FILES[name]
        packed = b64encode(zlib.compress((ROOT / path).read_bytes(), 9)).decode()
        cells[0]["source"][0] += f"""

# {path}, which this tutorial reads
import base64
import pathlib
import zlib

path = pathlib.Path("{path}")
path.parent.mkdir(parents=True, exist_ok=True)
path.write_bytes(zlib.decompress(base64.b64decode("{packed}")))"""
