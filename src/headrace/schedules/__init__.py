"""Schedules: how users write them, the calendar, plans, the planner, the history of ticks. Nothing here runs jobs."""
