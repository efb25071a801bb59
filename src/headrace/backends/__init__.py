"""Stores. Each package implements the waist (:mod:`headrace.protocol`) and imports nothing above it."""
