"""How the demo shows its progress: live on a terminal, line by line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class Board:
    """Titles, each with its outcome once there is one."""

    def __init__(self, titles: list[str]) -> None:
        self._titles = titles
        self._outcomes: dict[str, tuple[bool, str]] = {}
        self._began = time.monotonic()
        self._live: Any = None

    def __enter__(self) -> Board:
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(get_renderable=self._table, refresh_per_second=8)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def tell(self, title: str, held: bool, outcome: str) -> None:
        """A step has ended."""
        self._outcomes[title] = (held, outcome)
        if self._live is None:
            seconds = time.monotonic() - self._began
            print(f"{seconds:5.1f} s  {'ok  ' if held else 'FAIL'}  {title}: {outcome}", flush=True)

    def _table(self) -> Any:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for title in self._titles:
            held, outcome = self._outcomes.get(title, (None, ""))
            mark = Spinner("dots") if held is None else Text("✓", "green") if held else Text("✗", "red")
            table.add_row(mark, Text(title), Text(outcome, "dim" if held else "red"))
        return table
