"""The app of a Django project: made once, and led to the test database when that is in use."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

import django
from django.apps import apps
from django.db import connections
from django.utils.module_loading import autodiscover_modules
from msgspec.structs import replace

from headrace.api.app import App
from headrace.api.connection import connect
from headrace.contrib.django.async_connections import fresh_connections
from headrace.contrib.django.configuration import alias_of, check_app, configuration, database_url, renamed
from headrace.errors import ConfigError
from headrace.text import shown

log = logging.getLogger("headrace")


def project_app() -> App:
    """The app, with the tasks of all installed apps. ``django.setup()`` is called if nobody has."""
    if not apps.ready and not apps.loading:
        django.setup()
    return made_app()


@cache
def made_app() -> App:
    """The app, perhaps still without its tasks."""
    given = configuration()
    alias = alias_of(given)
    if given.app is not None:
        app = _named(given.app)
        if alias is not None:
            check_app(alias, app.client.settings.url)
    else:
        url = given.url if alias is None else database_url(connections.settings[alias], given.options)
        app = App(url, **given.settings)
    app.middleware(fresh_connections)
    app.tested_by = "JobsMixin or jobs_in_memory() of headrace.contrib.django.test"
    return app


def _named(path: str) -> App:
    module, _, name = path.partition(":")
    found = getattr(import_module(module), name or "app", None)
    if not isinstance(found, App):
        raise ConfigError(f"HEADRACE: APP: expected module:attr of a headrace.App, got {shown(path)}")
    return found


def discover() -> None:
    """Import ``tasks.py`` of every installed app."""
    autodiscover_modules(configuration().tasks_module)


def jobs_alias() -> str | None:
    """The Django database that the app's jobs are in."""
    return alias_of(configuration())


def follow_database(connection: Any, **more: Any) -> None:
    """A signal handler: a connection was made. If its database has another name than the app was made with, it is a
    test database, and the app goes there too: tests must never enqueue in production."""
    if connection.vendor != "postgresql" or made_app.cache_info().currsize == 0 or connection.alias != jobs_alias():
        return
    app, url = made_app(), jobs_url(connection.settings_dict)
    if app.client.settings.url not in (url, "memory://"):
        log.debug("jobs follow Django to database %s", connection.settings_dict["NAME"])
        app.client = connect(replace(app.client.settings, url=url))


def jobs_url(parameters: Mapping[str, Any]) -> str:
    """The URL of the jobs in a Django database, which may be the test database."""
    given = configuration()
    if given.app is None:
        return database_url(parameters, given.options)
    return renamed(made_app().client.settings.url, parameters["NAME"])
