-- Small values that the core keeps for itself, under names.
CREATE TABLE documents (
    name TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
