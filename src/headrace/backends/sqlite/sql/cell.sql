-- Cells that are too big for their job's row.

-- name: last
-- The last entry of the INTEGER PRIMARY KEY.
SELECT coalesce(max(cell), 0) FROM cells

-- name: put
-- INTEGER PRIMARY KEY, appended.
INSERT INTO cells (cell, data) VALUES (?1, ?2)

-- name: get
-- INTEGER PRIMARY KEY; NULL for a large one, which is read in place.
SELECT CASE WHEN length(data) <= ?2 THEN data END FROM cells WHERE cell = ?1

-- name: size
-- INTEGER PRIMARY KEY; the length of a blob is read without reading the blob.
SELECT length(data) FROM cells WHERE cell = ?1

-- name: drop
-- INTEGER PRIMARY KEY.
DELETE FROM cells WHERE cell = ?1
