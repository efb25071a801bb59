"""The books of a Valkey store: whether every index says what the jobs themselves say."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from headrace.backends.redis.blob import JOB, KEPT, NONE, STATE, Head, Job, State
from headrace.backends.redis.timetable import unpack_schedule, unpack_tick

AVAILABLE, RUNNING, PAUSED, COMPLETED, CANCELLED, FAILED = range(6)
ENDED = (COMPLETED, CANCELLED, FAILED)
KINDS = {
    "j", "s", "a", "u", "u:", "r:", "p:", "y", "l", "x:", "d:", "dm", "h", "hx", "e", "c", "k", "w", "q", "qn", "qi",
    "z", "n", "b", "W", "X", "g:", "v", "S", "Sd", "Sn", "Sl:", "Sh:", "Sr", "T", "T:",
}  # fmt: skip
"""Of the keys that a store of one shard may have; those that end in a colon come with a name."""
SIGNALS = 8
_KEY = Struct(">16sQB")
_LENGTHS = Struct(">5I")
_PATCHES = Struct(">4I")
_head = msgspec.msgpack.Decoder(Head).decode
_inboxes = msgspec.msgpack.Decoder(list[str]).decode


class Known(NamedTuple):
    """A job, by what it came with and by what is noted of its state."""

    state: int
    cancel: int
    instant: int
    held_until: int
    size: int
    qid: int
    priority: int
    keyed: int
    expires_at: int
    run_at: int
    text: bytes
    head: Head
    weight: int
    """Bytes that it takes up, counted anew."""


class Audit:
    """One look at everything. ``call`` sends a command to the server, which must be at rest."""

    def __init__(self, call: Callable[..., Any], base: str = "headrace{jobs}") -> None:
        self._call = call
        self._base = base
        self._problems: list[str] = []
        self._names: dict[str, list[bytes]] = defaultdict(list)
        self._list_keys()
        self._ready = self._read_ready()
        self._jobs = self._read_jobs()

    def problems(self) -> list[str]:
        """What does not fit."""
        for check in (
            self._check_ids, self._check_tenants, self._check_queues, self._check_ready, self._check_expiring,
            self._check_leases, self._check_ends, self._check_results, self._check_cells, self._check_keys,
            self._check_waiters, self._check_counts, self._check_sizes, self._check_workers, self._check_signals,
            self._check_schedules, self._check_ledger,
        ):  # fmt: skip
            check()
        return self._problems

    def _expect(self, name: str, found: object, expected: object) -> None:
        if found != expected:
            self._problems.append(f"{name}: expected {expected!r}, found {found!r}")

    # -- reading

    def _list_keys(self) -> None:
        for key in self._call("KEYS", f"{self._base}*"):
            _, kind, *name = key.removeprefix(self._base.encode()).split(b":", 2)
            which = kind.decode() + (":" if name else "")
            self._names[which] += name
            self._expect(f"kinds like that of {key!r}", which in KINDS, True)

    def _hash(self, name: str) -> dict[bytes, bytes]:
        flat = self._call("HGETALL", f"{self._base}:{name}")
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def _sorted(self, name: str, which: bytes = b"") -> dict[bytes, int]:
        flat = self._call("ZRANGE", f"{self._base}:{name}".encode() + which, 0, -1, "WITHSCORES")
        return dict(zip(flat[::2], map(int, flat[1::2]), strict=True))

    def _set(self, name: str, which: bytes = b"") -> set[bytes]:
        return set(self._call("SMEMBERS", f"{self._base}:{name}".encode() + which))

    def _read_ready(self) -> dict[bytes, tuple[int, int, int]]:
        """The queue, the priority and the instant under which each waiting job is listed."""
        found: dict[bytes, tuple[int, int, int]] = {}
        for name in self._names["r:"]:
            qid, priority = map(int, name.split(b":"))
            for job_id, run_at in self._sorted("r:", name).items():
                self._expect(f"other lines of {job_id.hex()}", found.get(job_id), None)
                found[job_id] = qid, priority, run_at
        return found

    def _read_jobs(self) -> dict[bytes, Known]:
        states, patches, errors, results = (self._hash(name) for name in ("s", "c", "e", "h"))
        found = {}
        for job_id, packed in self._hash("j").items():
            job = Job(packed)
            head, weight = self._read_body(packed, patches.get(job_id))
            weight += len(errors.get(job_id, b"")) + len(results.get(job_id, b""))
            if job_id in states:
                known = State(states[job_id])
                text = states[job_id][STATE.size :]
                found[job_id] = Known(
                    known.state, known.cancel, known.instant, known.held_until, known.size, known.qid, known.priority,
                    known.keyed, known.expires_at, known.run_at, text, head, weight,
                )  # fmt: skip
            else:
                *_, run_at = self._ready.get(job_id, (0, 0, -1))
                found[job_id] = Known(
                    AVAILABLE, 0, 0, 0, job.size, job.qid, job.priority, job.keyed, job.expires_at, run_at, b"", head,
                    weight,
                )  # fmt: skip
        self._expect("states of unknown jobs", states.keys() - found.keys(), set())
        return found

    def _read_body(self, packed: bytes, patch: bytes | None) -> tuple[Head, int]:
        *_, length = JOB.unpack_from(packed)
        at = JOB.size + length
        head = _head(packed[JOB.size : at])
        headers, *cells = (0 if length == NONE else length for length in _LENGTHS.unpack_from(packed, at))
        self._expect("length of a body", len(packed), at + _LENGTHS.size + headers + sum(cells))
        if patch is not None:
            changes = _PATCHES.unpack_from(patch)
            new = [0 if length == NONE else length for length in changes if length != KEPT]
            self._expect("length of replaced cells", len(patch), _PATCHES.size + sum(new))
            for place, length in enumerate(changes):
                if length != KEPT:
                    cells[place] = 0 if length == NONE else length
        key, task, tenant, *_ = head
        return head, 200 + len(task) + len(tenant) + len(key or "") + headers + sum(cells)

    def _in(self, *states: int) -> dict[bytes, Known]:
        return {job_id: job for job_id, job in self._jobs.items() if job.state in states}

    # -- comparing

    def _check_ids(self) -> None:
        self._expect(":a", self._sorted("a"), dict.fromkeys(self._jobs, 0))

    def _check_tenants(self) -> None:
        expected: dict[bytes, dict[bytes, int]] = defaultdict(dict)
        for job_id, job in self._jobs.items():
            if tenant := job.head[2].encode():
                expected[tenant][job_id] = 0
        self._expect(":u", self._set("u"), expected.keys())
        self._expect(":u:TENANT", {name: self._sorted("u:", name) for name in self._names["u:"]}, expected)

    def _check_queues(self) -> None:
        numbers = {name: int(number) for name, number in self._hash("q").items()}
        self._expect(":qn", {int(number): name for number, name in self._hash("qn").items()}, _turned(numbers))
        used = {job.qid for job in self._jobs.values()} | {int(qid) for qid in self._set("z")}
        self._expect("numbers of no queue", used - set(numbers.values()), set())
        last = int(self._call("GET", f"{self._base}:qi") or 0)
        self._expect("numbers above the last", [number for number in numbers.values() if number > last], [])

    def _check_ready(self) -> None:
        expected = {job_id: (job.qid, job.priority, job.run_at) for job_id, job in self._in(AVAILABLE).items()}
        self._expect(":r", self._ready, expected)
        levels: dict[int, dict[bytes, int]] = defaultdict(dict)
        for qid, priority, _ in expected.values():
            levels[qid][str(priority).encode()] = priority
        self._expect(":p", {int(name): self._sorted("p:", name) for name in self._names["p:"]}, levels)

    def _check_expiring(self) -> None:
        waiting = self._in(AVAILABLE).items()
        expected = {job_id: max(job.expires_at, job.run_at) for job_id, job in waiting if job.expires_at}
        self._expect(":y", self._sorted("y"), expected)

    def _check_leases(self) -> None:
        running = self._in(RUNNING)
        self._expect(":l", self._sorted("l"), {job_id: job.instant for job_id, job in running.items()})
        asked: dict[bytes, set[bytes]] = defaultdict(set)
        for job_id, job in running.items():
            if job.cancel:
                asked[job.text].add(job_id)
        self._expect(":x", {name: self._set("x:", name) for name in self._names["x:"]}, asked)
        others = [job for job in self._jobs.values() if job.state != RUNNING]
        self._expect("cancellations asked for of jobs that do not run", [job for job in others if job.cancel], [])
        self._expect(
            "holders of jobs that do not run",
            [job.text for job in self._in(AVAILABLE, PAUSED).values() if job.text],
            [],
        )

    def _check_ends(self) -> None:
        weighed = {int(state): int(size) for state, size in self._hash("b").items()}
        for state in ENDED:
            jobs = self._in(state)
            expected = {job_id: job.instant for job_id, job in jobs.items()}
            self._expect(f":d:{state}", self._sorted(f"d:{state}"), expected)
            self._expect(f":b of {state}", weighed.pop(state, 0), sum(job.size for job in jobs.values()))
        self._expect(":b of others", weighed, {})

    def _check_results(self) -> None:
        results, until = self._hash("h"), self._sorted("hx")
        self._expect(":hx", until.keys(), results.keys())
        done = self._in(COMPLETED)
        self._expect(":hx", until, {job_id: done[job_id].held_until for job_id in until if job_id in done})

    def _check_cells(self) -> None:
        for name in ("e", "c"):
            self._expect(f":{name} of unknown jobs", self._hash(name).keys() - self._jobs.keys(), set())

    def _check_keys(self) -> None:
        takers = self._hash("k")
        for field, packed in takers.items():
            job_id, held_until, kind = _KEY.unpack(packed)
            job = self._jobs.get(job_id)
            if job is None:
                self._problems.append(f":k {field!r} leads to a job that is gone")
                continue
            self._expect(f":k {field!r}", (job.keyed, _key_field(job)), (1, field))
            expected = (0, 0) if job.state not in ENDED else (job.held_until, 2 if job.state == FAILED else 1)
            self._expect(f":k {field!r} of a job in state {job.state}", (held_until, kind), expected)
        for job_id, job in self._in(AVAILABLE, RUNNING, PAUSED).items():
            if job.keyed:
                self._expect(f"who has the key of {job_id.hex()}", takers.get(_key_field(job), b"")[:16], job_id)

    def _check_waiters(self) -> None:
        waited = self._hash("w")
        self._expect(":w of jobs that do not live", waited.keys() - self._in(AVAILABLE, RUNNING, PAUSED).keys(), set())
        for packed in waited.values():
            inboxes = _inboxes(packed)
            self._expect(":w, each once", len(set(inboxes)), len(inboxes))

    def _check_counts(self) -> None:
        counted = {name: int(jobs) for name, jobs in self._hash("n").items()}
        self._expect(":n", counted, Counter(f"{job.qid}:{job.state}".encode() for job in self._jobs.values()))

    def _check_sizes(self) -> None:
        for job_id, job in self._jobs.items():
            self._expect(f"bytes of {job_id.hex()}", job.size, job.weight)

    def _check_workers(self) -> None:
        self._expect(":X", self._sorted("X").keys(), self._hash("W").keys())

    def _check_signals(self) -> None:
        for name in self._names["g:"]:
            key = f"{self._base}:g:".encode() + name
            self._expect(
                f"signals of {name!r}, few and soon forgotten",
                (self._call("LLEN", key) <= SIGNALS, 0 < self._call("PTTL", key) <= 60_000),
                (True, True),
            )

    def _check_schedules(self) -> None:
        """Who must be looked at is in one line, and the first of each line is known."""
        definitions, records = self._hash("Sd"), self._hash("S")
        self._expect(":Sd", definitions.keys(), records.keys())
        self._expect(":Sn", self._sorted("Sn"), dict.fromkeys(records, 0))
        lines: dict[bytes, dict[bytes, int]] = defaultdict(dict)
        heads: dict[bytes, dict[bytes, int]] = defaultdict(dict)
        for name, packed in records.items():
            one, past = unpack_schedule(name, packed, definitions.get(name, b""))
            self._expect(f"other shards of {name!r}", past, ())
            if one.enabled and one.look_at is not None:
                lines[f"{one.rank}:{one.bucket}".encode()][name] = one.look_at
        for line, names in lines.items():
            look_at, first = min((look_at, name) for name, look_at in names.items())
            heads[line.partition(b":")[0]][first] = look_at
        self._expect(":Sl", {name: self._sorted("Sl:", name) for name in self._names["Sl:"]}, lines)
        self._expect(":Sh", {name: self._sorted("Sh:", name) for name in self._names["Sh:"]}, heads)
        self._expect(":Sr", self._sorted("Sr"), {rank: int(rank) for rank in heads})

    def _check_ledger(self) -> None:
        """Each tick is under its slot, and in the list of all."""
        found: dict[bytes, int] = {}
        for uid in self._names["T:"]:
            for packed, slot in self._sorted("T:", uid).items():
                tick = unpack_tick(packed)
                self._expect(f":T:{uid.hex()}", tick.slot, slot)
                name = uid + slot.to_bytes(8, "big")
                self._expect(f"other ticks of {uid.hex()} {slot}", found.get(name), None)
                found[name] = tick.planned_at
        self._expect(":T", self._sorted("T"), found)


def _key_field(job: Known) -> bytes:
    return f"{job.qid}:{job.head[0]}".encode()


def _turned(numbers: Mapping[bytes, int]) -> dict[int, bytes]:
    return {number: name for name, number in numbers.items()}
