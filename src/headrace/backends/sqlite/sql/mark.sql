-- How far changes of rules have walked their queues.

-- name: set
-- PRIMARY KEY (qid, kind).
INSERT INTO marks (qid, kind, place) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET place = excluded.place

-- name: drop
-- PRIMARY KEY (qid, kind).
DELETE FROM marks WHERE qid = ?1 AND kind = ?2

-- name: any
-- Any entry of the table.
SELECT qid, kind, place FROM marks LIMIT 1

-- name: next_tenant
-- UNIQUE (qid, name): the one after so many.
SELECT name FROM tenants WHERE qid = ?1 AND name >= ?2 ORDER BY name LIMIT 1 OFFSET ?3
