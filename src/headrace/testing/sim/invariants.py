"""The invariants that the checker knows, by number."""

INVARIANTS = {
    "I1": "every acknowledged job ends in exactly one way, or waits for a lawful reason; none is lost",
    "I2": "nothing runs or is stored that nobody asked for",
    "I3": "the leases of one job never overlap on the store's clock; a live lease is not taken away",
    "I4": "no write is accepted from a lease that is not current, and none refused from one that is",
    "I5": "an end is final; only a recorded requeue leaves it",
    "I6": "epoch = number of grants; attempts and losses are counted exactly and stay within their limits",
    "I7": "two runs of a job overlap only if the first one's lease ended before the second was granted",
    "I8": "claims follow (priority, run_at, id) over all claimable jobs",
    "I9": "no job starts before it is due or after it has expired",
    "I10": "one job per slot of a schedule; slots lie on its grid and none is left out; late ones go by their policy",
    "I13": "one accepted job per id and per key; a key is free again after every way to end",
    "I14": "a cancelled job does not start; a cancel request reaches the holder and outlives a retry",
    "I15": "whoever waits gets that job's own end, or a timeout in time; no result outlives its ttl",
    "I16": "answers equal the store, row by row",
    "I17": "a sweep removes ended jobs that its clause condemns, and nothing else; a dry run tells exactly",
    "I21": "counters are exact",
    "I22": "when faults stop, all work gets done",
    "I23": "payloads come out as they went in",
    "I26": "nothing is claimed from what is paused",
}
