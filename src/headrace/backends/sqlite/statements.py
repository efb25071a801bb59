"""SQL by name: every file under ``sql/`` holds statements, each headed by its name and the index that it relies on."""

from __future__ import annotations

from importlib.resources import files

from headrace.backends.statements import read


def load(noun: str) -> dict[str, str]:
    """The statements of one file, without their comments.

    >>> load("cell")["get"]
    'SELECT data FROM cells WHERE cell = ?1'
    """
    return read(__package__, noun)


def load_all() -> dict[str, str]:
    """Every statement, as ``noun.name``."""
    found = sorted(entry.name for entry in files(__package__).joinpath("sql").iterdir())
    nouns = [name.removesuffix(".sql") for name in found if name.endswith(".sql")]
    return {f"{noun}.{name}": sql for noun in nouns for name, sql in load(noun).items()}


def migrations() -> list[str]:
    """The scripts that make the schema, in order; applying the first n gives schema version n."""
    scripts = sorted(files(__package__).joinpath("migrations").iterdir(), key=lambda entry: entry.name)
    return [entry.read_text("utf-8") for entry in scripts if entry.name.endswith(".sql")]
