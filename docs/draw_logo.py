"""Draw the logo, which is the favicon, too: `python docs/draw_logo.py`.

Four tokens, and what the last one and the third read: arcs as wide as attention.
"""

from pathlib import Path

PATH = Path(__file__).with_name("_static") / "logo.svg"
TOKENS = (7, 25, 43, 61)
BASE = 50
ARCS = {(3, 1): ("#2471b1", 6.0), (3, 0): ("#79c6bb", 3.0), (2, 1): ("#41a2c4", 4.0)}
"""Query and key, with colour and width: the colours of attention on a light background."""
QUERY, KEY = "#e69f00", "#2471b1"


def arc(query: int, key: int, colour: str, width: float) -> str:
    """Draw an edge as half a circle from key to query."""
    left, right = TOKENS[key], TOKENS[query]
    radius = (right - left) / 2
    return (
        f'<path d="M{left} {BASE}A{radius} {radius * 0.8:.1f} 0 0 1 {right} {BASE}" '
        f'fill="none" stroke="{colour}" stroke-width="{width}"/>'
    )


def logo() -> str:
    """Draw the arcs, and the tokens over them."""
    arcs = [arc(*ends, *style) for ends, style in sorted(ARCS.items(), key=lambda one: one[1][1])]
    dots = [
        f'<circle cx="{x}" cy="{BASE}" r="6" fill="{QUERY if x == TOKENS[-1] else KEY}"/>'
        for x in TOKENS
    ]
    parts = "\n".join([*arcs, *dots])
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 68 68" role="img">
<title>gattn: tokens, and arcs from those that one reads</title>
{parts}
</svg>
"""


if __name__ == "__main__":
    PATH.write_text(logo(), encoding="utf-8")
