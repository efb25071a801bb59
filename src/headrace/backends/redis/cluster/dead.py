"""Too many dead letters over several shards: those go whose tenants have most in all shards together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from headrace.backends.redis.cluster.shard import Ended, EndedJob
from headrace.backends.redis.cluster.shards import Shards, every
from headrace.seam.dead_letter_shares import condemn, gives
from headrace.seam.records import Stamp, SweepClause


async def condemn_heaviest(
    shards: Shards, looks: Sequence[Ended], clause: SweepClause, bound: str, excess: int, at: Stamp
) -> tuple[dict[int, list[EndedJob]], bool]:
    """What goes in each shard, and whether there is more.

    A tenant that is not among those with most dead letters in some shard counts as having none there: it gives less.
    """
    held: Counter[bytes] = Counter()
    for most in await every(shard.heaviest(bound, clause.limit) for shard in shards.all):
        held.update(dict(most))
    heaviest = held.most_common(clause.limit + 1)
    gifts = gives(bound, [each for _, each in heaviest], excess, clause.limit)
    wanted = [(tenant, gift) for (tenant, _), gift in zip(heaviest, gifts, strict=False)]
    by_tenant: dict[bytes | None, list[tuple[EndedJob, int]]] = {
        None: [(job, number) for number, look in enumerate(looks) for job in look.jobs]
    }
    for number, found in enumerate(await every(shard.give(bound, wanted, clause, at) for shard in shards.all)):
        for tenant, job in found:
            by_tenant.setdefault(tenant, []).append((job, number))

    def oldest(tenant: bytes | None) -> Iterator[tuple[tuple[EndedJob, int], int]]:
        return (((job, number), job.size) for job, number in sorted(by_tenant.get(tenant, ())))

    condemned = condemn(bound, excess, clause.limit, heaviest, oldest)
    doomed: dict[int, list[EndedJob]] = {}
    for (job, number), _ in condemned[: clause.limit]:
        doomed.setdefault(number, []).append(job)
    return doomed, len(condemned) > clause.limit
