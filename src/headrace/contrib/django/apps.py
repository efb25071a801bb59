"""Headrace as an installed app of Django."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate


class HeadraceConfig(AppConfig):
    """Finds tasks when Django starts, and takes part in ``manage.py migrate``."""

    name = "headrace.contrib.django"
    label = "headrace"
    verbose_name = "Headrace"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Called by Django when all apps are loaded."""
        from headrace.contrib.django.async_connections import note_use
        from headrace.contrib.django.checks import check_configuration
        from headrace.contrib.django.project import discover, follow_database

        checks.register(check_configuration)
        connection_created.connect(note_use, dispatch_uid="headrace.note_use")
        connection_created.connect(follow_database, dispatch_uid="headrace.follow_database")
        post_migrate.connect(_migrate, sender=self, dispatch_uid="headrace.migrate")
        discover()


def _migrate(**given: Any) -> None:
    from headrace.contrib.django.migrating import migrate_database

    migrate_database(given["using"], given.get("verbosity", 1), given.get("stdout"))
