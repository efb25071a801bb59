"""Jobs about orders. Headrace imports this module by itself, as it does ``tasks.py`` of every installed app."""

from django.db import transaction
from django.db.models import F

from headrace import Fail, exponential
from headrace.contrib.django import app, enqueue

from .models import Order

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task


@app.task(queue="mail", retry=exponential(5, base="100ms"))
def receipt(order_id: int) -> str:
    """A plain task, in a thread of the worker, with Django's connection of that thread."""
    order = Order.objects.get(pk=order_id)
    Order.objects.filter(pk=order_id).update(receipts=F("receipts") + 1)
    return order.email


@app.task(queue="mail", retry=exponential(5, base="100ms"))
async def count() -> int:
    """An async task: the ORM's async methods."""
    return await Order.objects.acount()


@app.task
def duplicate(order_id: int) -> int:
    """A task that enqueues another one, in its own transaction."""
    with transaction.atomic():
        order = Order.objects.create(email=Order.objects.get(pk=order_id).email)
        enqueue(receipt, order.pk)
    return order.pk


@app.task
def sign_in(email: str, token: str) -> None:
    """A task with an argument that sounds secret: people who look after jobs do not see it."""


@app.task
def refuse_order(order_id: int) -> Fail:
    """A task that gives up by itself: its job is a dead letter at once."""
    return Fail("no more of these", reason="sold out")


app.cron("0 6 * * *", count, tz="Europe/Madrid")


@task
def add(a: int, b: int = 1) -> int:
    """A task of Django's own framework."""
    return a + b


@task(queue_name="mail", priority=5, takes_context=True)
async def greet(context, email: str) -> dict[str, str | int]:
    """The same, async, with the context that Django gives it."""
    return {"to": email, "attempt": context.attempt, "id": context.task_result.id}


@task
def refuse(text: str) -> None:
    """One that fails."""
    raise ValueError(text)
