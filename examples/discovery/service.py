"""The pipeline as workers run it: ``headrace worker service:app --queue hunter``."""

from __future__ import annotations

import os
from pathlib import Path

from discovery import Discovery
from video_api import VideoApi

from headrace import App

TERMS = ("cats", "dogs", "birds", "trains")
HERE = Path.cwd()

app = App(
    os.environ.get("HEADRACE_URL", f"sqlite:///{HERE}/discovery.db"),
    vault={"url": os.environ.get("HEADRACE_VAULT__URL", f"file://{HERE}/vault")},
)
pipeline = Discovery(app, VideoApi(25))


@app.startup
async def begin() -> None:
    """Make the hot table, and search for the terms, unless that is done."""
    await pipeline.videos.create()
    await pipeline.hunt.add_many(TERMS)
