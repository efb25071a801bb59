"""The example that ``make demo`` runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from headrace import connect

DEMO = Path(__file__).parents[2] / "examples" / "pipeline" / "run.py"


def demo(cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, DEMO]
    return subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)


def workers(project: Path) -> list[object]:
    async def main() -> list[object]:
        async with connect(f"sqlite:///{project / 'demo.db'}") as client:
            return list((await client.stats()).workers)

    return asyncio.run(main())


def test_the_demo(tmp_path: Path) -> None:
    project = tmp_path / "demo"
    first = demo(tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout.count("  ok  ") == 10
    assert "dead show" in first.stdout
    assert "The dashboard: http://127.0.0.1:" in first.stdout
    assert workers(project) == []

    (project / "pages" / "headrace.txt").unlink()
    changed = (project / "app.py").read_text().replace("return a + b", "return a - b")
    (project / "app.py").write_text(changed)
    second = demo(tmp_path)
    assert second.returncode == 1
    assert "You have changed app.py" in second.stdout
    assert "FAIL  A request to the worker, and its response: Unmet: expected 2 + 3 = 5, got -1" in second.stdout
    assert second.stdout.count("  ok  ") == 9
    assert (project / "app.py").read_text() == changed
    assert (project / "pages" / "headrace.txt").exists(), "what is missing is put back"
    assert workers(project) == []
