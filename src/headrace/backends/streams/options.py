"""What a user can say about windows."""

from __future__ import annotations

from msgspec import Struct

from headrace.errors import ConfigError


class StreamsOptions(Struct, frozen=True):
    """How large windows are, and how they are read."""

    window: int = 10_000
    """Jobs of one queue that wait in Valkey, at most. The others wait in PostgreSQL."""
    entry_bytes: int = 16 * 1024
    """A queue with a larger job that is due is given out by PostgreSQL."""
    horizon: int = 60_000_000
    """Microseconds. Delayed jobs that are due within it wait in Valkey."""
    count: int = 500
    """Jobs that one call takes from a window, at most."""
    consumer: str = ""
    """What the names of consumers begin with, such as the name of the pod."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("window", 100, 1_000_000),
            ("entry_bytes", 1_024, 1_048_576),
            ("horizon", 0, 86_400_000_000),
            ("count", 1, 10_000),
        ):
            if not least <= (value := getattr(self, name)) <= most:
                raise ConfigError(f"{name}: expected {least:,} to {most:,}, got {value:,}")
        if len(self.consumer) > 200 or not self.consumer.isprintable() or " " in self.consumer:
            raise ConfigError(
                f"consumer: expected up to 200 printable characters without blanks, got {self.consumer!r}"
            )
