-- What operators did. Numbers are never given twice, so what was trimmed is not mistaken for something new.
CREATE TABLE journal (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    text BLOB NOT NULL
) STRICT;
