"""Start-up: ``import headrace``, the first use of what it loads late, and ``headrace --help``, in fresh processes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.systems.system import System

_IMPORT = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
_MODULES = "import headrace, sys; headrace.App; print(len(sys.modules))"


class Startup(Metric):
    """Measured once, on the memory system; a figure is the median of many processes."""

    name = "startup"
    needs = frozenset({"solo"})
    figures = (Figure("import", "ms"), Figure("import_app", "ms"), Figure("help", "ms"), Figure("modules", "modules"))
    """``import_app`` is ``from headrace import App``: what an import that loads late only puts off."""

    def applies(self, system: System) -> bool:
        return super().applies(system) and system.backend == "memory"

    def how(self, bench: Bench) -> str:
        return f"medians of {bench.sizes.starts} warm processes; the import alone, the command whole"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        command = Path(sys.executable).with_name("headrace")
        imports, apps, helps = [], [], []
        with bench.stage(system) as stage:
            for _ in range(bench.sizes.starts):
                imports.append(float(_python(_IMPORT.format("import headrace"), stage.folder)))
                apps.append(float(_python(_IMPORT.format("from headrace import App"), stage.folder)))
                start = time.perf_counter()
                _run([str(command), "--help"], stage.folder)
                helps.append(time.perf_counter() - start)
            found = {"modules": float(_python(_MODULES, stage.folder))}
        for name, seconds in (("import", imports), ("import_app", apps), ("help", helps)):
            found[name] = statistics.median(seconds) * 1e3
        return found


def _python(code: str, folder: Path) -> str:
    return _run([sys.executable, "-c", code], folder)


def _run(command: list[str], folder: Path) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(f"{Path(command[0]).name}: {error}") from error
