"""Draw the pictures in docs/pictures: `python docs/draw_pictures.py`."""

import os
import re
import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt
import shown

import gattn

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
GALLERY = ROOT / "docs" / "drawing" / "gallery.md"
CARD = re.compile(
    r":img-top: \.\./pictures/(gallery/\w+\.png)\n:img-alt: [^\n]+\n\n[^\n]*: `([^`]+)`\n"
)
"""A picture of the gallery, and the line that draws it."""
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
            "overlay": trace.draw_overlay(heads="1.1,2.0"),
        }
        for name, ax in drawn.items():
            ax.figure.savefig(FOLDER / f"{name}.png", dpi=110, bbox_inches="tight")
        draw_styles(trace[2, 0])
        draw_gallery()
        os.chdir(ROOT)


def draw_styles(head: Any) -> None:
    """Draw one head in each of gattn's styles."""
    for name, size in {"paper": (3.3, 2.2), "talk": (6.6, 4.4), "dark": (4.4, 2.9)}.items():
        with gattn.style(name):
            figure = head.draw("arcs", figsize=size).figure
            figure.savefig(FOLDER / f"style_{name}.png", dpi=660 / size[0])
        plt.close("all")


def draw_gallery() -> None:
    """Draw the pictures of the gallery, each by its own line."""
    page, names = GALLERY.read_text(encoding="utf-8"), {}
    shown.run_block(next(shown.BLOCK.finditer(page))["code"], names)
    (FOLDER / "gallery").mkdir(exist_ok=True)
    for path, code in CARD.findall(page):
        drawn = eval(code, names)
        figure = getattr(drawn, "figure", drawn)
        figure.savefig(FOLDER / path, dpi=80, bbox_inches="tight")
        plt.close("all")


def shared_subspace() -> Any:
    """Find what its page finds."""
    names: dict[str, Any] = {}
    page = (ROOT / "docs/analyses/subspaces.md").read_text(encoding="utf-8")
    first = next(shown.BLOCK.finditer(page))
    shown.run_block(first["code"], names)
    return names["found"]


if __name__ == "__main__":
    main()
