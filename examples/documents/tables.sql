CREATE TABLE IF NOT EXISTS artifact_revision (
    uid text,
    number int,
    body text NOT NULL,
    PRIMARY KEY (uid, number)
);
CREATE TABLE IF NOT EXISTS event (
    uid text NOT NULL,
    number int NOT NULL,
    day date NOT NULL,
    what text NOT NULL,
    PRIMARY KEY (uid, number, day, what),
    FOREIGN KEY (uid, number) REFERENCES artifact_revision
);
