"""What stands above the panels of a picture of many heads, as long as there is room for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gattn.drawing.canvas.labels import shortened, smallest, widest_of
from gattn.drawing.many_heads.grid import Block
from gattn.drawing.many_heads.sheet import as_inches, line_height
from gattn.names.text import wrapped

_FEWEST = 2.5
"""The room in font sizes below which no name is shortened: it is left out."""
_LITTLE = 0.2
"""By how many font sizes a line may be too long, of the distance between names."""


@dataclass(frozen=True)
class PanelNames:
    """What stands above the panels of a block, by place, in one size; the height in inches.

    Of `count` names `shown` have room, and `whole` for all of them.
    """

    texts: dict[tuple[int, int], str]
    size: float
    height: float
    count: int
    shown: int
    whole: int

    @property
    def widest(self) -> float:
        """The width of the widest line, in font sizes."""
        return widest_of(line for text in self.texts.values() for line in text.split("\n"))

    @classmethod
    def fitting(
        cls, block: Block, room: float, size: float, most: int, measure: Callable[[str], float]
    ) -> PanelNames:
        """Take the fullest names that fit in `most` lines, or else shrink the shortest.

        Where there are lines, the shortest may have one more.
        """
        wide = room / as_inches(1)
        levels = max(len(panel.names) for panel in block.panels.values())
        for level in range(levels):
            most += most > 1 and level == levels - 1 > 0
            texts = {
                place: wrapped(name, wide / size, measure)
                for place, panel in block.panels.items()
                for name in [panel.names[min(level, len(panel.names) - 1)]]
            }
            lengths = (measure(line) for text in texts.values() for line in text.split("\n"))
            widest = max(lengths, default=0.0)
            lines = max(map(_lines, texts.values()))
            if widest * size <= wide and lines <= most:
                break
        else:
            size = max(smallest(), min(size, wide / max(widest, 1e-9)))
        shown = {
            place: _shortest(text, wide / size, most, measure) for place, text in texts.items()
        }
        heights = {place: _lines(text) for place, text in shown.items()}
        count = sum(bool(text) for text in texts.values())
        lost = sum(shown[place] != text for place, text in texts.items())
        height = max(heights.values()) * line_height(size)
        return cls(shown, size, height, count, sum(map(bool, shown.values())), count - lost)


def _lines(text: str) -> int:
    return 1 + text.count("\n") if text else 0


def _shortest(text: str, room: float, most: int, measure: Callable[[str], float]) -> str:
    """Shorten the first lines of a name to some font sizes, but those of which little is left."""
    every = text.split("\n")
    lines = [line for line in every if room >= _FEWEST or measure(line) <= room][:most]
    if lines and len(lines) < len(every):
        lines[-1] = lines[-1].removesuffix(":") if lines[-1].endswith(":") else f"{lines[-1]}…"
    is_wide = any(measure(line) > room + _LITTLE for line in lines)
    return "\n".join(shortened(lines, room + _LITTLE) if is_wide else lines)
