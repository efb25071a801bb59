"""Payloads: values to bytes and back, packed into rows. Nothing here knows a store, an app or a worker."""
