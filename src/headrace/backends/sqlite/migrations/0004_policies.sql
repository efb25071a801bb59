-- Groups that have jobs which are AVAILABLE or RUNNING.
CREATE TABLE groups (
    gid INTEGER PRIMARY KEY,
    qid INTEGER NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (qid, name)
) STRICT;

-- Their jobs that have a turn; the others lie in the line of the group.
CREATE TABLE called (
    gid INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (gid, seq)
) STRICT, WITHOUT ROWID;

-- The tenants of governed queues that have jobs, or had some lately. One that is awake has a ``since``, one that is
-- asleep for a time a ``wake_at``. ``taken``: as many holders have jobs of it as may. ``lanes`` is how many it has.
-- ``full_at`` belongs to the rate (``every``, ``burst``).
CREATE TABLE tenants (
    tid INTEGER PRIMARY KEY,
    qid INTEGER NOT NULL,
    name TEXT NOT NULL,
    count INTEGER NOT NULL DEFAULT 0,
    since INTEGER,
    wake_at INTEGER,
    full INTEGER NOT NULL DEFAULT 0,
    taken INTEGER NOT NULL DEFAULT 0,
    running INTEGER NOT NULL DEFAULT 0,
    lanes INTEGER NOT NULL DEFAULT 0,
    full_at INTEGER NOT NULL DEFAULT 0,
    every INTEGER,
    burst INTEGER,
    UNIQUE (qid, name)
) STRICT;

-- Whose turn it is; who takes part next; and whom the next sweep may forget.
CREATE INDEX tenants_awake ON tenants (qid, taken, count, since, name) WHERE since IS NOT NULL;
CREATE INDEX tenants_asleep ON tenants (qid, wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX tenants_idle ON tenants (full_at) WHERE lanes = 0 AND running = 0 AND since IS NULL;

-- The lanes of governed queues that have jobs; their numbers are beyond those of queues.
CREATE TABLE lanes (
    lane INTEGER PRIMARY KEY,
    tid INTEGER NOT NULL,
    task TEXT NOT NULL,
    UNIQUE (tid, task)
) STRICT;

-- How many RUNNING jobs of a tenant each holder has, where the policy counts holders.
CREATE TABLE holdings (
    tid INTEGER NOT NULL,
    holder TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    PRIMARY KEY (tid, holder)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdings_holder ON holdings (holder, tid);

-- What single tenants may do, whether they have jobs or not, and until when they are paused.
CREATE TABLE limits (
    qid INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    running INTEGER,
    every INTEGER,
    burst INTEGER,
    paused_until INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (qid, tenant)
) STRICT, WITHOUT ROWID;

CREATE INDEX limits_over ON limits (paused_until) WHERE running IS NULL AND every IS NULL;

-- Tasks of governed queues that are paused, or whose rate is under way.
CREATE TABLE tasks (
    qid INTEGER NOT NULL,
    task TEXT NOT NULL,
    paused_until INTEGER NOT NULL DEFAULT 0,
    full_at INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (qid, task)
) STRICT, WITHOUT ROWID;

CREATE INDEX tasks_over ON tasks (paused_until, full_at);
