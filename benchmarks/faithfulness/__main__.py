"""The command `python -m benchmarks.faithfulness`."""

import argparse
import json
import os
import platform
import warnings
from math import isnan
from pathlib import Path
from typing import Any

import torch

from benchmarks import faithfulness
from benchmarks.faithfulness import models, page, picture, study, texts

PICTURE = Path("docs/pictures/rankings.svg")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faithfulness",
        description=(faithfulness.__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--models", nargs="+", choices=models.NAMES, default=models.NAMES)
    parser.add_argument("--kinds", nargs="+", choices=tuple(texts.KINDS), default=())
    parser.add_argument("--texts", type=int, default=17, help="texts of each kind")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write what was measured")
    parser.add_argument("--read", type=Path, metavar="PATH", help="read this, and measure nothing")
    parser.add_argument("--markdown", type=Path, metavar="PATH", help="write the page and picture")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if options.read:
        rows = json.loads(options.read.read_text())
    else:
        warnings.simplefilter("ignore")
        rows = []
        for row in study.study(options.models, options.texts, options.kinds):
            rows.append(row)
            if options.json:
                options.json.write_text(_text_of(rows))
    table = study.summed_up(rows)
    print(table.round(2).to_string())
    if options.markdown:
        machine = f"{platform.machine()}, torch {torch.__version__.split('+')[0]}"
        options.markdown.write_text(page.page(table, machine), encoding="utf-8")
        picture.draw(table, PICTURE)


def _text_of(rows: list[dict[str, Any]]) -> str:
    """Write one row a line, four digits each, and null where there is no number."""

    def rounded(value: Any) -> Any:
        if not isinstance(value, float):
            return value
        return None if isnan(value) else float(f"{value:.4g}")

    lines = [json.dumps({name: rounded(x) for name, x in row.items()}) for row in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    main()
