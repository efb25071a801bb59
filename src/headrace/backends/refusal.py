"""What a server refuses to those whom it has served before, or may serve in a moment: the same for every server."""

from __future__ import annotations

from headrace.errors import ConfigError, Rejected, SchemaMismatch, Unavailable


class NotLetIn(Unavailable, ConfigError):
    """The server turned the login down, or what it had let this user do: as the URL is, or as the server is set up.

    It is both. A process that opens a store has a setting to correct. One that is at work was let in before, and waits
    as in any outage: users and their rights are also changed by mistake, for a moment.
    """


class NotThere(Unavailable, SchemaMismatch):
    """What the store had a moment ago is gone: a deployment recreates it, or has removed it for good. A worker waits,
    as in any outage; a person who asks has to be told what is missing."""


class NotTaken(Rejected, ConfigError):
    """A function of ours on the server refuses what it was given, and says what it expects."""
