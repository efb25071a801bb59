"""Documents arrive fast, and their events are extracted later: on PostgreSQL, with your own tables.

A revision of a document and the job that extracts its events are stored in one transaction. So are the events and the
completion of that job. So no revision is ever without its job, and no event is ever there twice.

HEADRACE_URL=postgresql://localhost/archive headrace worker archive:app      a worker
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import psycopg

from headrace import App, Handle, Job, exponential

TABLES = (Path(__file__).parent / "tables.sql").read_text("utf-8")
DATED = re.compile(r"(\d{4}-\d{2}-\d{2}): (.+)")

app = App()
URL = app.client.settings.url
"""Of the store, which is the database of our own tables too."""


class RateLimited(Exception):
    """The model is busy; try again later."""


class NotADocument(Exception):
    """Nothing can be extracted from this; retrying does not help."""


# Thirty seconds after the first failure, a minute after the second, ten minutes at most; five attempts. What cannot get
# better is not retried.
PATIENTLY = exponential(5, base="30s", cap="10m", jitter=False, give_up_on=(NotADocument,))


@dataclass
class Revision:
    """One version of a document."""

    uid: str
    number: int
    text: str


def ingest(connection: psycopg.Connection[tuple[object, ...]], revision: Revision) -> Handle[int]:
    """Store a revision and its job. Both appear when the caller commits. The same revision twice is one job."""
    connection.execute(
        "INSERT INTO artifact_revision (uid, number, body) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        (revision.uid, revision.number, revision.text),
    )
    once = extract.options(key=f"{revision.uid}:{revision.number}")
    return app.bind(connection).enqueue(once, revision.uid, revision.number)


@app.task(queue="extraction", retry=PATIENTLY, result_ttl="1h", timeout="2m")
def extract(job: Job[None], uid: str, number: int) -> int:
    """Find the events of a revision."""
    with psycopg.connect(URL) as connection:
        [body] = connection.execute(
            "SELECT body FROM artifact_revision WHERE uid = %s AND number = %s", (uid, number)
        ).fetchone() or [""]
        events = understand(str(body), job.attempt)
        for day, what in events:
            connection.execute(
                "INSERT INTO event VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING", (uid, number, day, what)
            )
        app.bind(connection).complete(job, len(events))
    return len(events)


def understand(body: str, attempt: int) -> list[tuple[str, str]]:
    """Stands for a language model: slow, rate-limited, and sometimes at a loss."""
    if "busy" in body and attempt == 0:
        raise RateLimited("429: try again later")
    if not body.strip():
        raise NotADocument("the body is empty")
    return DATED.findall(body)
