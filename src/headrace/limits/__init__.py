"""Limits: policies of queues and tenants, rates, and jobs that a full queue refuses. Nothing here
counts: stores enforce the limits."""
