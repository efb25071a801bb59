"""Keeping: what stays of the past and for how long, and the duty that removes the rest. Which jobs end, and how, is not
decided here."""
