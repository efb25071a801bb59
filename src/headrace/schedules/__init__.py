"""Schedules: what users say, the calendar, plans, the planner, the ledger of slots."""
