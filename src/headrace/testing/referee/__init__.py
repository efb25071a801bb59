"""A referee for governed queues: the laws of turns, limits, rates, pauses, groups and depth, read from the protocol.

He is slow and simple. He is told of every operation on one queue and of its answer, keeps a book of what must be true
by then, counts everything anew each time, and objects to the first answer that is against a law. He does not know how a
store finds what it gives out, so he judges any store, the model of the others included:

* caps of the queue, of tenants and of groups, and tokens, are never exceeded;
* in no window of time are there more starts than a rate's burst and one per ``every``, and only starts count;
* what is paused is not given out;
* a claim that comes back short leaves nothing behind that it could have brought, and ``next_in`` is never too late;
* of two tenants that are ready throughout, none gets more than two chunks more than the other;
* within a tenant the order is that of the queue, among the tasks that are open;
* a group goes one after the other in its order, retries included;
* an insert is refused when, and only when, as many jobs wait as the depth says.

:mod:`headrace.testing.referee.stories` draws stories and plays them on a store under a referee's eyes.
"""

from headrace.testing.referee.laws import Law
from headrace.testing.referee.referee import Referee

__all__ = ["Law", "Referee"]
