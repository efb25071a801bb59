"""No repr of anything public shows the password of the store's URL."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.pretty import pretty_repr

from headrace import App, Client, Queue, Settings, SyncApp
from headrace.api.connection import open_backend
from headrace.core.config import WorkerSettings
from headrace.errors import HeadraceError

URLS = [
    "postgresql://ada:hunter2@db.example.com/jobs",
    "postgresql://db.example.com/jobs?user=ada&password=hunter2",
    "postgresql://ada:hunter2 with blanks@db.example.com/jobs",
    "redis://:hunter2@cache.example.com/0",
    "rediss://ada:hunter2@cache.example.com/0",
    "redis+sentinel://one.example.com/0?master=m&sentinel_password=hunter2",
    "redis+cluster://ada:hunter2@one.example.com",
    "redis+unix://:hunter2@/run/cache.sock",
]
MISTYPED = ["postgresql:ada:hunter2@db.example.com/jobs", "ada:hunter2@db.example.com/jobs"]


def texts(thing: object) -> list[str]:
    """All that people look at things with."""
    console = Console(file=io.StringIO(), width=1_000)
    console.print(thing)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    return [repr(thing), str(thing), f"{thing}", pretty_repr(thing), shown]


@pytest.mark.parametrize("url", [*URLS, *MISTYPED])
def test_settings(url: str) -> None:
    settings = Settings.load({"url": url}, env={}, toml={})
    for text in texts(settings):
        assert "hunter2" not in text.replace("\n", "")
        assert "blanks" not in text
        assert "***" in text
        assert "example.com" in text or "cache.sock" in text
        assert "concurrency=10" in text
    assert settings.url == url


def test_settings_can_be_read_in_full_otherwise() -> None:
    settings = Settings(url="memory://", worker=WorkerSettings(concurrency=3))
    shown = repr(settings)
    assert shown.startswith("Settings(url='memory://', ")
    assert "result_ttl='1h', patience='30s', worker=WorkerSettings(concurrency=3, " in shown


@pytest.mark.parametrize("url", URLS)
async def test_what_is_made_with_them(url: str) -> None:
    settings = Settings.load({"url": url}, env={}, toml={})
    if " " in url:
        with pytest.raises(HeadraceError) as refused:
            open_backend(url)
        assert "hunter2" not in f"{refused.value} {refused.value!r} {refused.value.to_dict()}"
        assert "blanks" not in str(refused.value)
        return
    backend = open_backend(url)
    client = Client(backend, settings)
    app = App(client)
    for thing in (client, app, SyncApp(app), Queue("q", client), backend, vars(client), vars(app)):
        for text in texts(thing):
            assert "hunter2" not in text.replace("\n", "")
