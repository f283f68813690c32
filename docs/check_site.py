"""Check the built site: `python docs/check_site.py docs/_build/html`.

Its pages must not load anything from the network, every link within it must lead somewhere, links,
buttons, summaries, pictures and frames must have a name, and its search must find pages first.
"""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
REMOTE = re.compile(r"^(https?:)?//")

NAMED = {"a", "button", "summary"}
"""What a screen reader calls by the text within, or by its label."""
FOUND = {
    "heatmap": "drawing/all_heads",
    "plot": "drawing",
    "visualize": "drawing",
    "head table": "analyses/heads",
    "cut an edge": "concepts/edits",
    "ablation": "concepts/edits",
    "path patching": "analyses/circuits",
    "graph_attention": "api/generated/gattn.graph_attention",
}
"""The page that a reader who searches for this should find first."""


class Page(HTMLParser):
    """What a page loads, where it links, which anchors it has, and what has no name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded, self.links, self.places = set(), set(), {"", "top"}
        self.nameless: list[str] = []
        self._open: list[tuple[str, str, bool]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.places.add(found.get("id") or "")
        if tag == "a" and found.get("href"):
            self.links.add(found["href"])
        self._note_name(tag, found)
        is_hint = tag == "link" and found.get("rel") in {"next", "prev", "search", "index"}
        if found.get(LOADED.get(tag, "")) and not is_hint:
            self.loaded.add(found[LOADED[tag]])

    def _note_name(self, tag: str, attrs: dict[str, str | None]) -> None:
        label = attrs.get("aria-label") or attrs.get("title") or ""
        if tag in ("img", "iframe"):
            label = label or attrs.get("alt") or ""
            if not label and "alt" not in attrs:
                self.nameless.append(self.get_starttag_text())
            self.handle_data(label)
        elif tag in NAMED and (tag != "a" or attrs.get("href")):
            if tag == "a" and any(opened == "a" for opened, *_ in self._open):
                self.nameless.append(f"{self.get_starttag_text()} within a link")
            self._open.append((tag, self.get_starttag_text(), bool(label.strip())))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self._open = [(tag, text, True) for tag, text, _ in self._open]

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1][0] == tag:
            _, text, is_named = self._open.pop()
            if not is_named:
                self.nameless.append(text)


def remote_parts(root: Path, pages: dict[Path, Page]) -> list[str]:
    """List what a page or a style would load from elsewhere."""
    found = [
        f"{path}: {one}" for path, page in pages.items() for one in page.loaded if REMOTE.match(one)
    ]
    for style in root.rglob("*.css"):
        targets = re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")\s]+)", style.read_text("utf-8"))
        found += [f"{style}: {one}" for one in targets if REMOTE.match(one)]
    return found


def broken_links(pages: dict[Path, Page]) -> list[str]:
    """List links to missing pages and anchors."""
    found = []
    for path, page in pages.items():
        for target in page.links | page.loaded:
            if REMOTE.match(target) or target.startswith(("mailto:", "data:")):
                continue
            parts = urlsplit(target)
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            is_missing = not file.exists() or (file in pages and place not in pages[file].places)
            if is_missing:
                found.append(f"{path}: {target}")
    return found


def missed_searches(root: Path) -> list[str]:
    """List searches whose first result is another page."""
    if not FOUND:
        return []
    from playwright._impl._driver import compute_driver_executable

    node, script = compute_driver_executable()[0], Path(__file__).with_name("search_site.mjs")
    answer = subprocess.run([node, script, root, *FOUND], capture_output=True, text=True)
    if answer.returncode:
        return [answer.stderr]
    first = [(names or ["nothing"])[0].split("#")[0] for names in json.loads(answer.stdout)]
    wanted = zip(FOUND.items(), first, strict=True)
    return [f"{query}: {one}, not {page}" for (query, page), one in wanted if one != page]


def main(root: Path) -> int:
    """Print all faults and their number."""
    paths = [path for path in root.rglob("*.html") if "_static" not in path.parts]
    pages = {path.resolve(): Page(path) for path in paths}
    wrong = [f"loads from the network: {x}" for x in remote_parts(root, pages)]
    wrong += [f"broken link: {x}" for x in broken_links(pages)]
    wrong += [f"search finds first: {x}" for x in missed_searches(root)]
    wrong += [f"no name: {path}: {x}" for path, page in pages.items() for x in page.nameless]
    print(*sorted(wrong), f"{len(pages)} pages, {len(wrong)} faults", sep="\n")
    return int(bool(wrong) or not pages)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
