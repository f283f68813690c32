"""Draws the pictures of `paper` at their size, to look at.

python contact_sheet.py FOLDER [light|dark|grey] [WORD IN A NAME ...]
"""

import io
import sys
from functools import partial
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
sys.path.insert(0, str(Path(__file__).parents[1]))  # where pytest finds what tests share
import paper
from meeting import problems
from PIL import Image, ImageDraw

import gattn

DPI = 150
NAMES = 40
LOOKS = ("light", "dark", "grey")


def shown(figure, look):
    said = problems(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=DPI, format="png")
    image = Image.open(buffer).convert("L" if look == "grey" else "RGB")
    return image.convert("RGB"), said


def sheet_of(pictures, columns):
    """Put pictures with their names side by side, in red where texts meet."""
    wide = max(image.width for _, image, _ in pictures) + 10
    high = max(image.height for _, image, _ in pictures) + NAMES
    rows = -(-len(pictures) // columns)
    whole = Image.new("RGB", (columns * wide, rows * high), "#dddddd")
    pen = ImageDraw.Draw(whole)
    for at, (name, image, said) in enumerate(pictures):
        x, y = at % columns * wide, at // columns * high
        whole.paste(image, (x + 5, y + NAMES))
        pen.text((x + 5, y + 4), name, fill="black")
        pen.text((x + 5, y + 18), "; ".join(said)[:110], fill="red")
    return whole


def all_pictures():
    """Yield each picture's sheet and name, and how it is drawn on a figure."""
    for size in (paper.COLUMN, paper.LOW):
        for layout in (None, "constrained"):
            for name in paper.PICTURES:
                draw = partial(paper.one, name, size, layout)
                yield f"{size[1]}_{layout or 'none'}", name, draw
    for names in paper.PANELS:
        for layout in (None, "constrained"):
            draw = partial(paper.panels, names, paper.WIDE, layout)
            yield f"panels_{layout or 'none'}", " | ".join(names), draw
    for size in (paper.COLUMN, paper.WIDE):
        for name in paper.SHEETS:
            yield f"heads_{size[0]}", name, partial(paper.sheet, name, size)


def main(folder, look="light", *words):
    folder = Path(folder)
    folder.mkdir(exist_ok=True, parents=True)
    style = gattn.style("dark") if look == "dark" else {}
    sheets = {}
    with mpl.rc_context({**style, **paper.FONT}):
        for kind, name, draw in all_pictures():
            if words and not any(word in f"{kind} {name}" for word in words):
                continue
            try:
                image, said = shown(draw(), look)
            except Exception as error:
                print(f"{name} {kind}: {type(error).__name__}: {error}")
                continue
            sheets.setdefault(kind, []).append((name, image, said))
            if said:
                print(kind, name, said[:3])
    for kind, found in sheets.items():
        columns = 2 if found[0][1].width > 600 else 3
        for n in range(0, len(found), 12):
            sheet_of(found[n : n + 12], columns).save(folder / f"{look}_{kind}_{n // 12}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
