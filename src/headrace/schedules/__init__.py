"""Schedules: how users write them, the calendar, plans, the planner, the ledger of ticks. Nothing here runs jobs."""
