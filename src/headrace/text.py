"""Values as text that is safe in a message."""

from __future__ import annotations

import re
from urllib.parse import unquote

_LONGEST = 80
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_WORD = re.compile(r"\S+")
_ALL = re.compile(r".+", re.DOTALL)
_AUTHORITY = re.compile("://(?!/)")
_NAME = re.compile(r"""([?&]?)((?<![^=?&'"(,;])[^=?&'"(,;]++)=""")
_SECRET = re.compile(r"(?i)(pass(word|wd|wrd|phrase)?|pwd|auth|token|secret|api[_-]?key)$")
_KEY = re.compile(r"(?i)key$")
_ENCODED = re.compile(r"[a-z+]+(%3A|:)(%2F|/){2}[^&]+", re.IGNORECASE)
"""A URL within a URL."""
_AFTER = "'\"),;.:]}"
"""What may follow a URL in a sentence."""


def shown(value: object) -> str:
    """The value's repr, short, and never an error of its own.

    >>> shown("x" * 200)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
    """
    try:
        text = repr(value[: 2 * _LONGEST] if isinstance(value, str | bytes) else value)
    except Exception:
        text = f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def reason_in_words(reason: str, lost: int) -> str:
    """Why a job ended, for people. ``lost``: how often in a row its workers died.

    >>> reason_in_words("lost", 3)
    'lost: its worker died while running it, 3 times in a row'
    """
    return f"{reason}: {losses(lost)}" if reason == "lost" and lost else reason


def losses(lost: int) -> str:
    """How often in a row a job's worker died, as a sentence."""
    return f"its worker died while running it, {'once' if lost == 1 else f'{lost} times in a row'}"


def one_line(text: str) -> str:
    r"""The text on one line, without characters that could move a cursor, change the direction of the text, or forge a
    line.

    >>> one_line("a\x1b[2Jb\n\u200fc")
    'a\\x1b[2Jb\\n\\u200fc'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def without_secrets(text: str) -> str:
    """The text with secrets in URLs and their options masked: users, passwords, tokens and keys, whatever characters
    they are made of. A URL ends at a blank.

    >>> without_secrets("at redis://ada:secret@db:6379/0?sentinel_password=x it said")
    'at redis://***@db:6379/0?sentinel_password=*** it said'
    """
    return _WORD.sub(_without, text) if "=" in text or "://" in text else text


def url_without_secrets(url: str) -> str:
    """A URL with its secrets masked, even with blanks in them; in a mistyped URL, everything that may be secret.

    >>> url_without_secrets("postgresql://ada:my secret@db/jobs"), url_without_secrets("postgresql:ada:secret@db/jobs")
    ('postgresql://***@db/jobs', '***@db/jobs')
    """
    login, at, rest = url.rpartition("@")
    return _ALL.sub(_without, f"***@{rest}" if at and "://" not in login else url)


def _without(found: re.Match[str]) -> str:
    word = found[0]
    if (begin := _AUTHORITY.search(word)) and (end := word.rfind("@")) > begin.end():
        word = f"{word[: begin.end()]}***{word[end:]}"
    parts, at = [], 0
    while (name := _NAME.search(word, at)) is not None:
        parts.append(word[at : name.end()])
        at = name.end()
        if _is_secret(unquote(name[2]), of_url=bool(name[1])):
            end = word.find("&", at)
            value = word[at:] if end < 0 else word[at:end]
            parts.append("***" + value[len(value.rstrip(_AFTER)) :])
            at += len(value)
        elif inner := _ENCODED.match(word, at):
            parts.append(url_without_secrets(unquote(inner[0])))
            at = inner.end()
    return "".join((*parts, word[at:]))


def _is_secret(name: str, *, of_url: bool) -> bool:
    return bool(_SECRET.search(name) or (of_url and _KEY.search(name)))
