"""The app of ``chaos.worker`` for ``headrace worker``, with what it is told by its environment."""

from __future__ import annotations

import os
from pathlib import Path

from chaos.worker import make_app

app = make_app(
    os.environ["CHAOS_URL"], Path(os.environ["CHAOS_LEDGER"]), float(os.environ["CHAOS_SECONDS"]),
    lease=float(os.environ["CHAOS_LEASE"]),
)  # fmt: skip
