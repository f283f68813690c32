"""The page's script, style and markup: for a page of its own, and as a component of other pages.

Needs Python alone, so that the component is also written when a wheel is built.
"""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent

MODULES = (
    "heads/texts.js",
    "heads/state.js",
    "heads/signs.js",
    "heads/directions.js",
    "heads/decoding.js",
    "heads/regrouping.js",
    "heads/readings.js",
    "heads/edges.js",
    "heads/layers.js",
    "heads/search.js",
    "scenes/colours.js",
    "tokens/tints.js",
    "tokens/spans.js",
    "scenes/marks.js",
    "scenes/lines.js",
    "scenes/arcs.js",
    "scenes/columns.js",
    "scenes/matrix.js",
    "scenes/passage.js",
    "scenes/patches.js",
    "scenes/rooms.js",
    "scenes/nodes.js",
    "scenes/layered.js",
    "scenes/grid.js",
    "scenes/frames.js",
    "scenes/drawing.js",
    "circuit/edges.js",
    "circuit/scene.js",
    "why/parts.js",
    "why/bars.js",
    "why/asking.js",
    "page/elements.js",
    "circuit/table.js",
    "why/table.js",
    "tokens/predictions.js",
    "tokens/choosing.js",
    "page/page.js",
    "page/describing.js",
    "page/finding.js",
    "page/numbers.js",
    "page/view.js",
    "page/thumbnails.js",
    "page/controls.js",
    "page/rendering.js",
    "page/saving.js",
    "page/keyboard.js",
    "page/pointer.js",
    "page/start.js",
    "page/alone.js",
)
"""The modules of the page's script, each after those that it imports.

Those in heads and scenes run without a document: a scene is a picture as data,
{width, height, marks, hit}, to be drawn on a canvas or written as SVG. The last one starts a page
that is a file of its own; a component is started by whoever has it.
"""

_IMPORTS = re.compile(r"(?:^import \{[^}]*\} from \"[./a-z]+\";\n)+\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) )", re.MULTILINE)


def asset(name: str) -> str:
    """Read a file of the page."""
    return (_HERE / name).read_text(encoding="utf-8")


@cache
def viewer_script(*, is_alone: bool = True) -> str:
    """Join the modules into one script; they share a scope, so imports and exports go."""
    modules = MODULES if is_alone else MODULES[:-1]
    return "\n".join(_EXPORT.sub("", _IMPORTS.sub("", asset(f"viewer/{one}"))) for one in modules)


def component_files(version: str) -> dict[str, str]:
    """Write the files of the npm package ``gattn-view``: their text by name.

    ``gattn-view.js`` is an ES module, ``gattn-view.classic.js`` the same for pages that are opened
    from a file, where browsers load no modules.
    """
    wrapper = asset("component/wrapper.mjs")
    parts = {
        "STYLE": json.dumps(_within(asset("viewer/viewer.css"))),
        "MARKUP": json.dumps(_Markup.of(asset("viewer/skeleton.html"))),
        "VERSION": json.dumps(version),
        "CHECKS": _EXPORT.sub("", asset("component/checking.mjs")),
        "SCRIPT": viewer_script(is_alone=False),
    }
    for name, text in parts.items():
        wrapper = wrapper.replace(f"/*{name}*/", text)
    package = json.loads(asset("component/package.json")) | {"version": version}
    return {
        "package.json": json.dumps(package, indent=2) + "\n",
        "gattn-view.js": f"{wrapper}\nexport {{ GattnView, mount }};\n",
        "gattn-view.classic.js": (
            f'"use strict";\n(() => {{\n{wrapper}\nglobalThis.gattnView = {{ GattnView, mount }};\n'
            "})();\n"
        ),
        "gattn-view.d.ts": asset("component/gattn-view.d.ts"),
        "README.md": asset("component/README.md"),
    }


def _within(style: str) -> str:
    """Make the style of a document that of a component, whose width is its own."""
    style = style.replace(":root:not(.compact)", ":host(:not(.compact))")
    style = re.sub(r":root(\[[^]]*\])", r":host(\1)", style).replace(":root", ":host")
    style = re.sub(r"(?<![\w-])((?:\.compact|\.single)+) ", r":host(\1) ", style)
    style = re.sub(r"^body \{", "#frame {", style, flags=re.MULTILINE)
    style = re.sub(r"@media \(max-width", "@container (max-width", style)
    for tag, made in _WITHIN.items():
        style = re.sub(rf"(?<![\w.#-]){tag}(?![\w-])", made.replace("div", ""), style)
    return f":host {{ display: block; container-type: inline-size; }}\n{style}"


_WITHIN = {
    "h2": "h3",
    "h1": "h2",
    "header": "div.header",
    "main": "div.main",
    "footer": "div.footer",
    "section": "div.section",
}
"""What parts of a document are in a component, of which a document may have several."""


class _Markup(HTMLParser):
    """Reads markup as nested lists: tag, attributes, children."""

    _EMPTY = ("input",)

    def __init__(self) -> None:
        super().__init__()
        self._open: list[list[Any]] = [["div", {"id": "frame"}, []]]

    @classmethod
    def of(cls, text: str) -> list[Any]:
        """Read markup, without what is there for a document alone."""
        parser = cls()
        parser.feed(re.sub(r'<(main id="still"|a id="skip").*?</(main|a)>\n', "", text, flags=re.S))
        parser.close()
        return parser._open[0]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        made, _, kind = _WITHIN.get(tag, tag).partition(".")
        if kind:
            named["class"] = kind
        if kind == "section":
            named["role"] = "group"
        opened = [made, named, []]
        self._open[-1][2].append(opened)
        if tag not in self._EMPTY:
            self._open.append(opened)

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if data.strip() or data == " ":
            self._open[-1][2].append(data)
