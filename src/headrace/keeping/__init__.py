"""Keeping: what stays of the past and for how long, and the duty that removes the rest."""
