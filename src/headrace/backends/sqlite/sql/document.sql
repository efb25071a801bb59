-- Documents of the core.

-- name: get
-- PRIMARY KEY.
SELECT version, body FROM documents WHERE name = ?1

-- name: put
-- PRIMARY KEY.
INSERT INTO documents (name, version, body) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, body = excluded.body

-- name: remove
-- PRIMARY KEY.
DELETE FROM documents WHERE name = ?1

-- name: find
-- PRIMARY KEY, in its order: (name >= the later of prefix and after).
SELECT name, version, body FROM documents
WHERE name >= ?1 AND name > ?2 AND substr(name, 1, length(?3)) = ?3
ORDER BY name
LIMIT ?4
