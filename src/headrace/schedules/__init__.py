"""Schedules: how users write them, the calendar, plans, the planner, and the ledger of ticks."""
