"""The examples take their store from where users say which: the environment, or ``headrace.toml``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("told", ["variable", "file"])
@pytest.mark.parametrize(
    ("example", "app"),
    [("fastapi", "shop.jobs"), ("flask", "shop.jobs"), ("webhooks", "webhooks.app"), ("documents", "archive.app")],
)
def test_an_app_is_on_the_store_that_users_name(example: str, app: str, told: str, tmp_path: Path) -> None:
    url = "postgresql://db.example.org/jobs"
    given = {name: value for name, value in os.environ.items() if name != "HEADRACE_URL"}
    if told == "variable":
        given["HEADRACE_URL"] = url
    else:
        (tmp_path / "headrace.toml").write_text(f'url = "{url}"\n')
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import {app.split('.')[0]} as example; " + (
        f"print(example.{app.split('.')[1]}.client.settings.url)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, EXAMPLES / example],
        cwd=tmp_path, env=given, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == (url, "")
