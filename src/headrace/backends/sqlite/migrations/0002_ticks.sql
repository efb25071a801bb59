-- Schedules, and how far each is planned. ``rank`` is ``plan_priority``. ``definition`` is a BLOB (small) or an INTEGER
-- (a row of ``cells``).
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

-- The schedules that a planner must look at, first by rank. With ``bucket`` in the index, a planner passes over the
-- share of others without reading the rows.
CREATE INDEX schedules_due ON schedules (rank, look_at, name, bucket) WHERE enabled AND look_at IS NOT NULL;

CREATE INDEX schedules_tenant ON schedules (tenant, name);
CREATE INDEX schedules_queue ON schedules (queue, name);

-- The ticks: what became of slots, FIRED (0), SKIPPED (1) or MISSED (2). They name schedules by ``uid``, because they
-- outlive them.
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
