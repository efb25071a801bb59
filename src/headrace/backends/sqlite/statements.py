"""SQL by name: every file under ``sql/`` holds statements, each headed by its name and the index that it relies on."""

from __future__ import annotations

from importlib.resources import files

_HEAD = "-- name: "


def load(noun: str) -> dict[str, str]:
    """The statements of one file, without their comments.

    >>> load("cell")["get"]
    'SELECT data FROM cells WHERE cell = ?1'
    """
    text = files(__package__).joinpath("sql", f"{noun}.sql").read_text("utf-8")
    return dict(_parse(part) for part in text.split(_HEAD)[1:])


def load_all() -> dict[str, str]:
    """Every statement, as ``noun.name``."""
    found = sorted(entry.name for entry in files(__package__).joinpath("sql").iterdir())
    nouns = [name.removesuffix(".sql") for name in found if name.endswith(".sql")]
    return {f"{noun}.{name}": sql for noun in nouns for name, sql in load(noun).items()}


def migrations() -> list[str]:
    """The scripts that make the schema, in order; applying the first n gives schema version n."""
    scripts = sorted(files(__package__).joinpath("migrations").iterdir(), key=lambda entry: entry.name)
    return [entry.read_text("utf-8") for entry in scripts if entry.name.endswith(".sql")]


def _parse(part: str) -> tuple[str, str]:
    name, _, body = part.partition("\n")
    lines = [line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--")]
    return name.strip(), "\n".join(lines)
