"""The documented contract of Django's Tasks framework. Runs inside a Django project, as ``orders.contract``."""

from datetime import datetime, timedelta
from queue import Queue
from threading import Event, Thread

from django.db import transaction
from django.test import TransactionTestCase
from django.utils import timezone
from orders.tasks import add, greet, receipt, refuse

from headrace.contrib.django import jobs
from headrace.contrib.django.test import StoreMixin
from headrace.errors import JobCancelled

try:
    from django import tasks as framework
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:
    import django_tasks as framework
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started

STATUSES = ("READY", "RUNNING", "SUCCESSFUL", "FAILED")
READY, RUNNING, SUCCESSFUL, FAILED = (framework.TaskResultStatus[name] for name in STATUSES)

began, may_end = Event(), Event()


@framework.task
def hold() -> None:
    """Runs until it may end."""
    began.set()
    may_end.wait(60)


@framework.task(takes_context=True)
def look(context, times: int = 0):
    """Says what others see of it while it runs; fails so many times before."""
    seen = look.get_result(context.task_result.id)
    if context.attempt <= times:
        raise ValueError(context.task_result.worker_ids[-1])
    own = context.task_result
    return {
        "status": seen.status == RUNNING and own.status == RUNNING,
        "started": own.enqueued_at <= seen.started_at <= seen.last_attempted_at <= timezone.now(),
        "workers": own.worker_ids,
        "seen": seen.worker_ids,
    }


class Enqueueing(StoreMixin, TransactionTestCase):
    def test_a_result_is_ready(self) -> None:
        before = timezone.now()
        result = add.enqueue(1, b=2)
        self.assertEqual((result.status, result.args, result.kwargs), (READY, [1], {"b": 2}))
        self.assertEqual((result.task, result.backend, result.errors, result.worker_ids), (add, "default", [], []))
        self.assertIsInstance(result.id, str)
        self.assertTrue(before <= result.enqueued_at <= timezone.now())
        self.assertEqual((result.started_at, result.finished_at, result.last_attempted_at), (None, None, None))
        self.assertFalse(result.is_finished)
        self.assertEqual(result.attempts, 0)
        with self.assertRaisesRegex(ValueError, "not finished"):
            result.return_value

    async def test_the_same_in_async_code(self) -> None:
        result = await add.aenqueue(1)
        self.assertEqual(result.status, READY)
        again = await add.aget_result(result.id)
        self.assertEqual((again.id, again.status, again.args), (result.id, READY, [1]))
        await result.arefresh()
        self.assertEqual(result.status, READY)

    def test_arguments_become_json(self) -> None:
        result = add.enqueue((1, 2), b=[3])
        self.assertEqual(result.args, [[1, 2]])
        self.assertEqual(add.get_result(result.id).args, [[1, 2]])

    def test_arguments_that_are_no_json_are_refused(self) -> None:
        for bad in ({1, 2}, object(), timezone.now()):
            with self.assertRaises(TypeError):
                add.enqueue(bad)
        self.assertEqual(jobs().stats().queues, [])

    def test_in_a_transaction(self) -> None:
        with transaction.atomic():
            kept = add.enqueue(1)
            try:
                with transaction.atomic():
                    dropped = add.enqueue(2)
                    raise KeyError
            except KeyError:
                pass
            with self.assertRaises(TaskResultDoesNotExist):
                add.get_result(kept.id)
        self.assertEqual(add.get_result(kept.id).args, [1])
        with self.assertRaises(TaskResultDoesNotExist):
            add.get_result(dropped.id)

    def test_what_is_refused(self) -> None:
        for wrong in (
            {"queue_name": "elsewhere"},
            {"priority": 101},
            {"priority": -101},
            {"priority": 0.5},
            {"run_after": datetime(2030, 1, 1)},
        ):
            with self.assertRaises(InvalidTask, msg=str(wrong)):
                add.using(**wrong).enqueue(1)
        with self.assertRaises(InvalidTask):
            framework.task(lambda: None)


class Running(StoreMixin, TransactionTestCase):
    def test_success(self) -> None:
        result = add.enqueue(1, b=2)
        jobs().drain()
        result.refresh()
        self.assertEqual((result.status, result.return_value, result.errors), (SUCCESSFUL, 3, []))
        self.assertTrue(result.is_finished)
        self.assertEqual(result.attempts, 1)
        self.assertTrue(result.enqueued_at <= result.started_at <= result.finished_at)
        self.assertEqual(result.last_attempted_at, result.started_at)

    def test_while_it_runs(self) -> None:
        result = look.enqueue()
        jobs().drain()
        result.refresh()
        self.assertEqual(len(result.return_value["seen"]), 1)
        self.assertEqual(result.worker_ids, result.return_value["workers"])
        self.assertTrue(result.return_value["status"] and result.return_value["started"])

    def test_several_attempts(self) -> None:
        result = look.using(backend="patient").enqueue(2)
        self.assertEqual(result.backend, "patient")
        told: list[str] = []
        for attempts in (1, 2):
            jobs().drain()
            result.refresh()
            self.assertEqual((result.status, result.attempts, len(result.errors)), (READY, attempts, attempts))
            failure = jobs().get(result.id).failures[-1]
            told.append(failure.message)
            self.assertEqual(result.worker_ids, told)
            self.assertTrue(result.enqueued_at <= result.started_at <= result.last_attempted_at)
            jobs().reschedule(result.id)
        jobs().drain()
        result.refresh()
        self.assertEqual((result.status, result.attempts, len(result.errors)), (SUCCESSFUL, 3, 2))
        self.assertEqual(result.worker_ids[:2], told)
        self.assertEqual(result.worker_ids, result.return_value["workers"])
        self.assertEqual((result.return_value["seen"][:2], len(result.return_value["seen"])), (told, 3))
        self.assertTrue(result.started_at < result.last_attempted_at <= result.finished_at)

    def test_a_result_that_is_not_kept(self) -> None:
        result = add.using(backend="forgetful").enqueue(1)
        jobs().drain()
        result.refresh()
        self.assertEqual((result.status, result.return_value, result.attempts), (SUCCESSFUL, None, 1))

    def test_a_cancelled_task_has_failed_whatever_its_thread_still_does(self) -> None:
        finished: Queue[str] = Queue()

        def hear(sender, task_result, **more) -> None:
            finished.put(str(task_result.status))

        began.clear()
        may_end.clear()
        task_finished.connect(hear)
        worker = Thread(target=jobs().drain)
        try:
            result = hold.enqueue()
            worker.start()
            self.assertTrue(began.wait(60))
            jobs().cancel(result.id)
            with self.assertRaises(JobCancelled):
                jobs().wait(result.id, "60s")
            may_end.set()
            self.assertEqual(finished.get(timeout=60), "FAILED")
        finally:
            may_end.set()
            worker.join()
            task_finished.disconnect(hear)
        result.refresh()
        self.assertEqual(result.status, FAILED)

    async def test_calls_without_a_worker(self) -> None:
        self.assertEqual((add.call(1, b=2), await add.acall(1)), (3, 2))

    def test_failure(self) -> None:
        result = refuse.enqueue("no")
        jobs().drain()
        result.refresh()
        self.assertEqual(result.status, FAILED)
        [error] = result.errors
        self.assertIs(error.exception_class, ValueError)
        self.assertIn("ValueError: no", error.traceback)
        self.assertEqual(result.attempts, 1)
        self.assertIsNotNone(result.finished_at)
        with self.assertRaisesRegex(ValueError, "failed"):
            result.return_value

    def test_an_async_task_with_a_context(self) -> None:
        result = greet.enqueue("ada@example.org")
        jobs().drain()
        result.refresh()
        self.assertEqual(result.return_value, {"to": "ada@example.org", "attempt": 1, "id": result.id})

    def test_higher_priorities_run_first(self) -> None:
        """Headrace runs lower numbers first, whatever the order of enqueues."""
        results = [add.using(priority=priority).enqueue(priority) for priority in (0, -100, 100, 7)]
        stored = {jobs().get(result.id).priority: result.args[0] for result in results}
        self.assertEqual([stored[number] for number in sorted(stored)], [100, 7, 0, -100])

    def test_run_after(self) -> None:
        later = add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
        now = add.using(run_after=timezone.now() - timedelta(hours=1)).enqueue(1)
        jobs().drain()
        self.assertEqual((add.get_result(later.id).status, add.get_result(now.id).status), (READY, SUCCESSFUL))

    def test_signals(self) -> None:
        told: list[tuple[str, str, str]] = []

        def listener(name: str):
            def hear(sender, task_result, **more) -> None:
                told.append((name, sender.__name__, str(task_result.status)))

            return hear

        signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
        hearing = {name: listener(name) for name in signals}
        for name, signal in signals.items():
            signal.connect(hearing[name])
        try:
            add.enqueue(1)
            jobs().drain()
            refuse.enqueue("no")
            jobs().drain()
        finally:
            for name, signal in signals.items():
                signal.disconnect(hearing[name])
        expected = [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]
        expected += [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "FAILED")]
        self.assertEqual(told, [(name, "HeadraceBackend", status) for name, status in expected])


class Looking(StoreMixin, TransactionTestCase):
    def test_an_unknown_result(self) -> None:
        for unknown in ("123", "01a3185c-5000-7000-98a7-dbefd82c07cd", ""):
            with self.assertRaises(TaskResultDoesNotExist):
                add.get_result(unknown)

    def test_the_result_of_another_task(self) -> None:
        result = add.enqueue(1)
        with self.assertRaises(TaskResultMismatch):
            refuse.get_result(result.id)

    def test_a_job_that_is_no_task_of_django(self) -> None:
        job = jobs().enqueue(receipt, 1)
        with self.assertRaises(TaskResultDoesNotExist):
            add.get_result(str(job.id))

    def test_what_the_backend_supports(self) -> None:
        backend = framework.default_task_backend
        self.assertTrue(
            backend.supports_defer
            and backend.supports_async_task
            and backend.supports_get_result
            and backend.supports_priority
        )
