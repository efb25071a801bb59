-- The yardstick: one wide table with five indexes, a job's row updated at every step of its life.

-- name: schema
DO $$ BEGIN
    CREATE TYPE job_state AS ENUM ('available', 'completed', 'failed', 'running', 'paused');
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;
CREATE TABLE IF NOT EXISTS wide_jobs (
    id uuid PRIMARY KEY, team_id integer NOT NULL, function_id uuid, created timestamptz NOT NULL, lock_id uuid,
    last_heartbeat timestamptz, janitor_touch_count smallint NOT NULL, transition_count smallint NOT NULL,
    last_transition timestamptz NOT NULL, queue_name text NOT NULL, state job_state NOT NULL,
    scheduled timestamptz NOT NULL, priority smallint NOT NULL, vm_state bytea, metadata bytea, parameters bytea, blob bytea
);
CREATE INDEX IF NOT EXISTS wide_jobs_order ON wide_jobs (queue_name, state, scheduled, priority);
CREATE INDEX IF NOT EXISTS wide_jobs_team ON wide_jobs (team_id);
CREATE INDEX IF NOT EXISTS wide_jobs_function ON wide_jobs (function_id);
CREATE INDEX IF NOT EXISTS wide_jobs_queue ON wide_jobs (queue_name)

-- name: session
SET plan_cache_mode = auto

-- name: insert
INSERT INTO wide_jobs
SELECT
    j.id, j.team, j.function, now(), NULL, NULL, 0, 0, now(), 'bench', 'available', now(), 1, j.vm_state, j.metadata,
    j.parameters, j.blob
FROM unnest(
    %(ids)b::uuid[], %(teams)b::integer[], %(functions)b::uuid[], %(vm_states)b::bytea[], %(metadatas)b::bytea[],
    %(parameters)b::bytea[], %(blobs)b::bytea[]
) AS j (id, team, function, vm_state, metadata, parameters, blob)

-- name: claim
-- wide_jobs_order from its head.
WITH head AS (
    SELECT id FROM wide_jobs WHERE state = 'available' AND queue_name = 'bench' AND scheduled <= now()
    ORDER BY priority, scheduled LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE wide_jobs AS j
SET state = 'running', lock_id = %(lock)s, last_heartbeat = now(), last_transition = now(),
    transition_count = transition_count + 1
FROM head AS h WHERE j.id = h.id
RETURNING j.id, j.vm_state, j.metadata, j.parameters, j.blob

-- name: settle
UPDATE wide_jobs SET state = %(state)s::job_state, last_transition = now(), transition_count = transition_count + 1
WHERE id = %(id)s AND lock_id = %(lock)s

-- name: patch
UPDATE wide_jobs SET vm_state = coalesce(%(vm_state)b, vm_state) WHERE id = %(id)s AND lock_id = %(lock)s

-- name: release
UPDATE wide_jobs SET lock_id = NULL, last_heartbeat = NULL WHERE id = %(id)s AND lock_id = %(lock)s

-- name: delete
DELETE FROM wide_jobs WHERE state IN ('completed', 'failed')
