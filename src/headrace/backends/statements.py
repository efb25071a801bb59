"""SQL by name: files of statements, each headed by its name and the index that it relies on."""

from __future__ import annotations

from importlib.resources import files

_HEAD = "-- name: "


def read(package: str, noun: str) -> dict[str, str]:
    """The statements of one file under the package's ``sql/``, without their comments."""
    text = files(package).joinpath("sql", f"{noun}.sql").read_text("utf-8")
    return dict(_parse(part) for part in text.split(_HEAD)[1:])


def _parse(part: str) -> tuple[str, str]:
    name, _, body = part.partition("\n")
    lines = [line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--")]
    return name.strip(), "\n".join(lines)
