"""Where two answers differ, in one line that a person can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct


def difference(given: object, expected: object, path: str = "answer") -> str:
    """The first difference, and the way to it.

    >>> difference([1, {"a": 2}], [1, {"a": 3}])
    'answer[1]["a"] is 2, and 3 by the model'
    """
    if type(given) is type(expected) and given != expected:
        for step, mine, other in _parts(given, expected):
            if mine != other:
                return difference(mine, other, path + step)
    return f"{path} is {given!r}, and {expected!r} by the model"


def _parts(given: object, expected: object) -> list[tuple[str, object, object]]:
    """The parts that the two have in common, if it is in these that they differ."""
    if isinstance(given, Struct):
        job_id = getattr(given, "id", None)
        name = f"<{job_id.hex()}>" if isinstance(job_id, bytes) else ""
        return [(f"{name}.{f}", getattr(given, f), getattr(expected, f)) for f in given.__struct_fields__]
    if isinstance(given, Mapping) and isinstance(expected, Mapping) and given.keys() == expected.keys():
        return [(f'["{key}"]', given[key], expected[key]) for key in given]
    if isinstance(given, list | tuple) and isinstance(expected, Sequence) and len(given) == len(expected):
        return [(f"[{i}]", mine, other) for i, (mine, other) in enumerate(zip(given, expected, strict=True))]
    return []
