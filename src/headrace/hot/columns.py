"""A typed struct as the columns of a table, and its instances as rows."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import asdict

from headrace.errors import ConfigError
from headrace.seam.tables import ColumnKind
from headrace.text import shown

_KINDS: dict[Any, ColumnKind] = {
    str: ColumnKind.TEXT, bool: ColumnKind.BOOLEAN, int: ColumnKind.INTEGER, float: ColumnKind.REAL,
    datetime: ColumnKind.TIME, date: ColumnKind.TIME, bytes: ColumnKind.BYTES,
}  # fmt: skip


def columns_of(row: type) -> dict[str, ColumnKind]:
    """The columns of a struct's fields; what is no plain value is kept as JSON.

    >>> class Video(Struct):
    ...     id: str
    ...     views: int | None = None
    ...     tags: list[str] = []
    >>> {name: kind.value for name, kind in columns_of(Video).items()}
    {'id': 'text', 'views': 'integer', 'tags': 'json'}
    """
    if not isinstance(row, type) or not issubclass(row, Struct):
        raise ConfigError(f"expected a msgspec.Struct that describes a row, got {shown(row)}")
    try:
        hints = get_type_hints(row)
    except NameError as error:
        raise ConfigError(f"{row.__name__}: its annotations cannot be read: {error}; define it in a module") from error
    return {name: _kind(kind) for name, kind in hints.items() if name in row.__struct_fields__}


def _kind(hint: Any) -> ColumnKind:
    if get_origin(hint) in (Union, types.UnionType):
        given = [one for one in get_args(hint) if one is not type(None)]
        return _kind(given[0]) if len(given) == 1 else ColumnKind.JSON
    return _KINDS.get(hint, ColumnKind.JSON)


def rows_of(rows: Sequence[Any], where: str) -> tuple[list[str], list[list[Any]]]:
    """The columns of rows, which must all have the same, and their values."""
    given = [_fields(row, where) for row in rows]
    columns = [*given[0]]
    for one in given:
        if one.keys() != given[0].keys():
            raise ConfigError(
                f"{where}: expected rows with the same columns, got {sorted(one)} after {sorted(columns)}"
            )
    return columns, [[one[name] for name in columns] for one in given]


def _fields(row: Any, where: str) -> Mapping[str, Any]:
    if isinstance(row, Struct):
        return asdict(row)
    if isinstance(row, Mapping):
        return row
    raise ConfigError(f"{where}: expected a row as a struct or a mapping, got {shown(row)}")
