"""Stores. Each package implements the waist (:mod:`headrace.seam.protocol`) and imports nothing above it."""
