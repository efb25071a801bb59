"""What the server and its client say, in our words."""

from __future__ import annotations

from redis import exceptions as told

from headrace.errors import BackendError, ConfigError, StoreFull, Unavailable

_PASSING = (
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MISCONF",
    "NOREPLICAS",
    "READONLY",
    "UNKILLABLE",
)


def translated(error: Exception, where: str) -> Exception:
    """The error to raise; itself where it is none of the server's."""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    match error:
        case told.OutOfMemoryError():
            return StoreFull(f"{where} has reached its maxmemory: {said}. Nothing was stored; work goes on by itself")
        case told.AuthenticationError() | told.NoPermissionError() | told.AuthenticationWrongNumberOfArgsError():
            return ConfigError(
                f"{where} refuses this user: {said}. Look at the user and password in the URL, and at its ACL"
            )
        case told.ReadOnlyError():
            return Unavailable(f"{where} is a replica just now, as during a failover: {said}. Nothing was changed")
        case told.ConnectionError() | told.TimeoutError() | told.BusyLoadingError():
            return Unavailable(f"{where} cannot serve just now: {said}")
        case told.ResponseError() if said.startswith(_PASSING):
            return Unavailable(f"{where} cannot serve just now: {said}")
        case told.ResponseError() if "OOM" in said:
            return StoreFull(f"{where} has reached its maxmemory: {said}. Nothing was stored; work goes on by itself")
        case told.RedisError():
            return BackendError(f"{where}: {said}")
    return Unavailable(f"{where} cannot serve just now: {said}") if isinstance(error, OSError) else error
