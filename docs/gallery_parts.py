"""Tells sphinx-gallery the order of the examples, their pictures, and what notebooks have more."""

import shutil
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery import gen_rst
from sphinx_gallery.scrapers import figure_rst
from tutorial_notebooks import described, finish
from tutorial_order import ORDER

from gattn.drawing.many_heads.notebook import said_in


class ToldOrder:
    """Sorts examples by `ORDER`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, name: str) -> int:
        return ORDER.index(Path(name).stem)


# Pictures

SAID: dict[str, str] = {}
"""What the pictures say that examples saved, by the name of the file."""


def _noting(savefig: Any) -> Any:
    """Let figures note what they say when they are saved."""

    def save(figure: Figure, path: Any, *arguments: Any, **options: Any) -> None:
        SAID[str(path)] = said_in(figure)
        savefig(figure, path, *arguments, **options)

    return save


def _saved_pictures(block: object, variables: dict[str, Any], conf: dict[str, Any]) -> str:
    """Move the pictures that an example saved in its folder into the gallery."""
    folder, shown = Path(variables["src_file"]).parent, []
    for export in folder.glob("*.graphml"):
        export.unlink()
    for picture in sorted(folder.glob("*.png"), key=_age):
        place = variables["image_path_iterator"].next()
        shutil.move(picture, place)
        shown.append(figure_rst([place], conf["src_dir"], described(picture.name, SAID)))
    return "".join(shown)


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns


def _get_sg_image_scraper() -> Any:
    return _saved_pictures


# Notebooks


def _finishing(save_notebook: Any) -> Any:
    """Let notebooks be finished before they are saved."""

    def save(notebook: dict[str, Any], path: Path) -> None:
        finish(notebook, path.name.split(".")[0], SAID)
        save_notebook(notebook, path)

    return save


def setup(app: Any) -> None:
    """Take part in what sphinx-gallery has no settings for."""
    Figure.savefig = _noting(Figure.savefig)  # type: ignore[method-assign]
    gen_rst.save_notebook = _finishing(gen_rst.save_notebook)
