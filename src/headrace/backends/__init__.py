"""Stores. Each package implements the waist (:mod:`headrace.seam.protocol`) and imports nothing above it, and no other
store; the modules beside them are what several stores share."""
