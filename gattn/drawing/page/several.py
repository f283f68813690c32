"""The data of a page of several texts, of which one is shown at a time.

The header is that of the first text, with the headers of the ``others``; each has its ``name``.
"""

from __future__ import annotations

from collections.abc import Sequence

from gattn.drawing.page.payload import Payload, check_size, payload
from gattn.errors import SelectionError
from gattn.heads.trace import AttentionTrace


def payload_of_several(texts: Sequence[tuple[str, AttentionTrace]]) -> Payload:
    """Pack several texts, each with its name, which share the room that a page has.

    Raises
    ------
    SelectionError
        If there are none, or one has no heads.
    FileError
        If they are too large together.
    """
    if not texts:
        raise SelectionError("There is nothing to show: expected at least one trace or head.")
    check_size([head for _, trace in texts for head in trace.heads()])
    made: list[Payload] = []
    for name, trace in texts:
        first = sum(len(one.blocks) for one in made)
        made.append(payload([trace], "", first=first, share=len(texts)))
        made[-1].header["name"] = str(name)
    header = made[0].header | {"others": [one.header for one in made[1:]]}
    title = made[0].title
    if len(made) > 1:
        names = (str(name) or one.title for (name, _), one in zip(texts, made, strict=True))
        title = f"{len(made)} texts: {'; '.join(names)}"
    return Payload(title, header, [block for one in made for block in one.blocks])
