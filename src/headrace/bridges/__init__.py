"""Bridges between Headrace and other systems that carry messages. Nothing of Headrace imports this room."""
