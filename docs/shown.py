"""The site runs getting started and the guide, and shows what their blocks print and draw."""

import ast
import re
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from concept_pictures import STYLE
from matplotlib.figure import Figure

from gattn.drawing.many_heads.notebook import said_in

PAGES = ("start", "guide")
FOLDER = Path(__file__).with_name("shown")
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(\n```text\n(?P<text>.*?)^```\n)?(?P<picture>\n!\[[^\n]*\n)?",
    re.M | re.S,
)
"""A block, what it prints, and a picture: on the site, all that the block draws takes its place."""


def run_block(code: str, names: dict[str, Any]) -> tuple[str, list[Figure]]:
    """Run a block, and return what it prints and draws."""
    figures: list[Figure] = []
    with redirect_stdout(StringIO()) as printed:
        for statement in ast.parse(code).body:
            if isinstance(statement, ast.Expr):
                expression = ast.Expression(statement.value)
                value = eval(compile(expression, "<page>", "eval"), names)
            else:
                value = None
                exec(compile(ast.Module([statement], []), "<page>", "exec"), names)
            found = value if isinstance(value, Figure) else getattr(value, "figure", None)
            if isinstance(found, Figure) and found not in figures:
                figures.append(found)
    return "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines()), figures


def described(figure: Figure) -> str:
    """Say what a figure shows, as the text of a picture in Markdown."""
    said = shorten(said_in(figure) or "What the code above draws", 300)
    return re.sub(r"([\\\[\]*_`<>$])", r"\\\1", said)


def _show(app: Any, name: str, source: list[str]) -> None:
    if name not in PAGES:
        return
    from sphinx.util.logging import getLogger

    FOLDER.mkdir(exist_ok=True)
    names: dict[str, Any] = {}
    numbers = iter(range(1000))

    def shown(block: re.Match[str]) -> str:
        printed, figures = run_block(block["code"], names)
        if printed != (block["text"] or ""):
            message = "%s: a block prints something else than the page shows:\n%s"
            getLogger(__name__).warning(message, name, printed)
        parts = [
            f"```python\n{block['code']}```\n",
            f"\n```text\n{printed}```\n" if printed else "",
        ]
        for figure in figures:
            path = FOLDER / f"{name}_{next(numbers)}.svg"
            figure.savefig(path, bbox_inches="tight", pad_inches=0.04, metadata={"Date": None})
            parts.append(f"\n![{described(figure)}]({FOLDER.name}/{path.name})\n")
        plt.close("all")
        return "".join(parts if figures else [*parts, block["picture"] or ""])

    style = mpl.rcParamsDefault | STYLE | {"backend": "agg"}
    with TemporaryDirectory() as folder, chdir(folder), mpl.rc_context(style):
        source[0] = BLOCK.sub(shown, source[0])


def setup(app: Any) -> dict[str, bool]:
    """Run the pages as they are read."""
    app.connect("source-read", _show)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
