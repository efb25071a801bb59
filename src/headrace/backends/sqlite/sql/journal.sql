-- name: write
-- The primary key.
INSERT INTO journal (at, text) VALUES (?1, ?2) RETURNING number

-- name: trim
-- The primary key.
DELETE FROM journal WHERE number <= ?1

-- name: read
-- The primary key.
SELECT number, at, text FROM journal WHERE number < ?1 ORDER BY number DESC LIMIT ?2
