"""The books of a Valkey store: whether every index says what the jobs themselves say."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from headrace.backends.redis.job_layout import GROUPED, JOB, KEPT, KEYED, NONE, STATE, Head, Job, State, decode_head
from headrace.backends.redis.schedule_layout import unpack_schedule, unpack_tick
from headrace.seam.policy import FOREVER
from headrace.seam.references import oldest_hour

AVAILABLE, RUNNING, PAUSED, COMPLETED, CANCELLED, FAILED = range(6)
ENDED = (COMPLETED, CANCELLED, FAILED)
KINDS = {
    "j", "s", "a", "u", "u:", "r:", "p:", "pq", "f:", "fq", "y", "l", "x:", "d:", "dm", "h", "hx", "e", "c", "k", "kx",
    "w", "q", "qn", "qi", "D:", "Dj", "Db", "E", "Ej", "Eb",
    "z", "n", "b", "W", "Wa", "X", "g:", "v", "S", "Sd", "Sn", "Sl:", "Sh:", "Sr", "T", "T:", "i", "i:", "ic:", "ir",
    "P", "Pk:", "K", "Yd:", "Yl:", "Yn", "Ys:", "parts:",
    "lc:", "o", "ow", "oc", "of:", "oz:", "G:", "Gp:", "Gf:", "Gc:", "Gt:", "M", "Mn", "Mi", "V:", "A:", "O:", "B:",
    "H:", "F:",
}  # fmt: skip
"""Of the keys that a store of one shard may have; those that end in a colon come with a name."""
SIGNALS = 8
_KEY = Struct(">16sQB")
_LENGTHS = Struct(">5I")
_PATCHES = Struct(">4I")
ASLEEP, AWAKE, FULL, BOUND = range(4)
_NUMBER = Struct(">Q")
_LEVEL = Struct(">H")
_inboxes = msgspec.msgpack.Decoder(list[str]).decode


class Listed(NamedTuple):
    """Where claims find a job."""

    qid: int
    priority: int
    run_at: int
    lane: bytes | None
    """None: the line of its queue; else the tenant's number, the priority and the task."""
    later: bool
    """Whether it lies with those that are to come."""


class Tenant(NamedTuple):
    """One of a governed queue, as it is stored."""

    qid: int
    name: str
    given: int
    since: int
    status: int
    wake_at: int
    running: int
    due: int
    later: int
    holders: dict[str, int]
    limited: bool
    paused: int
    full_at: int | None
    """Of its rate under way."""
    shut: bool
    """Whether it has shut lanes."""

    @property
    def idle_from(self) -> int | None:
        """From when on a sweep may forget it, or what is under way of it."""
        if self.due + self.later or self.running or self.status in (AWAKE, BOUND):
            return None
        if self.given or self.full_at is not None or self.wake_at >= 0:
            return self.full_at or 0
        return self.paused if not self.limited and self.paused < FOREVER else None


class Known(NamedTuple):
    """A job, by what it came with and by what is noted of its state."""

    state: int
    cancel: int
    instant: int
    held_until: int
    size: int
    qid: int
    priority: int
    flags: int
    expires_at: int
    run_at: int
    epoch: int
    text: bytes
    head: Head
    weight: int
    """Bytes that it takes up, counted anew."""

    @property
    def keyed(self) -> bool:
        return bool(self.flags & KEYED)

    @property
    def group(self) -> tuple[int, str] | None:
        """With its queue."""
        return (self.qid, self.head[3] or "") if self.flags & GROUPED else None


class Audit:
    """One look at everything. ``call`` sends a command to the server, which must be at rest."""

    def __init__(self, call: Callable[..., Any], base: str = "headrace{jobs}") -> None:
        self._call = call
        self._base = base
        self._problems: list[str] = []
        self._names: dict[str, list[bytes]] = defaultdict(list)
        self._list_keys()
        self._tenants = self._read_tenants()
        self._ready = self._read_ready()
        self._lines = {_group(name): self._sorted("i:", name) for name in self._names["i:"]}
        self._called = {_group(name): self._sorted("ic:", name) for name in self._names["ic:"]}
        self._jobs = self._read_jobs()

    def problems(self) -> list[str]:
        """What does not fit."""
        for check in (
            self._check_ids, self._check_tenants, self._check_queues, self._check_ready, self._check_expiring,
            self._check_leases, self._check_ends, self._check_results, self._check_cells, self._check_keys,
            self._check_references, self._check_waiters, self._check_counts, self._check_sizes, self._check_workers,
            self._check_signals, self._check_schedules, self._check_ledger, self._check_groups,
            self._check_tenants_of_queues, self._check_running, self._check_turns,
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

    def _read_tenants(self) -> dict[int, Tenant]:
        found = {}
        for number, packed in self._hash("M").items():
            stored = msgspec.msgpack.decode(packed)
            *facts, waiting, holders, limit, paused, rate = stored[:12]
            told = *waiting, dict(holders), bool(limit), paused, rate[2] if rate else None
            found[int(number)] = Tenant(*facts, *told, bool(stored[12:]))
        return found

    def _read_ready(self) -> dict[bytes, Listed]:
        """Where each job is listed that claims can find."""
        found: dict[bytes, Listed] = {}

        def add(job_id: bytes, listed: Listed) -> None:
            self._expect(f"other lines of {job_id.hex()}", found.get(job_id), None)
            found[job_id] = listed

        for name in self._names["r:"]:
            qid, priority = map(int, name.split(b":"))
            for job_id, run_at in self._sorted("r:", name).items():
                add(job_id, Listed(qid, priority, run_at, None, False))
        for name in self._names["f:"]:
            for waits, run_at in self._sorted("f:", name).items():
                add(waits[2:], Listed(int(name), _priority(waits), run_at, None, True))
        for name in self._names["G:"]:
            number, level, _ = name.split(b":", 2)
            for job_id, run_at in self._sorted("G:", name).items():
                add(job_id, Listed(self._qid(number), int(level), run_at, name, False))
        for number in self._names["Gf:"]:
            for waits, run_at in self._sorted("Gf:", number).items():
                priority = _priority(waits)
                lane = b"%b:%d:%b" % (number, priority, waits[18:])
                add(waits[2:18], Listed(self._qid(number), priority, run_at, lane, True))
        return found

    def _qid(self, number: bytes) -> int:
        """The queue of a tenant."""
        return self._tenants[int(number)].qid if int(number) in self._tenants else -1

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
                    known.flags, known.expires_at, known.run_at, known.epoch, text, head, weight,
                )  # fmt: skip
            else:
                waits = self._lines.get((job.qid, head[3] or ""), {}) if job.flags & GROUPED else {}
                run_at = self._ready[job_id].run_at if job_id in self._ready else waits.get(job_id, -1)
                found[job_id] = Known(
                    AVAILABLE, 0, 0, 0, job.size, job.qid, job.priority, job.flags, job.expires_at, run_at, 0, b"",
                    head, weight,
                )  # fmt: skip
        self._expect("states of unknown jobs", states.keys() - found.keys(), set())
        return found

    def _read_body(self, packed: bytes, patch: bytes | None) -> tuple[Head, int]:
        *_, length = JOB.unpack_from(packed)
        at = JOB.size + length
        head = decode_head(packed[JOB.size : at])
        headers, *cells = (0 if length == NONE else length for length in _LENGTHS.unpack_from(packed, at))
        self._expect("length of a body", len(packed), at + _LENGTHS.size + headers + sum(cells))
        if patch is not None:
            changes = _PATCHES.unpack_from(patch)
            new = [0 if length == NONE else length for length in changes if length != KEPT]
            self._expect("length of replaced cells", len(patch), _PATCHES.size + sum(new))
            for place, length in enumerate(changes):
                if length != KEPT:
                    cells[place] = 0 if length == NONE else length
        key, task, tenant, group, _ = head
        return head, 200 + sum(len(text or "") for text in (key, task, tenant, group)) + headers + sum(cells)

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
        used = {job.qid for job in self._jobs.values()} | {int(qid) for qid in self._sorted("z")}
        used |= {int(qid) for name in ("P", "o", "ow") for qid in self._hash(name)}
        self._expect("numbers of no queue", used - set(numbers.values()) - {0}, set())
        last = int(self._call("GET", f"{self._base}:qi") or 0)
        self._expect("numbers above the last", [number for number in numbers.values() if number > last], [])

    def _check_ready(self) -> None:
        expected = {
            job_id: (job.qid, job.priority, job.run_at)
            for job_id, job in self._in(AVAILABLE).items()
            if job.group is None or job_id in self._called.get(job.group, ())
        }
        self._expect(":r", {job_id: listed[:3] for job_id, listed in self._ready.items()}, expected)
        levels: dict[bytes, dict[bytes, int]] = defaultdict(dict)
        coming: dict[bytes, int] = {}
        for job_id, listed in self._ready.items():
            if listed.lane is not None:
                job = self._jobs.get(job_id)
                number, _, task = listed.lane.split(b":", 2)
                tenant = self._tenants.get(int(number))
                found = tenant and (tenant.name, task.decode())
                self._expect(f"lane of {job_id.hex()}", found, job and (job.head[2], job.head[1]))
            elif listed.later:
                qid = b"%d" % listed.qid
                coming[qid] = min(coming.get(qid, listed.run_at), listed.run_at)
            else:
                levels[b"%d" % listed.qid][b"%d" % listed.priority] = listed.priority
        first = {qid: min(of.values()) for qid, of in levels.items()}
        self._expect(":pq", self._sorted("pq"), first)
        further = {qid: {name: n for name, n in of.items() if n != first[qid]} for qid, of in levels.items()}
        listed = {name: self._sorted("p:", name) for name in self._names["p:"]}
        self._expect(":p", listed, {qid: of for qid, of in further.items() if of})
        governed = self._hash("o")
        told = {qid: at for qid, at in self._sorted("fq").items() if qid not in governed}
        self._expect(":fq", told, {qid: at for qid, at in coming.items() if qid not in governed})

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
        self._check_shares()

    def _check_shares(self) -> None:
        dead: dict[bytes, dict[bytes, int]] = {}
        sizes: dict[bytes, int] = {}
        for job_id, job in self._in(FAILED).items():
            tenant = job.head[2].encode()
            dead.setdefault(tenant, {})[job_id] = job.instant
            sizes[tenant] = sizes.get(tenant, 0) + job.size
        counted = self._sorted("E")
        self._expect("fields of :Ej and :Eb", [{*self._hash("Ej")}, {*self._hash("Eb")}], [{*counted}, {*counted}])
        self._expect("hours of :E", [*counted.values()], [int.from_bytes(field[:4]) for field in counted])
        self._expect(":Dj", self._sorted("Dj"), {tenant: len(of) for tenant, of in dead.items()})
        self._expect(":Db", self._sorted("Db"), sizes)
        for tenant, of in dead.items():
            self._expect(f":D: of {tenant!r}", self._sorted("D:", tenant), of)

    def _check_results(self) -> None:
        results, until = self._hash("h"), self._sorted("hx")
        self._expect(":hx", until.keys(), results.keys())
        done = self._in(COMPLETED)
        self._expect(":hx", until, {job_id: done[job_id].held_until for job_id in until if job_id in done})

    def _check_cells(self) -> None:
        for name in ("e", "c"):
            self._expect(f":{name} of unknown jobs", self._hash(name).keys() - self._jobs.keys(), set())

    def _check_references(self) -> None:
        """No job refers to an object of an earlier hour than it is listed by."""
        days, patches = self._sorted("R"), self._hash("c")
        self._expect(":R of unknown jobs", days.keys() - self._jobs.keys(), set())
        for job_id, packed in self._hash("j").items():
            _, cells = Job(packed).contents(patches.get(job_id))
            if (hour := oldest_hour(cells)) is not None:
                self._expect(":R", days.get(job_id, FOREVER) <= hour, True)

    def _check_keys(self) -> None:
        takers = self._hash("k")
        alone = {field: _KEY.unpack(packed) for field, packed in takers.items() if packed[-1:] == b"\x03"}
        self._expect(":kx", self._sorted("kx"), {field: until for field, (_, until, _) in alone.items()})
        for field, packed in takers.items():
            job_id, held_until, kind = _KEY.unpack(packed)
            if kind == 3:
                continue
            job = self._jobs.get(job_id)
            if job is None:
                self._problems.append(f":k {field!r} leads to a job that is gone")
                continue
            self._expect(f":k {field!r}", (job.keyed, _key_field(job)), (True, field))
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
        expected = Counter(f"{job.qid}:{job.state}".encode() for job in self._jobs.values())
        expected[b"w"] = len(self._in(AVAILABLE, PAUSED))
        self._expect(":n", counted, +expected)

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
                lines[f"{one.plan_priority}:{one.bucket}".encode()][name] = one.look_at
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

    # -- groups and governed queues

    def _check_known(
        self, waking: Mapping[bytes, bytes], awake: Mapping[bytes, object], asleep: Mapping[bytes, Mapping[bytes, int]]
    ) -> None:
        """Of a governed queue no claim thinks that nothing comes before something does, but for one at its limits."""
        known = self._sorted("fq")
        for qid, sleepers in asleep.items():
            if qid in self._hash("P"):
                continue
            first = 0 if qid in awake or qid in waking else min(sleepers.values())
            self._expect(f":fq of {qid!r}", known.get(qid, FOREVER) <= first, True)

    def _check_groups(self) -> None:
        """Called are those who come first, as far as there are turns; the others stand in line."""
        turns = {int(qid): msgspec.msgpack.decode(packed)[9] for qid, packed in self._hash("P").items()}
        members: dict[tuple[int, str], set[bytes]] = defaultdict(set)
        for job_id, job in self._in(AVAILABLE, RUNNING).items():
            if job.group is not None:
                members[job.group].add(job_id)
        self._expect(":i", self._sorted("i"), {b"%d:%s" % (qid, name.encode()): 0 for qid, name in members})
        known = self._called.keys() | self._lines.keys()
        self._expect("groups", known, members.keys())
        for group in known:
            called, line = self._called.get(group, {}), self._lines.get(group, {})
            self._expect(f"members of {group}", called.keys() | line.keys(), members[group])
            self._expect(f"called and in line in {group}", called.keys() & line.keys(), set())
            jobs = {job_id: self._jobs[job_id] for job_id in members[group]}
            self._expect(f":i of {group}", line, {i: job.run_at for i, job in jobs.items() if i in line})
            self._check_called(group, jobs, called, line, turns.get(group[0], 1))

    def _check_called(
        self,
        group: tuple[int, str],
        jobs: Mapping[bytes, Known],
        called: Mapping[bytes, int],
        line: Mapping[bytes, int],
        turns: int,
    ) -> None:
        running = {job_id for job_id, job in jobs.items() if job.state == RUNNING}
        self._expect(f"who runs without a turn of {group}", running - called.keys(), set())
        if b"%d" % group[0] in self._hash("ir"):
            return
        free = {i for i in called.keys() - running if turns > 1 or jobs[i].epoch == 0}
        self._expect(f"free turns of {group}", bool(line) and len(called) < turns, False)
        self._expect(f"turns of {group}", len(called) <= max(turns, len(running)), True)
        self._expect(f":ic of {group}", {i: called[i] for i in free}, {i: jobs[i].run_at for i in free})
        if free and line:
            last, first = max((jobs[i].run_at, i) for i in free), min((run_at, i) for i, run_at in line.items())
            self._expect(f"order of {group}", last < first, True)

    def _check_tenants_of_queues(self) -> None:
        """Each is known by its name, and there is no more of it than it needs."""
        governed = {int(qid) for qid in self._hash("o")}
        names: dict[int, dict[bytes, int]] = defaultdict(dict)
        for number, tenant in self._tenants.items():
            self._expect(f"whether the queue of {tenant} is governed", tenant.qid in governed, True)
            names[tenant.qid][_title(number, tenant)] = 0
        self._expect(":V", {int(name): self._sorted("V:", name) for name in self._names["V:"]}, names)
        idle = {b"%d" % number: tenant.idle_from for number, tenant in self._tenants.items()}
        self._expect(":Mi", self._sorted("Mi"), {number: at for number, at in idle.items() if at is not None})
        waiting = Counter((int(one.lane.partition(b":")[0]), one.later) for one in self._ready.values() if one.lane)
        for number, tenant in self._tenants.items():
            expected = waiting[number, False], waiting[number, True]
            self._expect(f"waiting jobs of {tenant}", (tenant.due, tenant.later), expected)
        self._check_heads()
        for name in ("of:", "oz:", "A:", "B:"):
            others = {int(qid) for qid in self._names[name]} - governed
            self._expect(f":{name} of queues that are not governed", others, set())

    def _check_heads(self) -> None:
        """The first job of each lane is known, to its tenant too; and what is to come in a queue."""
        firsts: dict[bytes, tuple[int, bytes]] = {}
        later: dict[bytes, dict[bytes, int]] = defaultdict(dict)
        for job_id, listed in self._ready.items():
            if listed.lane is not None and listed.later:
                later[b"%d" % listed.qid][job_id] = listed.run_at
            elif listed.lane is not None:
                place = listed.run_at, job_id
                firsts[listed.lane] = min(firsts.get(listed.lane, place), place)
        heads: dict[bytes, dict[bytes, int]] = defaultdict(dict)
        lanes: dict[bytes, dict[bytes, int]] = defaultdict(dict)
        for lane, (run_at, job_id) in firsts.items():
            number, priority, task = lane.split(b":", 2)
            heads[b"%d" % self._qid(number)][lane] = run_at
            known_as = _NUMBER.pack(run_at) + job_id + _LEVEL.pack(int(priority) + 32768) + task
            lanes[number][known_as] = int(priority)
        self._expect(":H", {name: self._sorted("H:", name) for name in self._names["H:"]}, heads)
        listed = {name: self._sorted("Gp:", name) for name in self._names["Gp:"]}
        for number, names in self._check_shut().items():
            self._expect(
                f"shut lanes of {number!r} that are open too", names.keys() & listed.get(number, {}).keys(), set()
            )
            listed[number] = listed.get(number, {}) | names
        self._expect(":Gp and :Gc", listed, lanes)
        self._expect(":F", {name: self._sorted("F:", name) for name in self._names["F:"]}, later)

    def _check_shut(self) -> dict[bytes, dict[bytes, int]]:
        """The lanes that tenants have shut, as they are named otherwise. The task of each is listed."""
        found: dict[bytes, dict[bytes, int]] = defaultdict(dict)
        for number in self._names["Gc:"]:
            tasks = set()
            for name in self._sorted("Gc:", number):
                length = int.from_bytes(name[:4], "big")
                task, level, first = name[4 : 4 + length], name[4 + length : 6 + length], name[6 + length :]
                found[number][first + level + task] = _LEVEL.unpack(level)[0] - 32768
                tasks.add(task)
            self._expect(f"tasks of :Gc:{number!r} that :Gt lacks", tasks - self._sorted("Gt:", number).keys(), set())
        self._expect(":Gt", set(self._names["Gt:"]), set(self._names["Gc:"]))
        self._expect(
            "tenants that have shut lanes", {b"%d" % n for n, t in self._tenants.items() if t.shut}, set(found)
        )
        return found

    def _check_running(self) -> None:
        governed = {int(qid) for qid in self._hash("o")}
        holders: dict[int, Counter[str]] = defaultdict(Counter)
        for job_id, job in self._in(RUNNING).items():
            if job.qid in governed:
                tenant = self._tenants.get(job.held_until)
                self._expect(f"tenant of {job_id.hex()}", tenant and (tenant.qid, tenant.name), (job.qid, job.head[2]))
                holders[job.held_until][job.text.decode()] += 1
            else:
                self._expect(f"tenant of {job_id.hex()}", job.held_until, 0)
        for number, tenant in self._tenants.items():
            held = holders[number]
            self._expect(f"running of {tenant}", (tenant.running, tenant.holders), (held.total(), dict(held)))

    def _check_turns(self) -> None:
        """Who is awake, and who sleeps until when; while all of a queue are being woken, some still sleep."""
        waking = self._hash("ow")
        awake: dict[bytes, dict[bytes, int]] = defaultdict(dict)
        bound: dict[bytes, dict[bytes, int]] = defaultdict(dict)
        asleep: dict[bytes, dict[bytes, int]] = defaultdict(dict)
        for number, tenant in self._tenants.items():
            queue, name = b"%d" % tenant.qid, _NUMBER.pack(tenant.since) + _title(number, tenant)
            if tenant.status == AWAKE:
                awake[queue][name] = tenant.given
            elif tenant.status == BOUND:
                for holder in tenant.holders:
                    bound[queue + b":" + holder.encode()][name] = tenant.given
            elif tenant.wake_at >= 0:
                asleep[queue][b"%d" % number] = tenant.wake_at
            elif tenant.status == ASLEEP and tenant.due + tenant.later and queue not in waking:
                paused = self._sorted(f"oz:{tenant.qid}")
                tasks = {one.lane.split(b":", 2)[2] for one in self._ready.values() if one.lane and _of(one, number)}
                until = min(paused.get(task, 0) for task in tasks)
                self._expect(f"why {tenant} sleeps for good", max(tenant.paused, until), FOREVER)
        self._check_known(waking, awake, asleep)
        self._expect(":A", {name: self._sorted("A:", name) for name in self._names["A:"]}, awake)
        self._expect(":O", {name: self._sorted("O:", name) for name in self._names["O:"]}, bound)
        self._expect(":B", {name: self._sorted("B:", name) for name in self._names["B:"]}, asleep)


def _priority(waits: bytes) -> int:
    """Of a job that is to come, by the name under which it waits."""
    [level] = _LEVEL.unpack_from(waits)
    return int(level) - 32768


def _of(listed: Listed, number: int) -> bool:
    return listed.lane is not None and listed.lane.startswith(b"%d:" % number)


def _group(name: bytes) -> tuple[int, str]:
    qid, _, group = name.partition(b":")
    return int(qid), group.decode()


def _title(number: int, tenant: Tenant) -> bytes:
    return tenant.name.encode() + b"\0" + _NUMBER.pack(number)


def _key_field(job: Known) -> bytes:
    return f"{job.qid}:{job.head[0]}".encode()


def _turned(numbers: Mapping[bytes, int]) -> dict[int, bytes]:
    return {number: name for name, number in numbers.items()}
