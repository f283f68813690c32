import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[1]


def python_blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md"])
def test_every_block_of_code_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    blocks = python_blocks(ROOT / name)
    assert len(blocks) >= 2
    names = {}
    for block in blocks:
        exec(compile(block, name, "exec"), names)
    plt.close("all")


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md", "docs/design.md"])
def test_every_link_leads_somewhere(name):
    path = ROOT / name
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
