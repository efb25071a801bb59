"""The corner cases run on every store that the facades run on; a case of one store's own asks for that store."""

from tests.facades.conftest import store

__all__ = ["store"]
