-- The sheets of trackers.

-- name: {sheet}
s.tier, s.low, s.version, s.due_at, s.run, s.ran_at, s.subjects

-- name: covering
-- UNIQUE sheets (tracker, tier, low), one entry; INTEGER PRIMARY KEY.
SELECT s.sid FROM sheets AS s WHERE s.tracker = ?1 AND s.tier = ?2 AND s.low <= ?3 ORDER BY s.low DESC LIMIT 1

-- name: sheet
-- INTEGER PRIMARY KEY of both.
SELECT {sheet}, c.content FROM sheets AS s JOIN sheet_contents AS c ON c.sid = s.sid WHERE s.sid = ?1

-- name: walk
-- UNIQUE sheets (tracker, tier, low), as many entries as are wanted; INTEGER PRIMARY KEY.
SELECT {sheet}, c.content FROM sheets AS s JOIN sheet_contents AS c ON c.sid = s.sid
WHERE s.tracker = ?1 AND s.tier = ?2 AND s.low >= ?3 ORDER BY s.low LIMIT ?4

-- name: known
-- UNIQUE sheets (tracker, tier, low).
SELECT s.sid, s.version FROM sheets AS s WHERE s.tracker = ?1 AND s.tier = ?2 AND s.low = ?3

-- name: add
-- UNIQUE sheets (tracker, tier, low); sheets_due.
INSERT INTO sheets (tracker, tier, low, version, due_at, run, ran_at, subjects, bytes, look_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?5) RETURNING sid

-- name: change
-- INTEGER PRIMARY KEY.
UPDATE sheets SET version = ?2, due_at = ?3, run = ?4, ran_at = ?5, subjects = ?6, bytes = ?7, look_at = ?3 WHERE sid = ?1

-- name: fill
-- INTEGER PRIMARY KEY.
INSERT INTO sheet_contents (sid, content) VALUES (?1, ?2) ON CONFLICT (sid) DO UPDATE SET content = excluded.content

-- name: erase
-- INTEGER PRIMARY KEY.
DELETE FROM sheets WHERE sid = ?1

-- name: empty
-- INTEGER PRIMARY KEY.
DELETE FROM sheet_contents WHERE sid = ?1

-- name: due
-- sheets_due, as many entries as are wanted; INTEGER PRIMARY KEY.
SELECT s.sid, {sheet} FROM sheets AS s WHERE s.tracker = ?1 AND s.look_at <= ?2
ORDER BY s.look_at, s.tier, s.low LIMIT ?3

-- name: hold
-- INTEGER PRIMARY KEY.
UPDATE sheets SET look_at = ?2 WHERE sid = ?1

-- name: next
-- sheets_due, one entry.
SELECT s.look_at FROM sheets AS s WHERE s.tracker = ?1 ORDER BY s.look_at LIMIT 1

-- name: tally
-- All sheets of the tracker, or all there are: some thousand for a million subjects.
SELECT s.tracker, s.tier, count(*), sum(s.subjects), sum(s.bytes) FROM sheets AS s
WHERE ?1 IS NULL OR s.tracker = ?1 GROUP BY s.tracker, s.tier ORDER BY s.tracker, s.tier
