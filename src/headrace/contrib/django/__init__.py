"""Headrace in a Django project.

Put ``"headrace.contrib.django"`` into ``INSTALLED_APPS``, and tasks into ``tasks.py`` of your own apps:

    from headrace.contrib.django import app

    @app.task
    def receipt(order_id: int) -> None: ...

Views enqueue with ``enqueue(receipt, order.id)``, and ``python manage.py headrace worker`` runs the jobs. How to set it
up and test it is in docs/howto/django.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace import App
    from headrace.contrib.django.transactions import bind, enqueue, enqueue_many, jobs

    app: App
    """The app of this project: made of the setting ``HEADRACE``, or named there."""

__all__ = ["app", "bind", "enqueue", "enqueue_many", "jobs"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "app":
        return import_module(f"{__name__}.project").project_app()
    return getattr(import_module(f"{__name__}.transactions"), name)
