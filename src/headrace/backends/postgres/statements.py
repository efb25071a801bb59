"""The statements of the client, by name."""

from __future__ import annotations

from headrace.backends.statements import read


def calls() -> dict[str, str]:
    """What is sent, where only the schema and the columns for ``COPY`` are to be filled in."""
    found = read(__package__, "calls")
    for function in found.pop("functions").splitlines():
        name, _, parameters = function.partition("(")
        found[name] = f"SELECT * FROM {{schema}}.{name}_v1({parameters}"
    return found
