"""What the admin lists. There are no tables behind these: pages ask the store."""

from __future__ import annotations

from django.db import models


class Listed(models.Model):
    """The base: nothing of it is in Django's database but the right to see it."""

    class Meta:
        abstract = True
        managed = False
        default_permissions = ("view",)
        app_label = "headrace"


class Job(Listed):
    """Any job."""

    class Meta(Listed.Meta):
        verbose_name, verbose_name_plural = "job", "jobs"


class DeadLetter(Listed):
    """A failed job that is kept."""

    class Meta(Listed.Meta):
        verbose_name, verbose_name_plural = "dead letter", "dead letters"


class Queue(Listed):
    """A queue."""

    class Meta(Listed.Meta):
        verbose_name, verbose_name_plural = "queue", "queues"


class Schedule(Listed):
    """A schedule."""

    class Meta(Listed.Meta):
        verbose_name, verbose_name_plural = "schedule", "schedules"
