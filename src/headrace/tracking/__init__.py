"""Trackers: subjects that are visited again and again."""
