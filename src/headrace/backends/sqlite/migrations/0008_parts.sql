-- What running jobs send ahead of their result, and until when it is kept.
CREATE TABLE parts (
    id BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    number INTEGER NOT NULL,
    until INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (id, epoch, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX parts_until ON parts (until);
