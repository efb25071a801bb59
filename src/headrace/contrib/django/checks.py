"""System checks: what is wrong with the set-up, before anything is enqueued."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, Warning

from headrace.contrib.django.project import jobs_alias, made_app
from headrace.errors import ConfigError


def check_configuration(**more: Any) -> list[CheckMessage]:
    """Read the setting ``HEADRACE``, and make the app of it."""
    try:
        alias, app = jobs_alias(), made_app()
    except (ConfigError, ImportError) as error:
        return [Error(str(error), id="headrace.E001")]
    if not app.tasks:
        hint = "Write them in tasks.py of an installed app, with @app.task of headrace.contrib.django."
        return [Warning("No installed app has a task.", hint=hint, id="headrace.W001")]
    if alias is None and app.client.settings.url.startswith("memory:"):
        hint = "Give HEADRACE a URL or a DATABASE."
        return [Warning("Jobs are kept in memory, and lost with the process.", hint=hint, id="headrace.W002")]
    return []
