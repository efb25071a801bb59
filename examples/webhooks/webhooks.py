"""Webhooks on Headrace: what to send where, what became of it, and how much of it one team may have at a time.

headrace worker webhooks:app    delivers what `send` has enqueued
"""

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

import msgspec
from fetcher import Answer, Fetcher, NoAnswer, Refused

from headrace import Again, App, Done, Fail, Handle, Job, NewJob, Outcome, Patch, Retry, Sections, exponential

Method = Literal["POST", "PUT", "PATCH", "DELETE", "GET"]
QUEUE = "webhooks"
OVERFLOW = "webhooks overflow"
TIMEOUT = 10.0
LONGEST_WAIT = 3_600.0
"""Seconds. A receiver that asks for more with ``Retry-After`` is asked again after these."""
TRIES = 8
TRIES_KEPT = 10
RETRIED = frozenset({408, 425, 429})
"""The statuses below 500 that say "later" rather than "no"."""

app = App(os.environ.get("HEADRACE_URL", "sqlite:///webhooks.db"))
fetcher = Fetcher()


class Try(msgspec.Struct, frozen=True):
    """One try to deliver a webhook."""

    at: datetime
    seconds: float
    status: int = 0
    """Of the answer; 0 if there was none."""
    said: str = ""
    """The start of the answer, or why there was none."""


class History(msgspec.Struct, frozen=True):
    """What is known of a webhook's tries: its ``vm_state``."""

    tries: list[Try] = []
    """The last of them."""

    def with_try(self, one: Try) -> "History":
        return History([*self.tries, one][-TRIES_KEPT:])

    def patch(self) -> Patch:
        """Stores it together with an outcome, and leaves the body alone."""
        return Patch(sections=Sections(vm_state=msgspec.json.encode(self)))


def webhook(
    team: str,
    url: str,
    body: bytes,
    *,
    method: Method = "POST",
    headers: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
    return_queue: str | None = None,
) -> NewJob:
    """The job that delivers a webhook. What to do is in its ``parameters``, the body by itself in its ``blob``. With a
    ``return_queue`` it does not end there, delivered or not, but goes on in that queue.

    Raises ``Refused`` if the URL is out of the question; names are resolved and checked when it is delivered.
    """
    fetcher.check(url, method, headers)
    job = deliver.options(tenant=team).job(url, method, dict(headers or {}), timeout, return_queue)
    return msgspec.structs.replace(job, sections=Sections(blob=body))


async def send(*webhooks: NewJob) -> list[Handle[object]]:
    """Enqueue webhooks. They are durable when this returns."""
    return await app.enqueue_many(webhooks)


async def set_rules() -> None:
    """No team takes all workers, and none fills the queue for the others: what does not fit goes to the overflow."""
    await app.policies.set(QUEUE, tenant_running=10, tenant_rate="100/s", depth=10_000)
    await app.policies.set(OVERFLOW, running=10, tenant_running=2, tenant_batch=1)


@app.task(name="deliver", queue=QUEUE, overflow=OVERFLOW, retry=exponential(TRIES, base="4s", cap="1h"), timeout="2m")
async def deliver(
    job: Job[None],
    url: str,
    method: Method = "POST",
    headers: dict[str, str] | None = None,
    timeout: float = TIMEOUT,
    return_queue: str | None = None,
) -> Outcome:
    """Send it once, and say what follows from the answer. A worker that dies meanwhile costs no attempt."""
    state = job.sections.get("vm_state")
    history = msgspec.json.decode(state, type=History) if state else History()
    sent = {"Content-Type": "application/json", **(headers or {}), "Webhook-Id": str(job.id)}
    at, began = datetime.now(UTC), time.monotonic()
    answer: Answer | NoAnswer | Refused
    try:
        answer = await fetcher.fetch(url, method, sent, job.sections.get("blob", b""), timeout)
    except (NoAnswer, Refused) as error:
        answer = error
    outcome = judge(answer, history, at, round(time.monotonic() - began, 3))
    if return_queue is None or (isinstance(outcome, Retry) and job.attempt + 1 < TRIES):
        return outcome
    return go_on(outcome, return_queue)


def go_on(outcome: Done[object] | Retry | Fail, queue: str) -> Again:
    """Instead of an end: the same job in another queue, in one step, with its history. Whoever pulls it there reads how
    it went, and ends it or sends it on."""
    return Again(patch=msgspec.structs.replace(outcome.patch or Patch(), queue=queue))


def judge(
    answer: Answer | NoAnswer | Refused, history: History, at: datetime, seconds: float
) -> Done[object] | Retry | Fail:
    """2xx: done. No answer, 5xx and the like: later. Anything else will not get better: a dead letter at once."""
    if not isinstance(answer, Answer):
        said = str(answer)
        patch = history.with_try(Try(at, seconds, said=said)).patch()
        return Fail(said, patch=patch) if isinstance(answer, Refused) else Retry(error=said, patch=patch)
    said = answer.body[:200].decode("utf-8", "replace")
    history = history.with_try(Try(at, seconds, answer.status, said))
    if 200 <= answer.status < 300:
        return Done({"status": answer.status, "tries": len(history.tries)}, patch=history.patch())
    error = f"status {answer.status}: {said}"
    if answer.status >= 500 or answer.status in RETRIED:
        return Retry(retry_after(answer), error=error, patch=history.patch())
    return Fail(error, patch=history.patch())


def retry_after(answer: Answer) -> float | None:
    """How many seconds the receiver wants to be left alone; None leaves it to the retry policy."""
    asked = answer.headers.get("retry-after", "").strip()
    if asked.isdecimal() and asked.isascii():
        seconds = float(asked[:12])
    else:
        try:
            at = parsedate_to_datetime(asked)
        except (ValueError, OverflowError):
            return None
        seconds = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    return min(seconds, LONGEST_WAIT) if seconds > 0 else None
