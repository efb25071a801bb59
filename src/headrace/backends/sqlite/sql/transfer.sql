-- Jobs on their way to and from other stores.

-- name: open
-- PRIMARY KEY of legs.
INSERT INTO legs (leg) VALUES (?1) ON CONFLICT (leg) DO NOTHING

-- name: is_open
-- PRIMARY KEY of legs.
SELECT 1 FROM legs WHERE leg = ?1

-- name: close
-- PRIMARY KEY of legs.
DELETE FROM legs WHERE leg = ?1

-- name: forget_departed
-- PRIMARY KEY (leg, id), a bounded number.
DELETE FROM departed WHERE (leg, id) IN (SELECT d.leg, d.id FROM departed AS d WHERE d.leg = ?1 LIMIT ?2)

-- name: forget_arrived
-- PRIMARY KEY (leg, id), a bounded number.
DELETE FROM arrived WHERE (leg, id) IN (SELECT a.leg, a.id FROM arrived AS a WHERE a.leg = ?1 LIMIT ?2)

-- name: depart
-- PRIMARY KEY (leg, id); departed_parcels; departed_keys if it had its key.
INSERT INTO departed (leg, id, queue, key, body) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (leg, id) DO UPDATE SET queue = excluded.queue, key = excluded.key, body = excluded.body

-- name: parcels
-- departed_parcels, in its order.
SELECT body FROM departed WHERE leg = ?1 AND body IS NOT NULL ORDER BY id LIMIT ?2

-- name: parcel
-- PRIMARY KEY (leg, id).
SELECT id, body FROM departed WHERE leg = ?1 AND id = ?2 AND body IS NOT NULL

-- name: parcel_of_key
-- departed_keys.
SELECT id, body FROM departed WHERE leg = ?1 AND queue = ?2 AND key = ?3 AND body IS NOT NULL AND key IS NOT NULL

-- name: confirm
-- PRIMARY KEY (leg, id), one probe per id.
UPDATE departed SET body = NULL, queue = NULL, key = NULL WHERE leg = ?1 AND id = ?2

-- name: arrive
-- PRIMARY KEY (leg, id).
INSERT INTO arrived (leg, id) VALUES (?1, ?2) ON CONFLICT (leg, id) DO NOTHING RETURNING 1

-- name: departed
-- PRIMARY KEY (leg, id), in its order.
SELECT id FROM departed WHERE leg = ?1 AND id > ?2 ORDER BY id LIMIT ?3

-- name: arrived
-- PRIMARY KEY (leg, id), in its order.
SELECT id FROM arrived WHERE leg = ?1 AND id > ?2 ORDER BY id LIMIT ?3

-- name: inboxes
-- PRIMARY KEY (seq, inbox).
SELECT CAST(inbox AS BLOB) FROM waiters WHERE seq = ?1 ORDER BY since, inbox

-- name: complete
-- INTEGER PRIMARY KEY.
UPDATE jobs SET error = ?2, far = ?3 WHERE seq = ?1

-- name: qid_of
-- UNIQUE (name) of queues.
SELECT qid FROM queues WHERE name = ?1

-- name: held_keys
-- PRIMARY KEY (qid, key) of keys, in its order; INTEGER PRIMARY KEY of queues.
SELECT q.name, k.key, k.id, k.held_until FROM keys AS k CROSS JOIN queues AS q ON q.qid = k.qid
WHERE (k.qid, k.key) > (?1, ?2) AND k.held_until > ?3
ORDER BY k.qid, k.key
LIMIT ?4

-- name: hold_key
-- PRIMARY KEY (qid, key); keys_outlived.
INSERT INTO keys (qid, key, seq, held_until, id) VALUES (?1, ?2, 0, ?3, ?4) ON CONFLICT (qid, key) DO NOTHING RETURNING 1
