"""What the helpers for Django's test cases do beyond the example's own tests; run by ``manage.py test``."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.test import TestCase, TransactionTestCase
from orders.models import Order
from orders.tasks import count, duplicate, receipt

from headrace.contrib.django import app, enqueue, enqueue_many, jobs
from headrace.contrib.django.test import JobsMixin, StoreMixin
from headrace.errors import ConfigError, WaitTimeout
from headrace.testing.jobs import in_memory

ADA = {"email": "ada@example.org"}


@app.task
def waits(order_id: int) -> str:
    return receipt.call_sync(order_id)


class InATestCase(JobsMixin, TestCase):
    order: Order
    before: list[Any]

    @classmethod
    def setUpTestData(cls) -> None:
        cls.order = Order.objects.create(email="first@example.org")
        enqueue(count)
        count.enqueue_sync()
        cls.jobs.run()
        cls.before = cls.jobs.all()
        enqueue(count)

    def test_what_the_class_enqueued_was_in_memory_and_is_not_there(self) -> None:
        self.assertEqual([job.result for job in self.before], [1, 1])
        self.assertEqual(self.jobs.all(), [])

    def test_one_enqueue_after_another(self) -> None:
        """Whatever the one before has left open."""
        for _ in range(2):
            handle = receipt.enqueue_sync(self.order.pk)
            enqueue(receipt, self.order.pk)
            enqueue_many([receipt.job(self.order.pk)])
            self.jobs.run()
            self.assertEqual(handle.result(), self.order.email)
        self.order.refresh_from_db()
        self.assertEqual(self.order.receipts, 6)

    def test_waiting_runs_what_is_due(self) -> None:
        """As a view does that waits: handlers see what the test has written."""
        self.assertEqual(jobs().call(count), 1)
        self.assertEqual(receipt.enqueue_sync(self.order.pk).result(), self.order.email)
        self.assertEqual(jobs().wait(enqueue(receipt, self.order.pk)), self.order.email)
        later = receipt.options(delay="1h").enqueue_sync(self.order.pk)
        with self.assertRaisesRegex(WaitTimeout, "nobody works beside the test"):
            later.result()
        self.jobs.clock.advance("1h")
        self.assertEqual(later.result(), self.order.email)

    def test_a_handler_that_waits_for_another(self) -> None:
        """Both are called in the thread of the test."""
        self.assertEqual(waits.call_sync(self.order.pk), self.order.email)
        self.assertEqual(self.jobs.enqueued(), [])

    def test_drain_as_on_the_store(self) -> None:
        enqueue(duplicate, self.order.pk)
        jobs().drain()
        self.assertEqual(self.jobs.enqueued(), [])
        self.assertEqual(sum(Order.objects.values_list("receipts", flat=True)), 1)

    def test_what_a_handler_rolls_back_was_never_enqueued(self) -> None:
        with transaction.atomic():
            enqueue(duplicate, 404)
        self.jobs.run()
        self.assertEqual(len(self.jobs.all()), 1)
        with self.assertRaisesRegex(AssertionError, r"(?s)1 did:.*duplicate.*Order.DoesNotExist.*tasks\.py"):
            self.jobs.assert_none_failed()

    def test_a_thread_of_the_code_under_test(self) -> None:
        with ThreadPoolExecutor(3) as threads:
            handles = list(threads.map(receipt.enqueue_sync, [self.order.pk] * 9))
        self.jobs.assert_enqueued(receipt, count=9)
        self.jobs.run()
        self.assertEqual({handle.result() for handle in handles}, {self.order.email})

    def test_loops_are_not_confused(self) -> None:
        with self.assertRaisesRegex(ConfigError, r"call jobs.run\(\) here"):
            self.jobs.drain()

    async def test_an_async_test_of_a_plain_view(self) -> None:
        answer = (await self.async_client.post("/orders/", ADA)).json()
        self.jobs.assert_enqueued(receipt, args={"order_id": answer["order"]}, count=1)
        await self.jobs.drain()
        self.assertEqual((await Order.objects.aget(pk=answer["order"])).receipts, 1)
        self.assertEqual(await app.wait(UUID(answer["job"])), ADA["email"])
        with self.assertRaisesRegex(ConfigError, r"use: await jobs.drain\(\)"):
            self.jobs.run()

    async def test_an_async_test_waits(self) -> None:
        self.assertEqual(await count.call(), 1)
        self.assertEqual(await sync_to_async(receipt.call_sync)(self.order.pk), self.order.email)
        receipt.enqueue_sync(self.order.pk)  # a helper that blocks
        self.jobs.assert_enqueued(receipt, count=1)
        await self.jobs.drain()
        self.assertEqual((await Order.objects.aget(pk=self.order.pk)).receipts, 2)

    def test_no_other_helper_takes_the_app(self) -> None:
        with self.assertRaisesRegex(ConfigError, "use JobsMixin or jobs_in_memory"):
            in_memory(app)

    def test_the_mixin_comes_first(self) -> None:
        with self.assertRaisesRegex(ConfigError, r"class Wrong\(JobsMixin, TestCase\)"):
            type("Wrong", (TestCase, JobsMixin), {})
        with self.assertRaisesRegex(ConfigError, r"class Wrong\(StoreMixin, TransactionTestCase\)"):
            type("Wrong", (TransactionTestCase, StoreMixin), {})
        type("Right", (InATestCase,), {})


class Committed(JobsMixin, TransactionTestCase):
    def test_views_and_tasks(self) -> None:
        answer = self.client.post("/orders/", ADA).json()
        self.assertEqual(receipt.call_sync(answer["order"]), ADA["email"])
        self.jobs.assert_none_failed()
        self.assertEqual(Order.objects.get().receipts, 2)

    def test_a_worker_in_a_thread(self) -> None:
        order = Order.objects.create(**ADA)
        told: list[str] = []

        def call() -> None:
            told.append(receipt.call_sync(order.pk))
            connections.close_all()

        thread = threading.Thread(target=call)
        thread.start()
        thread.join(60)
        self.assertEqual(told, [ADA["email"]])


class OnTheStore(StoreMixin, TransactionTestCase):
    """Twice, as the second test finds what the first has left."""

    def test_connections_in_the_background_are_closed(self) -> None:
        self._waits()

    def test_and_again(self) -> None:
        self._waits()

    def _waits(self) -> None:
        self.assertEqual([], jobs().stats().queues)
        with self.assertRaises(WaitTimeout):
            count.options(wait="10ms").call_sync()
        count.enqueue_sync()
        jobs().drain()
        self.assertEqual(count.options(key="again").enqueue_sync().duplicate, False)
