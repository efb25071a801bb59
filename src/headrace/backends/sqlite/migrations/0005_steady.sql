-- Since when a worker's beats have come without a gap; and whether a running job had begun before its lease.
ALTER TABLE workers ADD COLUMN steady_since INTEGER NOT NULL DEFAULT 0;
ALTER TABLE running ADD COLUMN begun INTEGER NOT NULL DEFAULT 0;

-- One row: since when somebody has been listed, and the last time in which nobody was, after a fleet that was at work.
CREATE TABLE absence (
    at_work_since INTEGER NOT NULL,
    begins INTEGER NOT NULL,
    ends INTEGER NOT NULL
) STRICT;
INSERT INTO absence VALUES (0, 0, 0);
