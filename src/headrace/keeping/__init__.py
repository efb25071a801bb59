"""Keeping: what of the past stays, for how long, and who clears the rest away."""
