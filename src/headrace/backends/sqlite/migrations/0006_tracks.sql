-- The sheets of trackers: each holds the subjects of one tier whose points are at ``low`` or above, up to the next one.
-- What is on them lies apart, because looking for what is due changes ``look_at`` and nothing else.
CREATE TABLE sheets (
    sid INTEGER PRIMARY KEY,
    tracker TEXT NOT NULL,
    tier TEXT NOT NULL,
    low INTEGER NOT NULL,
    version INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    run INTEGER NOT NULL,
    ran_at INTEGER,
    subjects INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    look_at INTEGER NOT NULL,
    UNIQUE (tracker, tier, low)
) STRICT;

CREATE INDEX sheets_due ON sheets (tracker, look_at, tier, low);

CREATE TABLE sheet_contents (
    sid INTEGER PRIMARY KEY,
    content BLOB NOT NULL
) STRICT;
