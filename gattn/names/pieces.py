"""The texts of tokens that are parts of characters, and of several tokens together."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

_PARTS = re.compile(r"(?:<0x[0-9A-F]{2}>)+")
_CLOSES = re.compile(
    r"[.,;:!?%)\]}»”’…、。，！？：；）」』】،؛؟]|n?['’](?:s|t|re|ve|ll|d|m)\b", re.IGNORECASE
)
_OPENS = re.compile(r"[(\[{«“‘¿¡（「『【$£€]$")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0e7f\uff00-\uffef]")
"""Signs of scripts that write no spaces: Chinese, Japanese, Thai, and full-width punctuation."""


def _as_parts(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    broken = error.object[error.start : error.end]
    return "".join(f"<0x{byte:02X}>" for byte in broken), error.end


codecs.register_error("gattn.parts", _as_parts)


def from_bytes(data: bytes) -> str:
    """Decode UTF-8, with incomplete characters as bytes such as ``<0xE7>``."""
    return data.decode("utf-8", errors="gattn.parts")


def joined(tokens: Sequence[str], words: Sequence[int | None]) -> str:
    """Join tokens into one text, with spaces between words and characters whole again.

    Without spaces where hardly any text has them: before a full stop, within brackets, between
    Chinese characters.

    Parameters
    ----------
    tokens : sequence of str
        The tokens' texts.
    words : sequence of int or None
        The word of each token; empty if unknown.
    """
    if len(tokens) < 2:
        return "".join(tokens)
    text = tokens[0]
    for i, token in enumerate(tokens[1:], start=1):
        starts_word = bool(words) and (words[i] is None or words[i] != words[i - 1])
        if not starts_word and words and len(token) > 2:
            token = token.removeprefix("##")
        text += f" {token}" if starts_word and not _touch(text, token) else token
    text = _PARTS.sub(_whole, text)
    return text.strip(" ") or text


def _touch(text: str, token: str) -> bool:
    """Return whether a token follows a text without a space, or with one of its own."""
    if text.endswith(" ") or token.startswith(" ") or _CLOSES.match(token) or _OPENS.search(text):
        return True
    if _UNSPACED.match(text[-1:]) and _UNSPACED.match(token):
        return True
    is_quoting = text.count('"') % 2 == 1
    return is_quoting and (token.startswith('"') or text.endswith('"'))


def _whole(parts: re.Match[str]) -> str:
    data = bytes.fromhex(parts.group().replace("<0x", "").replace(">", ""))
    return from_bytes(data)
