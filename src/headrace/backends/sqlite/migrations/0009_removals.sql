-- How many ended jobs sweeps have removed, by the hour since 1970 in which they ended, and what they weighed.
CREATE TABLE removals (
    hour INTEGER NOT NULL,
    state INTEGER NOT NULL,
    task TEXT NOT NULL,
    tenant TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (hour, state, task, tenant)
) STRICT, WITHOUT ROWID;
