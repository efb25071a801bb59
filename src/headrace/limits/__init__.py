"""Limits: policies of queues and tenants, rates, and jobs that a full queue refuses. Stores enforce the limits."""
