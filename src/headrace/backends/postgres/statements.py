"""SQL by name: what the client sends to the server."""

from __future__ import annotations

from importlib.resources import files

_HEAD = "-- name: "


def load(noun: str) -> dict[str, str]:
    """The statements of one file, without their comments."""
    text = files(__package__).joinpath("sql", f"{noun}.sql").read_text("utf-8")
    return dict(_parse(part) for part in text.split(_HEAD)[1:])


def _parse(part: str) -> tuple[str, str]:
    name, _, body = part.partition("\n")
    lines = [line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--")]
    return name.strip(), "\n".join(lines)
