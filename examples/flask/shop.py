"""A small web service with background jobs: ``flask --app shop:web run``, and ``headrace worker shop:jobs`` beside it.

With ``WORKER=here`` in the environment, the web process runs the jobs itself.
"""

import os
from typing import Any
from uuid import UUID

from flask import Flask, abort, current_app, request

from headrace import App
from headrace.contrib.flask import Headrace
from headrace.errors import JobNotFound, WaitTimeout

web = Flask(__name__)
web.config["SENDER"] = "shop@example.org"
jobs = App()
headrace = Headrace(web, jobs, worker=os.environ.get("WORKER") == "here")


@jobs.task(queue="mail")
def receipt(order_id: int) -> dict[str, str]:
    """Send a receipt. Tasks run in the application context."""
    return {"to": f"customer-{order_id}@example.org", "from": current_app.config["SENDER"]}


@web.post("/orders/<int:order_id>")
def order(order_id: int) -> dict[str, Any]:
    """Take an order. The answer says which job to ask for."""
    return {"job": str(receipt.enqueue_sync(order_id).id)}


@web.get("/jobs/<uuid:job_id>")
def look(job_id: UUID) -> dict[str, Any]:
    """Everything that is known about a job."""
    try:
        return headrace.jobs.get(job_id).to_dict()
    except JobNotFound as error:
        abort(404, str(error))


@web.get("/jobs/<uuid:job_id>/result")
def result(job_id: UUID) -> dict[str, Any]:
    """Wait for the result: ``GET /jobs/ID/result?wait=10``."""
    try:
        return {"result": headrace.jobs.wait(job_id, timeout=request.args.get("wait", 10.0, type=float))}
    except JobNotFound as error:
        abort(404, str(error))
    except WaitTimeout as error:
        abort(504, str(error))
