"""Every test that takes ``store`` runs on every store there is."""

from tests.facades.conftest import memory, store

__all__ = ["memory", "store"]
