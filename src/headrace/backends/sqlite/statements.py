"""SQL by name: every file under ``sql/`` holds statements, each headed by its name and the index that it relies on.

What several statements have in common is a part. Its name is in braces, and so it stands in the statements.
"""

from __future__ import annotations

from importlib.resources import files

from headrace.backends.statements import read
from headrace.seam.records import CARRIED, CARRIED_TEXTS

DELAYED = -(2**40)
"""The lane of the delayed jobs of a lane is this minus the lane. Lines of groups are negative too, but above it."""
_PARTS = {
    "{delayed}": str(DELAYED),
    "{carried}": ", ".join(CARRIED),
    "{carried?}": ", ".join("?" * len(CARRIED)),
    "{j.carried}": ", ".join(f"CAST(j.{name} AS BLOB)" if name in CARRIED_TEXTS else f"j.{name}" for name in CARRIED),
}
"""Parts of any statement: a number, and the columns of carried options. Text is read as bytes: it need not be text."""


def load(noun: str) -> dict[str, str]:
    """The statements of one file, with their parts in place and without comments.

    >>> load("cell")["drop"]
    'DELETE FROM cells WHERE cell = ?1'
    """
    texts = _PARTS | read(__package__, noun)
    parts = [name for name in texts if name.startswith("{")]
    for part in parts:
        texts = {name: sql.replace(part, texts[part]) for name, sql in texts.items()}
    return {name: sql for name, sql in texts.items() if name not in parts}


def migrations() -> list[str]:
    """The scripts that make the schema, in order; applying the first n gives schema version n."""
    scripts = sorted(files(__package__).joinpath("migrations").iterdir(), key=lambda entry: entry.name)
    return [entry.read_text("utf-8") for entry in scripts if entry.name.endswith(".sql")]
