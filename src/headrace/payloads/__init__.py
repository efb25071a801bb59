"""Payloads: values to bytes and back, packed into rows."""
