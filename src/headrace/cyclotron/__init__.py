"""Cyclotron's interface on any store: a manager that creates jobs, workers that dequeue them, and a janitor.

A program written for Cyclotron keeps its flow. Fields have their names from there; ``team_id`` is the tenant of a job
and ``function_id`` its task, so limits, pauses and filters work with them.
"""

from headrace.cyclotron.aggregates import Aggregate
from headrace.cyclotron.fields import JobInit
from headrace.cyclotron.janitor import Janitor, Report
from headrace.cyclotron.job import Job
from headrace.cyclotron.manager import Manager
from headrace.cyclotron.stored_job import StoredJob
from headrace.cyclotron.worker import Worker

__all__ = ["Aggregate", "Janitor", "Job", "JobInit", "Manager", "Report", "StoredJob", "Worker"]
