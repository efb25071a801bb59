-- How far changes of rules have walked the tenants (0) or groups (1) of a queue: those from ``place`` on, by name, are
-- still to come. Mostly empty.
CREATE TABLE marks (
    qid INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    place TEXT NOT NULL,
    PRIMARY KEY (qid, kind)
) STRICT, WITHOUT ROWID;
