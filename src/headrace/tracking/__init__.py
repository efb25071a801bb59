"""Trackers: subjects that are visited again and again. Nothing here visits one: a tracker makes jobs."""
