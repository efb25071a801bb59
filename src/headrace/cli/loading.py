"""From ``module:attr`` to an app or queue, and from ``--url`` or ``--app`` to an open client."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from headrace.cli.commands import ENV_PREFIX
from headrace.cli.output import note
from headrace.cli.problems import UNAVAILABLE, USAGE, Problem
from headrace.errors import ConfigError
from headrace.text import url_without_secrets

if TYPE_CHECKING:
    from headrace import App, Client, Queue
    from headrace.admin.admin import Admin

    Target: TypeAlias = App | Queue[Any, Any]
    """What has a worker."""


def load_target(spec: str) -> Target:
    """The app or queue at ``module:attr`` or ``path/file.py:attr``; the attribute is ``app`` unless named.

    The working directory is importable. A file is imported under the name that it has in its package, whatever the
    working directory, so that its tasks have the same names everywhere.
    """
    hide_own_variables()
    from headrace import App, Queue

    place, _, attribute = spec.partition(":")
    attribute = attribute or "app"
    module = _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    found = getattr(module, attribute, None)
    if isinstance(found, App):
        return _loaded(found)
    if isinstance(found, Queue):
        return found
    others = [name for name, value in vars(module).items() if isinstance(value, App | Queue)]
    if others:
        raise Problem(
            USAGE,
            f"{place} has no app or queue {attribute!r}; it has: {', '.join(others)}",
            run=f"the same command with {place}:{others[0]}",
        )
    kind = "nothing" if found is None else f"{type(found).__name__}, which is neither an App nor a Queue,"
    raise Problem(
        USAGE, f"{place} has {kind} under the name {attribute!r}", cause="an app is made with: app = headrace.App(…)"
    )


def _loaded(app: App) -> App:
    """The app, with the modules that it includes."""
    try:
        app.load()
    except ConfigError as error:
        raise Problem(USAGE, str(error)) from error
    except Exception as error:
        raise _broken("a module that the app includes", error) from error
    return app


def hide_own_variables() -> None:
    """Remove the command line's own variables from the environment, so that settings do not read them."""
    for name in [name for name in os.environ if name.startswith(f"{ENV_PREFIX}_")]:
        del os.environ[name]


def _from_name(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        hint = f"{name}.py" if "/" in name else "module:attr or file.py:attr"
        raise Problem(USAGE, f"{name!r} is neither a module nor a .py file", run=f"the same command with {hint}")
    _importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _broken(name, error) from error
        raise Problem(
            USAGE,
            f"there is no module {name!r}",
            cause=f"it is neither below {Path.cwd()} nor installed in {sys.prefix}",
            run="the same command in the directory that holds it, or with path/to/file.py:app",
        ) from error
    except Exception as error:
        raise _broken(name, error) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise Problem(USAGE, f"there is no file {path}", cause=f"the working directory is {Path.cwd()}")
    path = path.resolve()
    top = path.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    name = ".".join(path.relative_to(top).with_suffix("").parts)
    _importable(Path.cwd())
    _importable(top)
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise _broken(str(path), error) from error
    if Path(module.__file__ or "").resolve() != path:
        raise Problem(
            USAGE,
            f"{path} cannot be imported: {name!r} is another module, {module.__file__ or 'built in'}",
            run="give the file another name",
        )
    return module


def _importable(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _broken(what: str, error: Exception) -> Problem:
    """The module's own code raised; says where."""
    steps = traceback.extract_tb(error.__traceback__)
    theirs = [step for step in steps if "importlib" not in step.filename and not step.filename.startswith(_OURS)]
    where = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
    return Problem(
        USAGE,
        f"{what} cannot be imported: {type(error).__name__}: {error}{where}",
        cause="the code at the top of that module raised this",
        run="the same command with --debug shows the traceback",
    )


_OURS = str(Path(__file__).parents[1]) + os.sep


class Store(Struct, frozen=True):
    """The store to use: that of an app or queue, of a URL, or of the settings."""

    url: str | None = None
    app: str | None = None

    def client(self) -> Client:
        """A client for it, not yet open."""
        if self.app is not None:
            return load_target(self.app).client
        hide_own_variables()
        from headrace import connect

        return connect(self.url)

    def loaded(self) -> App:
        """The app itself, for commands about what it declares."""
        hide_own_variables()
        from headrace import App

        target = None if self.app is None else load_target(self.app)
        if not isinstance(target, App):
            raise Problem(
                USAGE, "this command needs an app, as apps declare tables and trackers", run="it with --app module:app"
            )
        return target

    def tasks(self) -> list[str]:
        """The names of the app's tasks; empty without an app."""
        return [] if self.app is None else sorted(getattr(load_target(self.app), "tasks", ()))

    def queues(self) -> list[str]:
        """The queues that a worker of the app claims from; none without an app."""
        target = None if self.app is None else load_target(self.app)
        return getattr(target, "queues", None) or [getattr(target, "name", "")]

    @asynccontextmanager
    async def opened(self, *, create: bool = False) -> AsyncIterator[Client]:
        """An open client. Unless ``create``, a missing store is an error: a typo in a path must not create an empty
        store that looks like the real one."""
        client = self.client()
        if client.settings.url.startswith("memory:"):
            note("memory:// lives in one process: this command starts with an empty store, and loses it when it ends")
        if not create:
            missing = missing_file(client.settings.url)
            if missing is not None:
                raise Problem(
                    UNAVAILABLE,
                    f"there is no store at {url_without_secrets(client.settings.url)}: no file {missing}",
                    cause="the first enqueue or worker creates it; or the path is relative to another directory",
                    run="headrace doctor, or the same command with --url sqlite:///path/to/file.db or --app module:app",
                )
        await client.backend()  # unlike open(), it ends within patience
        async with client:
            yield client

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Admin]:
        """The admin API of an open client, with the store's replica. Who names a store may see all that is in it."""
        from headrace.admin.admin import Admin, replica_of
        from headrace.admin.redaction import Redaction

        async with self.opened() as client:
            admin = Admin(client, replica=replica_of(client.settings), redaction=Redaction.NOTHING)
            try:
                yield admin
            finally:
                await admin.close()


def store_file(url: str) -> Path | None:
    """The file of a store that is a file."""
    parts = urlsplit("" if "|" in url else url.partition("->")[0].strip())
    return Path(unquote(parts.path[1:])) if parts.scheme == "sqlite" else None


def missing_file(url: str) -> Path | None:
    """The file that the URL names, if it is missing."""
    path = store_file(url)
    return path if path is not None and not path.exists() else None
