"""Limits: policies of queues and tenants, rates, and what becomes of jobs that a full queue refuses."""
