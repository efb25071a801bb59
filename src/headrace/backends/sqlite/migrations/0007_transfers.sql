-- Jobs on their way to and from other stores. A leg that is not here is closed.
CREATE TABLE legs (
    leg TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- What departed. ``body`` is the parcel, until it is confirmed; ``queue`` and ``key`` are set if the job had the key.
CREATE TABLE departed (
    leg TEXT NOT NULL,
    id BLOB NOT NULL,
    queue TEXT,
    key TEXT,
    body BLOB,
    PRIMARY KEY (leg, id)
) STRICT;

CREATE INDEX departed_parcels ON departed (leg, id) WHERE body IS NOT NULL;
CREATE INDEX departed_keys ON departed (leg, queue, key) WHERE body IS NOT NULL AND key IS NOT NULL;

CREATE TABLE arrived (
    leg TEXT NOT NULL,
    id BLOB NOT NULL,
    PRIMARY KEY (leg, id)
) STRICT, WITHOUT ROWID;
