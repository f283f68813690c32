"""Names for readers of screens, where Sphinx, its theme and its gallery leave parts without one."""

import re
from pathlib import Path
from typing import Any

TOGGLE = re.compile(r"(<a [^>]*>)([^<]*)(</a><details[^>]*>)<summary>")
"""A page in the sidebar, and what opens the list of those below it."""
THUMBNAIL = re.compile(r"<a (class=\"[^\"]*\" href=\"[^\"]*\")><span class=\"doc\">([^<]*)</span>")
"""A link to a tutorial, whose text a thumbnail hides."""
SEARCH = re.compile(r"(<button [^>]*search-button-field[^>]*?) aria-label=\"Search\"")
"""A button whose label leaves out what stands on it, but on phones, where it is all there is."""
LINES = re.compile(r"<dl>\n((?:<dd>(?:(?!</?d[dlt]\b).)*</dd>\n)+)</dl>")
"""The lines of a long signature: a list of definitions without terms."""
EMPTY = '<th class="head"><p></p></th>'


def named(html: str) -> str:
    """Give the parts of a page names."""
    html = TOGGLE.sub(r'\1\2\3<summary aria-label="pages below \2">', html)
    html = THUMBNAIL.sub(r'<a aria-label="\2" \1><span class="doc">\2</span>', html)
    html = LINES.sub(_lines, SEARCH.sub(r'\1 aria-label="Search Ctrl+K"', html))
    return html.replace(EMPTY, '<td class="head"></td>')


def _lines(found: re.Match[str]) -> str:
    lines = found[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")
    return f'<span class="sig-lines">\n{lines}</span>'


def _name(app: Any, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        for path in Path(app.outdir).rglob("*.html"):
            if "_static" not in path.relative_to(app.outdir).parts:
                text = path.read_text(encoding="utf-8")
                if (better := named(text)) != text:
                    path.write_text(better, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Name them when all pages are written."""
    app.connect("build-finished", _name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
