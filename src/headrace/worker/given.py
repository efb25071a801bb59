"""Parameters that a worker fills in, by their types."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.errors import ConfigError


class Given:
    """Marks a parameter that a worker fills in."""

    def __repr__(self) -> str:
        return "given"


given: Any = Given()
"""The default of a parameter that a worker fills in, by its type, with what an ``@app.startup`` function made.

>>> import asyncio
>>> from collections.abc import AsyncIterator
>>> from headrace import App, given
>>> class Pool:
...     greeting = "hello"
>>> app = App("memory://")
>>> @app.startup
... async def pool() -> AsyncIterator[Pool]:
...     yield Pool()
...     print("closed")
>>> @app.task
... async def welcome(user_id: int, pool: Pool = given) -> None:
...     print(pool.greeting, user_id)
>>> async def main() -> None:
...     async with app:
...         await welcome.enqueue(42)
...         await app.drain()
>>> asyncio.run(main())
hello 42
closed
"""


def given_types(parameters: Iterable[inspect.Parameter], hints: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Which of the parameters a worker fills in, and their types."""
    return {p.name: _type_of(p, hints, what) for p in parameters if isinstance(p.default, Given)}


def refuse_given(function: Callable[..., Any], what: str, instead: str = "call app.use(Type) in it") -> None:
    """Refuse a function that asks to be given something where nobody does that."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return
    for parameter in parameters:
        if isinstance(parameter.default, Given):
            raise ConfigError(f"{what}: {parameter.name}: only tasks and batch tasks are given something; {instead}")


def _type_of(parameter: inspect.Parameter, hints: Mapping[str, Any], what: str) -> Any:
    if parameter.name not in hints or parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise ConfigError(f"{what}: {parameter.name}: given needs an annotation, and a name to be passed by")
    return hints[parameter.name]
