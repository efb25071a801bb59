"""Crash points: every flow of store calls, cut short before and after each of its calls, on any backend.

A flow's process dies before its i-th call, or after the store has done it but before the reply; another process then
does what the contract tells it to do (repeat, reap, work on), and in the end no job is lost or doubled, nobody wrote
without a lease, ended jobs stayed as they were, keys are free again, and batches are whole. A backend proves itself
with a few lines::

    @pytest.mark.parametrize("point", crash_points(), ids=str)
    async def test_a_crash_loses_and_doubles_nothing(point: CrashPoint, tmp_path: Path) -> None:
        await check_crash(connect, tmp_path, point)

For a store that outlives its process, :func:`kill_everywhere` dies in earnest: a process per point, by SIGKILL::

    async def test_a_kill_loses_and_doubles_nothing(tmp_path: Path) -> None:
        for point, place in kill_everywhere("package.module:connect", tmp_path):
            await check_kill(connect, place, point)

``python -m headrace.testing.crashpoints`` lists the points.
"""

from headrace.testing.crashpoints.interrupted import CrashPoint
from headrace.testing.crashpoints.points import crash_points, listing
from headrace.testing.crashpoints.trial import check_crash, check_kill, kill_everywhere

__all__ = ["CrashPoint", "check_crash", "check_kill", "crash_points", "kill_everywhere", "listing"]
