"""Django tasks that a stop of their worker interrupts. Runs inside a Django project, as ``orders.interrupted``."""

import asyncio
import time
from pathlib import Path

try:
    from django import tasks as framework
    from django.tasks import signals
except ImportError:
    import django_tasks as framework
    from django_tasks import signals

TOLD = Path(__file__).with_name("told")
GO = Path(__file__).with_name("go")


def tell(text: str) -> None:
    with TOLD.open("a") as file:
        file.write(f"{text}\n")


def started(sender, task_result, **more) -> None:
    tell("started")


def finished(sender, task_result, **more) -> None:
    tell(f"finished {task_result.status}")


signals.task_started.connect(started)
signals.task_finished.connect(finished)


@framework.task
async def awaits() -> None:
    while not GO.exists():
        await asyncio.sleep(0.01)


@framework.task
def blocks() -> None:
    while not GO.exists():
        time.sleep(0.01)
