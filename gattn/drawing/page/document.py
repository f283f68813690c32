"""A page as HTML: its style, its script and its data in one file, closed to the network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape

from gattn.drawing.page.payload import Payload
from gattn.drawing.page.script import asset, viewer_script
from gattn.drawing.page.still import Still
from gattn.names.text import visible


def page(made: Payload, stills: Sequence[Still] = ()) -> str:
    """Join the parts of a page.

    Its policy allows only this script and this style, by their hashes; pictures in the file itself;
    no request; and no text that becomes markup. The stills are there until the script has run.
    """
    style, script, skeleton = (
        asset("viewer/viewer.css"),
        viewer_script(),
        asset("viewer/skeleton.html"),
    )
    title = plain(visible(made.title, limit=150))
    for place, text in (("title", title), ("still", _figures(title, stills))):
        skeleton = skeleton.replace(f"<!--{place}-->", text)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    blocks = "\n".join(
        f'<script type="text/plain" id="gattn-block-{number}">{text}</script>'
        for number, text in enumerate(made.blocks)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="gattn {made.header["version"]}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{skeleton}
<script type="application/json" id="gattn-header">{made.header_text()}</script>
{blocks}
<script type="module">{script}</script>
</body>
</html>
"""


def _figures(title: str, stills: Sequence[Still]) -> str:
    """Show the stills, each of several under its name; one without a picture is only named."""
    found = []
    for one in stills:
        alt = plain(visible(one.name, limit=150)) if one.name else title
        picture = f'<img alt="{alt}" src="{one.address}">' if one.address else ""
        found.append(
            f"<figure><figcaption>{alt}</figcaption>{picture}</figure>" if one.name else picture
        )
    return "\n".join(found)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode('ascii')}'"


def plain(text: str) -> str:
    """Escape text for HTML, and replace what UTF-8 or HTML cannot hold."""
    text = text.replace("\0", "�").encode("utf-8", "replace").decode()
    return escape(text)
