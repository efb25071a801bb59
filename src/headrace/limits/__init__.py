"""Limits: policies of queues and tenants, rates, and what happens to jobs that a full queue refuses."""
