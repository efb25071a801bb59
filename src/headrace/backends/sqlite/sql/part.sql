-- Parts that running jobs send ahead of their result.

-- name: send
-- PRIMARY KEY (id, epoch, number): the last one of the job; parts_until.
INSERT INTO parts (id, epoch, number, until, body)
SELECT ?1, ?2, ?3, ?4, ?5
WHERE NOT EXISTS (SELECT 1 FROM parts AS p WHERE p.id = ?1 AND (p.epoch, p.number) >= (?2, ?3))

-- name: trim
-- PRIMARY KEY (id, epoch, number): those of a job that come before.
DELETE FROM parts WHERE id = ?1 AND (epoch, number) <= (?2, ?3)

-- name: remove
-- parts_until, in its order.
DELETE FROM parts WHERE (id, epoch, number) IN (
    SELECT p.id, p.epoch, p.number FROM parts AS p INDEXED BY parts_until WHERE p.until <= ?1 ORDER BY p.until LIMIT ?2
)

-- name: read
-- PRIMARY KEY (id, epoch, number), in its order.
SELECT epoch, number, body FROM parts WHERE id = ?1 AND (epoch, number) > (?2, ?3) ORDER BY epoch, number LIMIT ?4
