"""Draw the pictures in docs/pictures: `python docs/draw_pictures.py`."""

import os
import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")

import shown

import gattn

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
EXAMPLES = {
    "plot_dog_and_cat": ["all_heads", "induction_head"],
    "plot_cutting_an_induction_head": ["cutting_an_induction_head"],
    "plot_token_graphs": ["token_graphs"],
    "plot_image_attention": ["image"],
}
TEXT = "The river tall green lamp river tall green lamp river tall green"


def main() -> None:
    """Run the examples in an empty folder, and keep some of their pictures."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for example, names in EXAMPLES.items():
            runpy.run_path(str(ROOT / "examples" / f"{example}.py"))
            for name in names:
                shutil.copy(f"{name}.png", FOLDER / f"{name}.png")
        trace = gattn.capture(TEXT)
        circuit = trace.unroll(heads=[(1, 1), (2, 0), (2, 1)]).rollout(query=-1)
        drawn = {
            "routes": gattn.analysis.routes(TEXT, progress=False).draw(paths=3),
            "circuit": gattn.circuit(TEXT, target=" lamp", progress=False).draw(),
            "path_circuit": gattn.circuit(
                TEXT, target=" lamp", units="paths", progress=False
            ).draw(),
            "why": gattn.why(TEXT, layer=2, head=0, query=-1, key=9).draw(),
            "why_paths": gattn.why(
                TEXT, layer=2, head=0, query=-1, key=" lamp", split="1.1"
            ).draw_paths(),
            "layers": circuit.draw(),
            "ribbons": circuit.draw("ribbons"),
            "composition": gattn.compose(progress=False).draw(),
            "subspace": shared_subspace().draw(),
            "text": trace[2, 1].draw_text(),
        }
        for name, ax in drawn.items():
            ax.figure.savefig(FOLDER / f"{name}.png", dpi=110, bbox_inches="tight")
        os.chdir(ROOT)


def shared_subspace() -> Any:
    """Find what its page finds."""
    names: dict[str, Any] = {}
    page = (ROOT / "docs/analyses/subspaces.md").read_text(encoding="utf-8")
    first = next(shown.BLOCK.finditer(page))
    shown.run_block(first["code"], names)
    return names["found"]


if __name__ == "__main__":
    main()
