"""The texts of tokens that are parts of characters, and of several tokens together."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Sequence

_PARTS = re.compile(r"(?:<0x[0-9A-F]{2}>)+")
_ENDS = re.compile(r"<0x[0-9A-F]{2}>$")
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


def part_of(character: str, part: int, parts: int) -> str:
    """Name a token that is a part of a character: ``ü 1/2``."""
    return f"{character} {part}/{parts}"


def first_whole(character: str, part: int, parts: int) -> str:
    """Write a character that several tokens share in the first of them, the others as a dot."""
    return character if part == 1 else "·"


def spelled(tokens: Iterable[str], named: Callable[[str, int, int], str] = part_of) -> list[str]:
    """Name the characters that consecutive tokens share; parts of no character stay bytes.

    Parameters
    ----------
    tokens : iterable of str
        The tokens' texts, in which bytes that are no character are like ``<0xE7>``.
    named : callable
        What to write for a character, the number of its token from 1, and how many it has.
    """
    found = list(tokens)
    begin = 0
    while begin < len(found):
        end = begin + 1
        while end < len(found) and _ENDS.search(found[end - 1]) and _PARTS.match(found[end]):
            end += 1
        if end - begin > 1:
            found[begin:end] = _spelled(found[begin:end], named)
        begin = end
    return found


def _spelled(tokens: Sequence[str], named: Callable[[str, int, int], str]) -> list[str]:
    data = [_data(token) for token in tokens]
    try:
        text = b"".join(data).decode("utf-8")
    except UnicodeDecodeError:
        return list(tokens)
    owner = [n for n, own in enumerate(data) for _ in own]
    written, at = [""] * len(tokens), 0
    for character in text:
        size = len(character.encode("utf-8"))
        sharing = list(dict.fromkeys(owner[at : at + size]))
        for part, token in enumerate(sharing, start=1):
            whole = character if len(sharing) == 1 else named(character, part, len(sharing))
            apart = " " if written[token] and len(sharing) > 1 else ""
            written[token] += apart + whole
        at += size
    return written


def _data(token: str) -> bytes:
    """Encode a token's text, bytes such as ``<0xE7>`` as themselves."""
    found, at = b"", 0
    for parts in _PARTS.finditer(token):
        found += token[at : parts.start()].encode("utf-8", "surrogatepass") + _bytes(parts)
        at = parts.end()
    return found + token[at:].encode("utf-8", "surrogatepass")


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
    return from_bytes(_bytes(parts))


def _bytes(parts: re.Match[str]) -> bytes:
    return bytes.fromhex(parts.group().replace("<0x", "").replace(">", ""))
