"""A child process of the benchmark: one system in one role. Runs in any venv, so it needs nothing but Python.

``python -m benchmarks.actor '{"system": …, "role": …, "core": …, "arguments": {…}}'``
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.gate import Gate
from benchmarks.systems import load


def main(text: str) -> None:
    """Play the role, and say what came of it."""
    order: dict[str, Any] = json.loads(text)
    if order["core"] is not None:
        os.sched_setaffinity(0, {order["core"]})
    gate = Gate()
    system = load(order["system"])
    result = getattr(system, order["role"])(gate, **order["arguments"])
    gate.say({"result": result})


if __name__ == "__main__":
    main(sys.argv[1])
