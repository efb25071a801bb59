"""Dead letters of which there are too many, by count or bytes: the store counts what goes of them."""

from __future__ import annotations

from headrace.api.client import Client
from headrace.cyclotron.aggregates import Aggregate, aggregates_of
from headrace.keeping.sweeper import Sweeper
from headrace.types import JobState


class Surplus:
    """Removes them. Workers do the same before they add to them; what remains is what the janitor itself has added,
    and what is over bounds that were lowered."""

    def __init__(self, client: Client, spare: int) -> None:
        self._client = client
        self._spare = spare

    async def run(self) -> int:
        """Remove what is over the bounds of now; returns how many jobs went."""
        client = self._client
        backend = await client.backend()
        sweeper = Sweeper(
            backend,
            client.clock,
            client.observers,
            client.settings.retention,
            self._spare,
            vault=client.settings.vault.url is not None,
        )
        situation = await sweeper.look()
        bounds = situation.bounds[JobState.FAILED]
        if bounds.count is None and bounds.bytes is None:
            return 0
        return (await sweeper.sweep(sweeper.clause(bounds, situation, by_age=False))).deleted

    async def aggregates(self) -> list[Aggregate]:
        """The store's counts of what sweeps have removed."""
        archive, found = (await self._client.backend()).archive, []
        if archive is not None:
            hour = -1
            while removals := await archive.removals(hour):
                found += aggregates_of(removals)
                hour = removals[0].hour
        return found
