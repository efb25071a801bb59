"""A login that is turned down, the same for every server."""

from __future__ import annotations

from headrace.errors import ConfigError, Unavailable


class NotLetIn(Unavailable, ConfigError):
    """The server turned the login down: as the URL is, or as the server is set up.

    It is both. Who opens a store has a setting to correct. Who is at work was let in before, and waits as in any
    outage: users and their rights are also changed by mistake, for a moment.
    """
