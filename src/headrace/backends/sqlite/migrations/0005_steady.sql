-- Since when a worker has been steady; and whether a running job had begun before its lease.
ALTER TABLE workers ADD COLUMN steady_since INTEGER NOT NULL DEFAULT 0;
ALTER TABLE running ADD COLUMN begun INTEGER NOT NULL DEFAULT 0;

-- One row: since when somebody has been listed without a break, and the last absence of the fleet that was nobody's
-- fault (see ``Backend.renew``).
CREATE TABLE absence (
    at_work_since INTEGER NOT NULL,
    begins INTEGER NOT NULL,
    ends INTEGER NOT NULL
) STRICT;
INSERT INTO absence VALUES (0, 0, 0);
