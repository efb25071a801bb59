"""Start-up: ``import headrace`` and ``headrace --help``, each in fresh processes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.systems.system import System

_IMPORT = "import time; start = time.perf_counter(); import headrace; print(time.perf_counter() - start)"


class Startup(Metric):
    """Measured once, on the memory system; a figure is the median of many processes."""

    name = "startup"
    needs = frozenset({"solo"})
    figures = (Figure("import", "ms"), Figure("help", "ms"), Figure("modules", "modules"))

    def applies(self, system: System) -> bool:
        return super().applies(system) and system.backend == "memory"

    def how(self, bench: Bench) -> str:
        return f"medians of {bench.sizes.starts} warm processes; the import alone, the command whole"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        command = Path(sys.executable).with_name("headrace")
        imports, helps = [], []
        with bench.stage() as stage:
            for _ in range(bench.sizes.starts):
                imports.append(float(_output([sys.executable, "-c", _IMPORT], stage.folder)))
                start = time.perf_counter()
                if _succeeds([str(command), "--help"], stage.folder):
                    helps.append(time.perf_counter() - start)
            count = int(_output([sys.executable, "-c", "import headrace, sys; print(len(sys.modules))"], stage.folder))
        found = {"import": statistics.median(imports) * 1e3, "modules": count}
        return found | ({"help": statistics.median(helps) * 1e3} if helps else {})


def _output(command: list[str], folder: Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, timeout=60).stdout


def _succeeds(command: list[str], folder: Path) -> bool:
    try:
        return subprocess.run(command, capture_output=True, cwd=folder, timeout=60).returncode == 0
    except OSError:
        return False
