"""Payloads in objects: references, segments and the object stores under them."""
