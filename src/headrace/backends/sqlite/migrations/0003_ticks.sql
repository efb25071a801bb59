-- Schedules, and how far each is planned. ``definition`` is a BLOB (small) or the INTEGER that leads to ``cells``.
CREATE TABLE schedules (
    sid INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    uid BLOB NOT NULL,
    queue TEXT NOT NULL,
    tenant TEXT NOT NULL,
    rank INTEGER NOT NULL,
    bucket INTEGER NOT NULL,
    enabled INTEGER NOT NULL,
    slot INTEGER,
    look_at INTEGER,
    runs INTEGER NOT NULL,
    last_slot INTEGER,
    last_job BLOB,
    version INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    definition ANY NOT NULL
) STRICT;

-- Those that somebody must look at: a range at the head of each rank. ``bucket`` is in it so that what belongs to
-- another planner's share is passed over without looking at the rows.
CREATE INDEX schedules_due ON schedules (rank, look_at, name, bucket) WHERE enabled AND look_at IS NOT NULL;

CREATE INDEX schedules_tenant ON schedules (tenant, name);
CREATE INDEX schedules_queue ON schedules (queue, name);

-- The ledger: what became of slots, FIRED (0), SKIPPED (1) or MISSED (2). It knows schedules by their ``uid``, as it
-- outlives them.
CREATE TABLE ticks (
    uid BLOB NOT NULL,
    slot INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    outcome INTEGER NOT NULL,
    planned_at INTEGER NOT NULL,
    count INTEGER NOT NULL,
    job BLOB,
    state TEXT NOT NULL,
    waited INTEGER,
    ran INTEGER,
    PRIMARY KEY (uid, slot)
) STRICT, WITHOUT ROWID;

CREATE INDEX ticks_age ON ticks (planned_at, uid, slot);

-- The place of ticks (7), beside those of ended jobs.
INSERT INTO places (state) VALUES (7);
