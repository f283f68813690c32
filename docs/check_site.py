"""Check the built site: `python docs/check_site.py docs/_build/html`.

Its pages must not load anything from the network, and every link within it must lead somewhere.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
REMOTE = re.compile(r"^(https?:)?//")


class Page(HTMLParser):
    """What a page loads, where it links, and which anchors it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded, self.links, self.places = set(), set(), {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.places.add(found.get("id") or "")
        if tag == "a" and found.get("href"):
            self.links.add(found["href"])
        is_hint = tag == "link" and found.get("rel") in {"next", "prev", "search", "index"}
        if found.get(LOADED.get(tag, "")) and not is_hint:
            self.loaded.add(found[LOADED[tag]])


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


def main(root: Path) -> int:
    """Print all faults and their number."""
    paths = [path for path in root.rglob("*.html") if "_static" not in path.parts]
    pages = {path.resolve(): Page(path) for path in paths}
    wrong = [f"loads from the network: {x}" for x in remote_parts(root, pages)]
    wrong += [f"broken link: {x}" for x in broken_links(pages)]
    print(*sorted(wrong), f"{len(pages)} pages, {len(wrong)} faults", sep="\n")
    return int(bool(wrong) or not pages)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
