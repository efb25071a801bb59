"""The tests of the shop: ``python manage.py test``."""

import asyncio
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from headrace import Cron, Every
from headrace.contrib.django import app, bind, enqueue, jobs
from headrace.contrib.django.test import JobsMixin, StoreMixin

from .models import Order
from .tasks import add, count, duplicate, receipt, refuse_order, sign_in


class OrderTests(JobsMixin, TestCase):
    """Within the transaction of a test case, which is never committed."""

    def test_an_order_sends_a_receipt(self) -> None:
        answer = self.client.post("/orders/", {"email": "ada@example.org"}).json()
        self.jobs.assert_enqueued(receipt, args={"order_id": answer["order"]}, queue="mail", count=1)
        self.jobs.run()
        self.assertEqual(Order.objects.get().receipts, 1)
        [job] = self.jobs.all()
        self.assertEqual((str(job.id), job.state, job.result), (answer["job"], "completed", "ada@example.org"))

    def test_what_is_rolled_back_sends_none(self) -> None:
        with self.assertRaises(RuntimeError):
            self.client.post("/orders/", {"email": "ada@example.org", "fail": "yes"})
        self.assertEqual((self.jobs.enqueued(), Order.objects.count()), ([], 0))

    def test_a_part_that_is_rolled_back(self) -> None:
        kept = Order.objects.create(email="kept@example.org")
        with transaction.atomic():
            enqueue(receipt, kept.pk)
            try:
                with transaction.atomic():
                    enqueue(receipt, 404)
                    raise KeyError
            except KeyError:
                pass
        self.jobs.assert_enqueued(receipt, args={"order_id": kept.pk}, count=1)
        self.assertEqual(len(self.jobs.enqueued()), 1)

    def test_bound_to_the_transaction(self) -> None:
        with transaction.atomic():
            handle = bind().enqueue(receipt.options(delay="1h"), 7)
        self.assertEqual([job.id for job in self.jobs.enqueued(receipt)], [handle.id])

    def test_a_task_that_enqueues_another(self) -> None:
        order = Order.objects.create(email="ada@example.org")
        enqueue(duplicate, order.pk)
        self.jobs.run()
        self.assertEqual(sorted(Order.objects.values_list("receipts", flat=True)), [0, 1])
        self.assertEqual(self.jobs.enqueued(), [])

    def test_async_tasks_see_the_same_data(self) -> None:
        Order.objects.create(email="ada@example.org")
        enqueue(count)
        self.jobs.run()
        self.assertEqual(self.jobs.all()[0].result, 1)

    def test_a_job_that_fails_is_due_again_later(self) -> None:
        enqueue(receipt, 404)
        self.jobs.run()
        [job] = self.jobs.enqueued(receipt)
        self.assertEqual((job.attempt, job.failures[0].type), (1, "Order.DoesNotExist"))
        Order.objects.create(pk=404, email="late@example.org")
        self.jobs.clock.advance("1h")
        self.jobs.run()
        self.assertEqual(Order.objects.get().receipts, 1)

    def test_a_callback_that_is_captured_runs_once(self) -> None:
        order = Order.objects.create(email="ada@example.org")
        with self.captureOnCommitCallbacks(execute=True):
            enqueue(receipt, order.pk)
        self.jobs.run()
        self.assertEqual(Order.objects.get().receipts, 1)

    def test_a_task_of_django_itself(self) -> None:
        result = add.enqueue(2, b=3)
        self.jobs.run()
        result.refresh()
        self.assertEqual(result.return_value, 5)

    async def test_in_an_async_test(self) -> None:
        order = await Order.objects.acreate(email="ada@example.org")
        await receipt.enqueue(order.pk)
        await self.jobs.drain()
        self.assertEqual((await Order.objects.aget()).receipts, 1)


class CommittedTests(JobsMixin, TransactionTestCase):
    """With transactions that are committed."""

    def test_at_once_without_a_transaction(self) -> None:
        order = Order.objects.create(email="ada@example.org")
        enqueue(receipt, order.pk)
        self.assertEqual(len(self.jobs.enqueued(receipt)), 1)
        self.jobs.run()
        self.assertEqual(Order.objects.get().receipts, 1)


class StoreTests(StoreMixin, TransactionTestCase):
    """On the store in the test database, which ``migrate`` has made."""

    def test_jobs_are_in_the_test_database(self) -> None:
        order = Order.objects.create(email="ada@example.org")
        with transaction.atomic():
            first = enqueue(receipt, order.pk)
        second = enqueue(receipt, order.pk)
        self.assertIn("/test_", app.client.settings.url)
        self.assertEqual({jobs().get(first).state, jobs().get(second).state}, {"available"})
        jobs().drain()
        self.assertEqual(Order.objects.get().receipts, 2)

    def test_wait_for_a_result(self) -> None:
        result = add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
        self.assertEqual(jobs().get(result.id).state, "available")
        self.assertEqual(asyncio.run(_state(result.id)), "READY")


async def _state(result_id: str) -> str:
    return str((await add.aget_result(result_id)).status)


class AdminTests(JobsMixin, TestCase):
    """The pages of the admin."""

    def setUp(self) -> None:
        User.objects.create_superuser("root", password="root")
        self.client.login(username="root", password="root")
        enqueue(receipt, 1)
        enqueue(receipt.options(key="<script>"), 404)

    def test_pages(self) -> None:
        self.jobs.enqueued()
        index = self.client.get("/admin/").content.decode()
        for name in ("job", "deadletter", "queue", "schedule"):
            self.assertIn(f"/admin/headrace/{name}/", index)
            page = self.client.get(f"/admin/headrace/{name}/")
            self.assertEqual(page.status_code, 200)
        listed = self.client.get("/admin/headrace/job/?queue=mail&state=available&task=orders.tasks.receipt")
        self.assertContains(listed, "orders.tasks.receipt", count=3)
        self.assertNotContains(self.client.get("/admin/headrace/job/?state=running"), "<td>orders.tasks.receipt")
        self.assertContains(self.client.get("/admin/headrace/queue/"), "<td>mail</td>")
        job = self.jobs.enqueued()[1]
        page = self.client.get(f"/admin/headrace/job/{job.id}/change/")
        self.assertContains(page, "&lt;script&gt;")
        self.assertContains(page, "order_id")
        enqueue(sign_in, "ada@example.org", "s3cret")
        self.jobs.enqueued()
        listed = self.client.get("/admin/headrace/job/?task=orders.tasks.sign_in")
        self.assertContains(listed, "<td>due</td>")
        job = self.jobs.enqueued(sign_in)[0]
        page = self.client.get(f"/admin/headrace/job/{job.id}/change/")
        self.assertContains(page, "•••")
        self.assertNotContains(page, "s3cret")

    def test_dead_letters(self) -> None:
        """Each with its reason, and the tracebacks of its failures."""
        dead, waiting = enqueue(receipt.options(max_attempts=1), 404), enqueue(receipt.options(delay="1h"), 7)
        refused = enqueue(refuse_order, 9)
        self.jobs.run()
        listed = self.client.get("/admin/headrace/deadletter/")
        self.assertContains(listed, f"/admin/headrace/job/{dead}/change/")
        self.assertContains(listed, "<td>orders.tasks.receipt</td><td>mail</td><td>failed</td><td>1</td>")
        self.assertContains(listed, "retries exhausted</td>", count=1)
        self.assertContains(listed, "sold out</td>", count=1)
        self.assertNotContains(listed, str(waiting))
        listed = self.client.get("/admin/headrace/deadletter/?reason=sold+out")
        self.assertContains(listed, str(refused))
        self.assertNotContains(listed, str(dead))
        page = self.client.get(f"/admin/headrace/job/{dead}/change/")
        self.assertContains(page, "retries exhausted")
        self.assertContains(page, "<h2>Attempt 1: Order.DoesNotExist: Order matching query does not exist.</h2>")
        self.assertContains(page, "<pre>Traceback (most recent call last):")
        self.assertContains(page, "order = Order.objects.get(pk=order_id)")
        page = self.client.get(f"/admin/headrace/job/{waiting}/change/")
        self.assertContains(page, '<p class="help">It is scheduled')
        self.assertNotContains(page, "<pre>")

    def test_queues(self) -> None:
        """In numbers: one job of the three is later, and one queue is paused."""
        enqueue(receipt.options(delay="1h"), 3)
        enqueue(duplicate.options(queue="copies"), 4)
        jobs().wait_for(app.client.pause("copies"))
        self.jobs.enqueued()
        listed = self.client.get("/admin/headrace/queue/")
        self.assertInHTML(_row("mail", 3, 1, 0, "", 0, 0, 0), listed.content.decode())
        self.assertInHTML(_row("copies", 1, 0, 0, "yes", 0, 0, 0), listed.content.decode())

    def test_schedules(self) -> None:
        at = timezone.make_aware(datetime(2100, 1, 1, 6))
        for spec in (
            Every("1h", receipt.job(1), name="hourly", start=at),
            Cron("0 6 * * *", count.job(), name="daily"),
        ):
            jobs().wait_for(app.schedules.put(spec))
        jobs().wait_for(app.schedules.disable("daily"))
        listed = self.client.get("/admin/headrace/schedule/")
        self.assertContains(listed, "<td>hourly</td><td>every 1h</td>")
        self.assertContains(listed, "<td>orders.tasks.receipt</td><td>mail</td><td>yes</td>")
        self.assertContains(listed, "<td>2100-01-01 06:00:00</td>")
        self.assertContains(listed, "<td>daily</td><td>0 6 * * *</td>")
        self.assertContains(listed, "<td>orders.tasks.count</td><td>mail</td><td>no</td>")
        self.assertNotContains(self.client.get("/admin/headrace/schedule/?queue=other"), "hourly")

    def test_nothing_can_be_changed(self) -> None:
        job = self.jobs.enqueued()[0]
        self.assertEqual(self.client.get("/admin/headrace/job/add/").status_code, 403)
        self.assertEqual(self.client.post(f"/admin/headrace/job/{job.id}/delete/", {"post": "yes"}).status_code, 403)
        self.assertEqual(self.client.get("/admin/headrace/job/nonsense/change/").status_code, 404)
        self.assertEqual(len(self.jobs.enqueued()), 2)

    def test_only_for_those_with_the_right(self) -> None:
        self.client.logout()
        User.objects.create_user("clerk", password="clerk", is_staff=True)
        self.client.login(username="clerk", password="clerk")
        self.assertEqual(self.client.get("/admin/headrace/job/").status_code, 403)


def _row(*cells: object) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
