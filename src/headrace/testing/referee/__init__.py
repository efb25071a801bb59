"""A referee for governed queues: the laws of turns, limits, rates, pauses, groups and depth, read from the protocol.

The referee is slow and simple. It sees every operation on one queue and its answer, keeps a book of what must be true
by then, counts everything from scratch each time, and objects to the first answer that breaks a law. It does not know
how a store finds the jobs that it gives out, so it can judge any store, the memory model included:

* the limits on running jobs, of the queue, of tenants and of groups, and on holders, are never exceeded;
* in no window of time are there more starts than a rate's burst and one per ``every``, and only starts count;
* what is paused is not given out;
* a claim that comes back short leaves nothing behind that it could have brought, and ``next_in`` is never too late;
* of two tenants that are ready throughout, neither gets more than two chunks more than the other;
* within a tenant the order is that of the queue, among the tasks that may run;
* the jobs of a group run in their order, retries included;
* an insert is refused when, and only when, as many jobs wait as the depth allows.

:mod:`headrace.testing.referee.stories` draws stories and plays them on a store that a referee watches.
"""

from headrace.testing.referee.laws import Law
from headrace.testing.referee.referee import Referee

__all__ = ["Law", "Referee"]
