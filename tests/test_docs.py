"""Every Python block in the README and the docs runs."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

import headrace
from headrace import EventKind, Queue
from headrace.errors import ConfigError
from tests import valkey
from tests.postgres import server

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
SHOP = "//localhost/shop"
"""The PostgreSQL database of the pages."""
VALKEY = "//localhost:6379"
"""The Valkey server of the pages."""
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]


def _blank_database() -> str:
    """Its URL, from the slashes on."""
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS shop")
        connection.execute("CREATE DATABASE shop")
    return server().url("shop").removeprefix("postgresql:")


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
async def test_the_code_on_this_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one page share their names, top to bottom; await and async with stand at the top level."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    if page.name == "README.md":
        # The second block needs a worker, which runs in another terminal; here it gets one.
        text = text.replace(
            "```python\nawait welcome",
            "```python\nimport asyncio\nwork = asyncio.ensure_future(app.work())\nawait welcome",
        )
        text = text.replace(
            "# one trip to the store\n```",
            "# one trip to the store\napp.stop()\nawait work\nawait app.client.close()\n```",
        )
    if SHOP in text:
        text = text.replace(SHOP, _blank_database())
    if VALKEY in text:
        valkey.server().call("FLUSHALL")
        text = text.replace(VALKEY, f"//127.0.0.1:{valkey.server().port}")
    names: dict[str, object] = {"__name__": "page"}
    for block in BLOCK.findall(text):
        code = compile(block, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        waiting = eval(code, names)
        if inspect.isawaitable(waiting):
            await waiting


def test_whole_programs_run_as_files(tmp_path: Path) -> None:
    """Blocks that end in a ``__main__`` of their own."""
    programs = [(page, block) for page in WITH_CODE for block in BLOCK.findall(page.read_text()) if "__main__" in block]
    assert programs
    for number, (page, block) in enumerate(programs):
        file = tmp_path / f"program_{number}.py"
        file.write_text(block.replace(VALKEY, f"//127.0.0.1:{valkey.server().port}"))
        done = subprocess.run([sys.executable, file], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{page.relative_to(ROOT)}: {done.stderr}"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", prose):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    missing = [name for name in headrace.__all__ if not re.search(rf"`{name}\b", page)]
    assert not missing, f"docs/reference/api.md does not mention {', '.join(missing)}"


def test_every_event_is_in_the_reference() -> None:
    kinds, listeners = (ROOT / "docs/reference/events.md").read_text().split("## Listeners of a queue")
    with pytest.raises(ConfigError) as told:
        Queue("any", "memory://").on("no such event", print)
    names = str(told.value).split("there are: ")[1].split(", ")
    missing = [kind.value for kind in EventKind if f"\n| `{kind.value}` |" not in kinds]
    missing += [name for name in names if f"\n| `{name}` |" not in listeners]
    assert not missing, f"docs/reference/events.md does not mention {', '.join(missing)}"


def test_every_test_that_a_page_names_is_there() -> None:
    page = (ROOT / "docs" / "explain" / "cyclotron.md").read_text("utf-8")
    rows = re.findall(r"^\| (C\d+) \|(.*)$", page, re.MULTILINE)
    assert [number for number, _ in rows] == [f"C{number}" for number in range(1, 45)]
    missing = []
    for number, row in rows:
        named = re.findall(r"`([\w/.]*)::(\w+)`", row)
        assert named, number
        path = ""
        for given, test in named:
            path = given or path
            home = ROOT / "src" / "headrace" / "testing" if path.startswith("conformance/") else ROOT / "tests"
            if f"def {test}(" not in (home / path).read_text("utf-8"):
                missing.append(f"{number}: {path}::{test}")
    assert not missing
