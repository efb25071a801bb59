-- Groups with AVAILABLE or RUNNING jobs.
CREATE TABLE groups (
    gid INTEGER PRIMARY KEY,
    qid INTEGER NOT NULL,
    name TEXT NOT NULL,
    called INTEGER NOT NULL DEFAULT 0,
    UNIQUE (qid, name)
) STRICT;

-- The jobs of groups that are called. The others wait in the line of their group. The group counts them.
CREATE TABLE called (
    gid INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (gid, seq)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER called_more AFTER INSERT ON called BEGIN
    UPDATE groups SET called = called + 1 WHERE gid = new.gid;
END;

CREATE TRIGGER called_less AFTER DELETE ON called BEGIN
    UPDATE groups SET called = called - 1 WHERE gid = old.gid;
END;

-- How far changes of rules have walked the tenants (0) or groups (1) of a queue: those from ``place`` on, by name, are
-- still to come. Mostly empty.
CREATE TABLE marks (
    qid INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    place TEXT NOT NULL,
    PRIMARY KEY (qid, kind)
) STRICT, WITHOUT ROWID;

-- The tenants of governed queues that have jobs, or had some lately. A tenant that is awake has a ``since``; one that
-- is asleep for a time has a ``wake_at``. ``count``, ``since`` and ``full``: see ``Backend.claim``. ``taken``: as many
-- holders as ``tenant_workers`` allows have jobs of it. ``lanes``: how many lanes it has. ``full_at`` belongs to the
-- rate (``every``, ``burst``).
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

-- In the order of turns; in the order of waking; and those that a sweep may forget.
CREATE INDEX tenants_awake ON tenants (qid, taken, count, since, name) WHERE since IS NOT NULL;
CREATE INDEX tenants_asleep ON tenants (qid, wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX tenants_idle ON tenants (full_at) WHERE lanes = 0 AND running = 0 AND since IS NULL;

-- The lanes of governed queues that have jobs. Their numbers are above those of queues.
CREATE TABLE lanes (
    lane INTEGER PRIMARY KEY,
    tid INTEGER NOT NULL,
    task TEXT NOT NULL,
    UNIQUE (tid, task)
) STRICT;

-- How many RUNNING jobs of a tenant each holder has, in queues with ``tenant_workers``.
CREATE TABLE holdings (
    tid INTEGER NOT NULL,
    holder TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    PRIMARY KEY (tid, holder)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdings_holder ON holdings (holder, tid);

-- Limits and pauses of single tenants, whether they have jobs or not.
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

-- Tasks of governed queues that are paused, or have spent some of their rate.
CREATE TABLE tasks (
    qid INTEGER NOT NULL,
    task TEXT NOT NULL,
    paused_until INTEGER NOT NULL DEFAULT 0,
    full_at INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (qid, task)
) STRICT, WITHOUT ROWID;

CREATE INDEX tasks_over ON tasks (paused_until, full_at);
