"""renew and reap: absences of the whole fleet, and the losses that are not charged because of them."""

from __future__ import annotations

from headrace.seam.records import Beat
from headrace.testing.sim.ledger import Beats, Ledger


def note_beat(book: Ledger, beat: Beat, now: int) -> None:
    """A beat was carried out."""
    known = book.beats.get(beat.holder)
    if beat.leaving:
        book.beats.pop(beat.holder, None)
        return
    if all(beats.listed_until <= now for beats in book.beats.values()):
        _note_absence(book, beat, now)
    goes_on = known is not None and now - known.seen_at <= beat.gap
    since = known.steady_since if known is not None and goes_on else now
    book.beats[beat.holder] = Beats(now, now + beat.ttl, since)


def _note_absence(book: Ledger, beat: Beat, now: int) -> None:
    """The worker whose entry expired last, and those that went with it."""
    order = sorted(book.beats, key=lambda holder: (book.beats[holder].listed_until, holder.encode()))
    seen = sorted(book.beats[holder].seen_at for holder in order[-2:])
    if len(seen) == 2 and seen[1] - seen[0] <= beat.gap and seen[1] - book.at_work_since >= beat.at_work:
        book.absence = (seen[1], now)
        book.reach("absence of the fleet")
    book.at_work_since = now


def unlist(book: Ledger, now: int) -> None:
    """A reap forgets workers that have not beaten for too long."""
    book.beats = {holder: beats for holder, beats in book.beats.items() if beats.listed_until > now}


def is_spared(book: Ledger, lease_until: int) -> bool:
    """Whether nobody was listed when the lease expired."""
    begins, ends = book.absence
    return begins < lease_until <= ends
