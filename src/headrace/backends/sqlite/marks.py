"""A change of rules reaches all tenants or groups of a queue, in short steps. A mark says how far it has come.

Whoever changed the rules takes all steps. If that process dies, reaps take those that are left.
"""

from __future__ import annotations

import msgspec

from headrace.backends.sqlite import groups, tenants
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import BEYOND, Session, Transaction
from headrace.seam.policy import Policy

_SQL = load("mark")
_POLICY = load("policy")
_decode = msgspec.json.Decoder(Policy).decode

TENANTS = 0
GROUPS = 1
_AT_ONCE = (1_000, 100)
"""One step reaches so many tenants, or groups."""


def begin(tx: Transaction, qid: int, kind: int, now: int) -> None:
    """All tenants or groups of a queue are to learn of a change; the first do at once."""
    _step(tx, qid, kind, "", now)


def none_left(session: Session, _: int) -> bool | None:
    """False if there is nothing to go on with; otherwise None."""
    return False if session.first(_SQL["any"]) is None else None


def go_on(tx: Transaction, now: int) -> bool:
    """Take a step; return whether there was one to take."""
    mark = tx.first(_SQL["any"])
    if mark is None:
        return False
    qid, kind, place = mark
    _step(tx, qid, kind, place, now)
    return True


def _step(tx: Transaction, qid: int, kind: int, place: str, now: int) -> None:
    if kind == TENANTS:
        following = tx.first(_SQL["next_tenant"], (qid, place, _AT_ONCE[kind]))
        upto = None if following is None else following[0]
        [stored] = tx.one(_POLICY["known"], (qid,))
        rate = None if stored is None else _decode(stored).tenant_rate
        tenants.change_some(tx, qid, rate, (place, BEYOND if upto is None else upto), now)
    else:
        upto = groups.call_some(tx, qid, place, _AT_ONCE[kind], now)
    if upto is None:
        tx.execute(_SQL["drop"], (qid, kind))
    else:
        tx.execute(_SQL["set"], (qid, kind, upto))
