"""The app whose worker ``headrace bench`` starts; ``HEADRACE_URL`` names its store."""

from __future__ import annotations

from headrace import App
from headrace.cli.bench_tasks import add_tasks

app = App()
app.client.guest = True
add_tasks(app)
