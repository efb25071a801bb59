"""A Django project around a library of tasks, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_WAL = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL"
CONNECTED = "its connection stays open (CONN_MAX_AGE=None; by default Django opens one per request)"


def on_file(place: str) -> dict[str, Any]:
    """A database in a file, as durable as the other systems on SQLite."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(Path(place, "queue.db")),
        "OPTIONS": {"init_command": _WAL},
    }


def on_server(url: str) -> dict[str, Any]:
    """A database of the harness's PostgreSQL."""
    from psycopg.conninfo import conninfo_to_dict

    given: dict[str, Any] = dict(conninfo_to_dict(url))
    return {"ENGINE": "django.db.backends.postgresql", "NAME": given.pop("dbname"), "OPTIONS": given}


def start(database: dict[str, Any], apps: list[str], **more: Any) -> None:
    """Settings, apps, and tables."""
    import django
    from django.conf import settings
    from django.core.management import call_command

    settings.configure(
        DATABASES={"default": database | {"CONN_MAX_AGE": None}},
        INSTALLED_APPS=apps,
        SECRET_KEY="bench",
        USE_TZ=True,
        **more,
    )
    django.setup()
    call_command("migrate", verbosity=0)
