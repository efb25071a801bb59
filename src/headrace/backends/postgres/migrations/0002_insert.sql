-- The store's clock.
CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
    'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint';

-- The role that calls. In a SECURITY DEFINER function ``current_user`` is the owner; the setting is the role that the
-- session has taken on, which the server allows only to its members.
CREATE FUNCTION caller() RETURNS name LANGUAGE sql STABLE AS $$
    SELECT CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role')::name END
$$;

-- When a call happens. The store's clock counts. An ``at`` is believed only from the owner (in tests), and from one
-- step of a statement to the next.
CREATE FUNCTION clock_of_owner(p_at bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN CASE
        WHEN pg_has_role(caller(), (SELECT c.relowner FROM pg_class AS c WHERE c.oid = 'queues'::regclass), 'USAGE') THEN p_at
        ELSE now_us()
    END;
END $$;
CREATE FUNCTION clock(p_at bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT CASE
        WHEN p_at IS NULL THEN now_us()
        WHEN p_at BETWEEN extract(epoch FROM statement_timestamp()) * 1000000 AND now_us() THEN p_at
        ELSE clock_of_owner(p_at)
    END
$$;

-- Refuse values that are out of bounds.
CREATE FUNCTION refuse(p_problem text, p_hint text DEFAULT NULL) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format('%s; nothing was stored', p_problem),
        HINT = coalesce(p_hint, 'Clients check the same before they send anything.');
END $$;

-- Refuse a queue for jobs whose name has control characters: a stray line end would send jobs where no worker listens.
CREATE FUNCTION refuse_control(p_queue text) RETURNS void LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    IF p_queue ~ '[\u0001-\u001f\u007f-\u009f\u2028\u2029]' THEN
        PERFORM refuse(format('queue: %s contains a control character; remove line ends, tabs and the like', to_json(p_queue)));
    END IF;
END $$;

-- A number for a name. It is as good as unique, so it need not be stored or locked.
CREATE FUNCTION number_of(p_name text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT ('x' || encode(substr(sha256(convert_to(p_name, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint & 4611686018427387903
$$;

-- The number that a queue gets, or, if another queue has it, the next one to try.
CREATE FUNCTION queue_number(p_name text, p_try integer) RETURNS integer LANGUAGE sql STABLE SET search_path FROM CURRENT AS
    'SELECT (number_of(''queue '' || p_try || '' '' || p_name) % 2147483646 + 1)::integer';

-- Give a queue this number, unless another has it. Returns whether it was given. Waits a moment for a transaction that
-- names another queue under the same number.
CREATE FUNCTION take_number(p_qid integer, p_name text) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
BEGIN
    INSERT INTO numbers (qid, name) VALUES (p_qid, p_name);  -- numbers_differ
    RETURN true;
EXCEPTION
    WHEN exclusion_violation THEN
        RETURN false;
    WHEN lock_not_available OR deadlock_detected THEN
        RAISE EXCEPTION 'queue "%": a transaction that is still open names another queue, which has the same number', p_name
            USING ERRCODE = 'serialization_failure', HINT = 'Try again once it has ended, or give the queue another name.';
END $$;

-- Make the name of a queue known. Returns its number. ``p_bound`` as in ``insert_v1``.
CREATE FUNCTION name_queue(p_name text, p_bound boolean) RETURNS integer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_qid integer;
BEGIN
    IF (octet_length(p_name) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        PERFORM refuse(format('queue: expected a name of 1 to 1024 bytes in UTF-8, got %s', coalesce(octet_length(p_name), 0)));
    END IF;
    FOR v_try IN 0..99 LOOP  -- of two billion numbers: a second try is rare
        SELECT q.qid INTO v_qid FROM queues AS q WHERE q.name = p_name;  -- queues_name_key
        IF FOUND THEN
            RETURN v_qid;
        END IF;
        SELECT n.qid INTO v_qid FROM named AS n WHERE n.name = p_name LIMIT 1;  -- named_name
        IF NOT FOUND THEN
            v_qid := queue_number(p_name, v_try);
            CONTINUE WHEN name_of(v_qid) <> p_name OR NOT take_number(v_qid, p_name);
        END IF;
        IF NOT p_bound THEN
            INSERT INTO queues (qid, name) VALUES (v_qid, p_name) ON CONFLICT DO NOTHING;
            IF FOUND THEN
                RETURN v_qid;
            END IF;
        ELSE
            INSERT INTO named (qid, name) SELECT v_qid, p_name
            WHERE NOT EXISTS (SELECT 1 FROM named AS n WHERE n.qid = v_qid AND n.name = p_name);
            RETURN v_qid;
        END IF;
    END LOOP;
    PERFORM refuse('queue: no number is free for this name', 'Try another name.');
END $$;

-- Copy names from ``named`` to ``queues``: these, or a bounded number of all. Returns whether there were any.
CREATE FUNCTION name_queues(p_names text[] DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM named)  -- as usual: no need to look up each name
        OR NOT EXISTS (SELECT 1 FROM named AS n WHERE p_names IS NULL OR n.name = ANY (p_names))  -- named_name
    THEN
        RETURN false;
    END IF;
    WITH few AS MATERIALIZED (
        SELECT n.ctid AS place FROM named AS n WHERE p_names IS NULL OR n.name = ANY (p_names) LIMIT 1000 FOR UPDATE
    ), gone AS (
        DELETE FROM named AS n USING few AS f WHERE n.ctid = f.place RETURNING n.qid, n.name
    )
    INSERT INTO queues (qid, name) SELECT DISTINCT g.qid, g.name FROM gone AS g ORDER BY g.name ON CONFLICT DO NOTHING;
    RETURN true;
END $$;

-- The numbers of queues, which are made known. Until the end of the transaction no queue in use can be forgotten: the
-- lock on the table prevents it, or, if a queue is leaving, the lock on its row. Neither blocks anybody else.
CREATE FUNCTION queue_ids(p_names text[], p_bound boolean DEFAULT false) RETURNS integer[] LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    found integer[];
    v_leaving boolean;
BEGIN
    LOCK TABLE queues IN ROW SHARE MODE;
    FOR attempt IN 1..2 LOOP
        IF cardinality(p_names) = 1 THEN  -- as most often, and at less cost; queues_name_key
            SELECT ARRAY[q.qid], q.leaving INTO found, v_leaving FROM queues AS q WHERE q.name = p_names[1];
        ELSE  -- queues_name_key, one probe per name
            SELECT array_agg(q.qid ORDER BY n.ord), bool_or(q.leaving) INTO found, v_leaving
            FROM unnest(p_names) WITH ORDINALITY AS n (name, ord) JOIN queues AS q ON q.name = n.name;
        END IF;
        EXIT WHEN v_leaving IS NOT TRUE;
        PERFORM 1 FROM queues AS q WHERE q.name = ANY (p_names) AND q.leaving FOR KEY SHARE;
    END LOOP;
    IF cardinality(found) IS DISTINCT FROM cardinality(p_names) THEN
        WITH numbers AS MATERIALIZED (  -- in the order of their names, as two may make the same ones
            SELECT d.name, name_queue(d.name, p_bound) AS qid
            FROM (SELECT DISTINCT m AS name FROM unnest(p_names) AS m ORDER BY m) AS d
        )
        SELECT array_agg(x.qid ORDER BY n.ord) INTO found
        FROM unnest(p_names) WITH ORDINALITY AS n (name, ord) JOIN numbers AS x ON x.name = n.name;
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- An old snapshot may show a queue that has been forgotten since. Then this fails.
        PERFORM 1 FROM queues AS q WHERE q.qid = ANY (found) FOR KEY SHARE;
    END IF;
    RETURN found;
END $$;

-- Lock a key that nobody may have: whoever wants to insert the same one waits for a row that was inserted, although it is
-- deleted again.
CREATE FUNCTION lock_vacant(p_qid integer, p_key text) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    c_nobody CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
BEGIN
    LOOP
        PERFORM 1 FROM keys AS k WHERE k.qid = p_qid AND k.key = p_key FOR UPDATE;  -- keys_pkey
        EXIT WHEN FOUND;
        INSERT INTO keys (qid, key, id) VALUES (p_qid, p_key, c_nobody) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            DELETE FROM keys AS k WHERE k.qid = p_qid AND k.key = p_key AND k.id = c_nobody;
            EXIT;
        END IF;
    END LOOP;
END $$;

-- Lock the keys of these jobs, and the same keys in the queues that they move to. A transaction that writes several
-- keys calls this first, after it has locked its jobs by id. All use the same order, so no two wait for each other.
CREATE FUNCTION lock_keys(p_ids uuid[], p_qids integer[], p_to integer[] DEFAULT NULL) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    r record;
BEGIN
    IF cardinality(array_remove(p_to, NULL)) > 0 THEN
        FOR r IN
            SELECT DISTINCT x.qid, j.key, bool_or(x.id IS NULL) OVER (PARTITION BY x.qid, j.key) AS vacant
            FROM unnest(p_ids, p_qids, p_to) AS n (id, qid, goes_to) JOIN jobs AS j ON j.id = ANY (ARRAY[n.id])  -- jobs_pkey
            CROSS JOIN LATERAL (VALUES (n.qid, n.id), (n.goes_to, NULL)) AS x (qid, id)
            WHERE j.key IS NOT NULL AND x.qid IS NOT NULL ORDER BY x.qid, j.key
        LOOP
            IF r.vacant THEN
                PERFORM lock_vacant(r.qid, r.key);
            ELSE
                PERFORM 1 FROM keys AS k WHERE k.qid = r.qid AND k.key = r.key AND k.id = ANY (p_ids) FOR UPDATE;  -- keys_pkey
            END IF;
        END LOOP;
        RETURN;
    END IF;
    PERFORM 1 FROM (  -- jobs_pkey
        SELECT DISTINCT n.qid, j.key, n.id FROM unnest(p_ids, p_qids) AS n (id, qid)
        JOIN jobs AS j ON j.id = ANY (ARRAY[n.id]) WHERE j.key IS NOT NULL AND n.qid IS NOT NULL ORDER BY n.qid, j.key OFFSET 0
    ) AS m CROSS JOIN LATERAL (  -- keys_pkey, both columns
        SELECT 1 FROM keys AS k WHERE k.qid = m.qid AND k.key = m.key AND k.id = m.id FOR UPDATE
    ) AS locked;
END $$;

-- Bytes in the cells of a job.
CREATE FUNCTION weight(p_parameters bytea, p_vm_state bytea, p_metadata bytea, p_blob bytea) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(octet_length(p_parameters), 0) + coalesce(octet_length(p_vm_state), 0)
        + coalesce(octet_length(p_metadata), 0) + coalesce(octet_length(p_blob), 0)
$$;

-- A cell as a claim brings it. One that is not wanted is empty, so it only tells that it is there; so is one that is
-- larger than any client sends, which no worker can read.
CREATE FUNCTION brought(p_cell bytea, p_wanted boolean) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    'SELECT CASE WHEN octet_length(p_cell) > 67108864 OR NOT p_wanted AND p_cell IS NOT NULL THEN ''''::bytea WHEN p_wanted THEN p_cell END';

-- The prefix of the keys, groups and schedules of a role that is confined to tenants.
CREATE FUNCTION key_scope(p_tenant text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT replace(replace(p_tenant, '%', '%25'), '/', '%2F') || '/'
$$;
-- Whether a key or a group has this prefix, and is not too long.
CREATE FUNCTION scoped_key_fits(p_tenant text, p_key text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT starts_with(p_key, key_scope(p_tenant)) AND octet_length(p_key) <= 1024 + octet_length(key_scope(p_tenant))
$$;

-- A new job, as clients send it. ``queue`` is an index into the names that are sent along.
CREATE TYPE job_row AS (
    id uuid, queue smallint, task text, tenant text, key text, priority smallint, delay bigint, run_at bigint,
    expires bigint, max_attempts integer, timeout bigint, result_ttl bigint, headers bytea, reply_to text,
    hold_failed boolean, key_until smallint, replaces smallint, group_name text, parameters bytea, vm_state bytea,
    metadata bytea, blob bytea
);

-- What a row weighs. NULL if it is out of bounds, as it might overflow later, among the jobs of others. A job made by a
-- schedule may have more headers, and expire later. 2 ** 52 microseconds are 142 years: nothing overflows with them,
-- here or in clients.
CREATE FUNCTION row_weight(p_now bigint, r job_row) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN octet_length(r.task) BETWEEN 1 AND 1024 AND octet_length(r.tenant) <= 1024
            AND (r.key IS NULL OR octet_length(r.key) <= 1024 OR scoped_key_fits(r.tenant, r.key))
            AND (r.group_name IS NULL OR octet_length(r.group_name) <= 1024 OR scoped_key_fits(r.tenant, r.group_name))
            AND (r.reply_to IS NULL OR octet_length(r.reply_to) <= 1024)
            AND (r.headers IS NULL OR octet_length(r.headers) <= 10240)
            AND (r.parameters IS NULL OR octet_length(r.parameters) <= 67108864)
            AND (r.vm_state IS NULL OR octet_length(r.vm_state) <= 67108864)
            AND (r.metadata IS NULL OR octet_length(r.metadata) <= 67108864)
            AND (r.blob IS NULL OR octet_length(r.blob) <= 67108864)
            AND r.delay BETWEEN 0 AND 4503599627370496
            AND (r.run_at IS NULL OR r.run_at BETWEEN 0 AND p_now + 4503599627370496)
            AND (r.expires IS NULL OR r.expires BETWEEN 0 AND 9007199254740992)
            AND (r.timeout IS NULL OR r.timeout BETWEEN 0 AND 4503599627370496)
            AND (r.result_ttl IS NULL OR r.result_ttl BETWEEN 0 AND 4503599627370496)
            AND (r.max_attempts IS NULL OR r.max_attempts > 0)
        THEN
            200 + length(r.task) + length(r.tenant) + coalesce(length(r.key), 0) + coalesce(length(r.group_name), 0)
            + coalesce(octet_length(r.headers), 0) + weight(r.parameters, r.vm_state, r.metadata, r.blob)
    END
$$;

-- Refuse a row that is out of bounds, and say why.
CREATE FUNCTION refuse_row(p_now bigint, p_ord integer, r job_row) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    c_long CONSTANT bigint := 4503599627370496;
BEGIN
    PERFORM refuse(format('job %s: %s: expected %s to %s %s, got %s', p_ord, x.what, x.least, x.most, x.unit, coalesce(x.got::text, 'none')))
    FROM (
        VALUES
            ('task', octet_length(r.task), 1, 1024, 'bytes'), ('tenant', octet_length(r.tenant), 0, 1024, 'bytes'),
            ('key', coalesce(octet_length(r.key), 0), 0, 1024, 'bytes'),
            ('group', coalesce(octet_length(r.group_name), 0), 0, 1024, 'bytes'),
            ('reply_to', coalesce(octet_length(r.reply_to), 0), 0, 1024, 'bytes'),
            ('headers', coalesce(octet_length(r.headers), 0), 0, 10240, 'bytes'),
            ('parameters', coalesce(octet_length(r.parameters), 0), 0, 67108864, 'bytes'),
            ('vm_state', coalesce(octet_length(r.vm_state), 0), 0, 67108864, 'bytes'),
            ('metadata', coalesce(octet_length(r.metadata), 0), 0, 67108864, 'bytes'),
            ('blob', coalesce(octet_length(r.blob), 0), 0, 67108864, 'bytes'),
            ('delay', r.delay, 0, c_long, 'microseconds'),
            ('run_at', coalesce(r.run_at, 0), 0, p_now + c_long, 'microseconds'),
            ('expires', coalesce(r.expires, 0), 0, 2 * c_long, 'microseconds'),
            ('timeout', coalesce(r.timeout, 0), 0, c_long, 'microseconds'),
            ('result_ttl', coalesce(r.result_ttl, 0), 0, c_long, 'microseconds'),
            ('max_attempts', coalesce(r.max_attempts, 1), 1, 2147483647, 'runs')
    ) AS x (what, got, least, most, unit) WHERE (x.got BETWEEN x.least AND x.most) IS NOT TRUE;
END $$;

-- An inbox waits for the end of a job. Of more than a hundred, the oldest are dropped, unless somebody has locked them.
CREATE FUNCTION watch(p_now bigint, p_id uuid, p_inbox text) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_first text[];
BEGIN
    INSERT INTO waiters (id, inbox, since) VALUES (p_id, p_inbox, p_now)
    ON CONFLICT ON CONSTRAINT waiters_pkey DO UPDATE SET since = excluded.since;
    v_first := ARRAY(  -- waiters_pkey, those of one job
        SELECT w.inbox FROM waiters AS w WHERE w.id = p_id ORDER BY w.since DESC NULLS LAST, w.inbox OFFSET 100
    );
    IF v_first <> '{}' THEN
        DELETE FROM waiters AS w USING (
            SELECT f.id, f.inbox FROM waiters AS f WHERE f.id = p_id AND f.inbox = ANY (v_first) FOR UPDATE SKIP LOCKED
        ) AS g WHERE w.id = g.id AND w.inbox = g.inbox;
    END IF;
END $$;

-- The numbers of groups, tenants and lanes.
CREATE FUNCTION gid_of(p_qid integer, p_group text) RETURNS bigint LANGUAGE sql STABLE AS
    'SELECT number_of(''group '' || p_qid || '' '' || p_group)';
CREATE FUNCTION tid_of(p_qid integer, p_tenant text) RETURNS bigint LANGUAGE sql STABLE AS
    'SELECT number_of(''tenant '' || p_qid || '' '' || p_tenant)';
-- Even, and above all numbers of queues. ``lane_of_task``: where jobs of a task with rules are put aside.
CREATE FUNCTION lane_of(p_tid bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT p_tid & -2 | 4611686018427387904';
CREATE FUNCTION lane_of_task(p_qid integer, p_tenant text, p_task text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT number_of('lane ' || p_qid || ' ' || length(p_tenant) || ' ' || p_tenant || p_task) & -2 | 4611686018427387904
$$;

-- New jobs become AVAILABLE, and are counted.
CREATE FUNCTION make_ready(p_now bigint, p_qids integer[], p_rows job_row[], p_sizes integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO ready (run_at, id, epoch, qid, attempt, lost, size, priority, keyed, lane, dies_at)
    SELECT
        coalesce(n.run_at, p_now + n.delay), n.id, 0, p_qids[n.queue], 0, 0, p_sizes[n.ordinality], n.priority, n.key IS NOT NULL,
        CASE WHEN coalesce(n.run_at, p_now + n.delay) > p_now THEN 0 END,
        CASE WHEN n.expires IS NOT NULL THEN greatest(p_now + n.expires, coalesce(n.run_at, p_now + n.delay)) END
    FROM unnest(p_rows) WITH ORDINALITY AS n;
    IF cardinality(p_qids) = 1 THEN  -- as most often, and without reading all rows once more
        INSERT INTO deltas (qid, state, jobs) VALUES (p_qids[1], 0, cardinality(p_rows));
    ELSE
        INSERT INTO deltas (qid, state, jobs) SELECT p_qids[n.queue], 0, count(*) FROM unnest(p_rows) AS n GROUP BY 1;
    END IF;
END $$;

-- The same where there are groups or governed queues. Jobs of groups wait until the caller has them called.
CREATE FUNCTION make_ready_by_rules(p_now bigint, p_qids integer[], p_rows job_row[], p_sizes integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_governed boolean[] := ARRAY(  -- queues_pkey
        SELECT coalesce(q.governed, false) FROM unnest(p_qids) WITH ORDINALITY AS n (qid, ord) LEFT JOIN queues AS q ON q.qid = n.qid
        ORDER BY n.ord
    );
BEGIN
    WITH fresh AS MATERIALIZED (
        SELECT
            n.id, n.task, n.tenant, n.key, n.priority, n.expires, p_sizes[n.ordinality] AS size,
            p_qids[n.queue] AS qid, coalesce(n.run_at, p_now + n.delay) AS due,
            CASE WHEN n.group_name IS NOT NULL THEN gid_of(p_qids[n.queue], n.group_name) END AS gid,
            CASE
                WHEN n.group_name IS NOT NULL THEN -p_qids[n.queue]
                WHEN v_governed[n.queue] THEN lane_of(tid_of(p_qids[n.queue], n.tenant))
                    + (coalesce(n.run_at, p_now + n.delay) > p_now)::integer
                WHEN coalesce(n.run_at, p_now + n.delay) > p_now THEN 0
            END AS lane
        FROM unnest(p_rows) WITH ORDINALITY AS n
    ), told AS (
        INSERT INTO news (qid, kind, tids, jobs, ats, tenants)
        SELECT g.qid, 1, array_agg(tid_of(g.qid, g.tenant)), array_agg(g.jobs), array_agg(g.due), array_agg(g.tenant)
        FROM (
            SELECT f.qid, f.tenant, count(*) AS jobs, min(f.due) AS due, (row_number() OVER () - 1) / 250 AS part
            FROM fresh AS f WHERE f.lane >= 4611686018427387904 GROUP BY f.qid, f.tenant
        ) AS g GROUP BY g.qid, g.part
    )
    INSERT INTO ready (run_at, lane, id, qid, epoch, attempt, lost, size, priority, keyed, dies_at, gid)
    SELECT
        f.due, f.lane, f.id, f.qid, 0, 0, 0, f.size, f.priority, f.key IS NOT NULL,
        CASE WHEN f.expires IS NOT NULL THEN greatest(p_now + f.expires, f.due) END, f.gid
    FROM fresh AS f;
    INSERT INTO deltas (qid, state, jobs) SELECT p_qids[n.queue], 0, count(*) FROM unnest(p_rows) AS n GROUP BY 1;
END $$;

-- Remove a key that outlived its job, if its time is over. Returns whether there was one.
CREATE FUNCTION release_key(p_now bigint, p_qid integer, p_key text) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    DELETE FROM keys AS k WHERE k.qid = p_qid AND k.key = p_key AND k.alone_until <= p_now;  -- keys_pkey
    IF FOUND THEN
        INSERT INTO deltas (qid, state, jobs) VALUES (p_qid, 7, -1);
        RETURN true;
    END IF;
    RETURN false;
END $$;

-- The job takes the key. If another job has it: returns that job, and whether only its key is left. ``p_until``: until
-- when that job keeps it: 0 while it is held, 1 while it lives, 2 while it waits. Called by ``take_keys`` and
-- ``insert_v1`` only; uses their settings.
CREATE FUNCTION take_key(
    p_now bigint, p_qid integer, p_key text, p_id uuid, p_hold boolean, p_until smallint, p_inbox text, OUT id uuid,
    OUT alone boolean
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_then CONSTANT bigint := CASE WHEN p_until > 0 THEN 9223372036854775807 ELSE p_now END;
    v_waits CONSTANT boolean := coalesce(p_until = 2, false);
BEGIN
    -- keys_pkey. A taken key is not locked: this transaction may last, and the end of that job must not wait for it.
    IF p_inbox IS NULL THEN
        SELECT k.id, k.alone_until IS NOT NULL INTO id, alone FROM keys AS k WHERE k.qid = p_qid AND k.key = p_key
            AND (k.held_until IS NULL OR k.held_until > v_then OR (k.failed AND p_hold));
        IF FOUND AND NOT (v_waits AND EXISTS (SELECT 1 FROM leased AS l WHERE l.id = take_key.id)) THEN  -- leased_pkey
            RETURN;
        END IF;
    END IF;
    LOOP
        -- This locks the row even if it does not update it: a job that somebody waits for must not end unseen.
        INSERT INTO keys AS k (qid, key, id) VALUES (p_qid, p_key, p_id)
        ON CONFLICT ON CONSTRAINT keys_pkey DO UPDATE SET id = excluded.id, held_until = NULL, failed = false
        WHERE k.held_until <= v_then AND NOT (k.failed AND p_hold) AND k.alone_until IS NULL
            OR v_waits AND k.held_until IS NULL AND EXISTS (SELECT 1 FROM leased AS l WHERE l.id = k.id);  -- leased_pkey
        IF FOUND THEN
            id := NULL;
            RETURN;
        END IF;
        EXIT WHEN NOT release_key(v_then, p_qid, p_key);
    END LOOP;
    SELECT k.id, k.alone_until IS NOT NULL INTO id, alone FROM keys AS k WHERE k.qid = p_qid AND k.key = p_key;
END $$;

-- The rows that did not get their key, and the jobs that have it.
CREATE TYPE losers AS (ords integer[], owners uuid[], alone boolean[]);
-- Rows with a key take it, except those with a known id. Uses the settings of its callers.
CREATE FUNCTION take_keys(p_now bigint, p_qids integer[], p_rows job_row[], p_bound boolean, p_known uuid[]) RETURNS losers
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_losers losers := ('{}', '{}', '{}');
    h record;
    r record;
BEGIN
    -- Ordered by key, so that no two inserts wait for each other; within a key, in the order of the rows.
    FOR r IN
        SELECT n.ordinality::integer AS ord, n.id, p_qids[n.queue] AS qid, n.key, n.hold_failed, n.key_until,
            CASE WHEN NOT p_bound THEN n.reply_to END AS inbox
        FROM unnest(p_rows) WITH ORDINALITY AS n
        WHERE n.key IS NOT NULL AND n.id <> ALL (p_known)
        ORDER BY 3, n.key, n.ordinality
    LOOP
        h := take_key(p_now, r.qid, r.key, r.id, r.hold_failed, r.key_until, r.inbox);
        IF h.id IS NOT NULL THEN
            v_losers.ords := v_losers.ords || r.ord;
            v_losers.owners := v_losers.owners || h.id;
            v_losers.alone := v_losers.alone || h.alone;
        END IF;
    END LOOP;
    RETURN v_losers;
END $$;

-- Insert one row with a new id, without rules or waiters. The general way would cost more than the insert itself.
-- Called by ``insert_v1`` only; uses its settings.
CREATE FUNCTION insert_one(p_now bigint, p_qid integer, r job_row, p_size integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_due CONSTANT bigint := coalesce(r.run_at, p_now + r.delay);
BEGIN
    WITH job AS (
        INSERT INTO jobs (
            id, enqueued_at, expires_at, timeout, result_ttl, max_attempts, task, tenant, key, headers, parameters, vm_state,
            metadata, blob
        ) VALUES (
            r.id, p_now, p_now + r.expires, r.timeout, r.result_ttl, r.max_attempts, r.task, r.tenant, r.key, r.headers,
            r.parameters, r.vm_state, r.metadata, r.blob
        )
    ), place AS (
        INSERT INTO ready (run_at, id, epoch, qid, attempt, lost, size, priority, keyed, lane, dies_at) VALUES (
            v_due, r.id, 0, p_qid, 0, 0, p_size, r.priority, r.key IS NOT NULL, CASE WHEN v_due > p_now THEN 0 END,
            CASE WHEN r.expires IS NOT NULL THEN greatest(p_now + r.expires, v_due) END
        )
    )
    INSERT INTO deltas (qid, state, jobs) VALUES (p_qid, 0, 1);
END $$;

-- A row that did not become a job: status 1 SAME, 2 DUPLICATE, 3 DONE, 4 FULL, with its ``room`` (see ``fitting``),
-- 5 REPLACED.
CREATE TYPE inserted_row AS (ord integer, status smallint, id uuid, state smallint, attempt integer, result bytea, room bytea);

-- Insert rows. ``p_gated``: refuse what does not fit into the depth of its queue or of the store. ``p_bound``: the
-- transaction may last, so it locks nothing that others wait for. ``p_calls``: call the groups of the jobs; without it,
-- the caller does, together with others. ``p_new``: all ids are expected to be new; one that is not raises
-- unique_violation. Without it, plain jobs cost a subtransaction.
CREATE FUNCTION insert_v1(
    p_at bigint, p_names text[], p_rows job_row[], p_gated boolean DEFAULT false, p_bound boolean DEFAULT false,
    p_calls boolean DEFAULT true, p_new boolean DEFAULT false
) RETURNS SETOF inserted_row LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_indexonlyscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now bigint := clock(p_at);
    v_qids integer[] := queue_ids(p_names, p_bound);
    v_ruled boolean := EXISTS (SELECT 1 FROM policies AS p WHERE p.queue = ANY (p_names || ''::text));  -- policies_pkey
    v_keyed boolean;
    v_replies boolean;
    v_grouped boolean;
    v_replaces boolean;
    v_twice boolean := false;
    v_fitting record;
    v_sizes integer[];
    v_bad integer;
    v_known uuid[] := '{}';
    v_locked uuid[] := '{}';
    v_losers losers := ('{}', '{}', '{}');
    h record;
    r job_row := p_rows[1];
BEGIN
    IF p_gated AND v_ruled THEN
        v_fitting := fitting(v_now, v_qids, p_rows, p_bound);
        IF v_fitting.fit IS NOT NULL THEN
            RETURN QUERY SELECT * FROM insert_some(v_fitting.fit, v_now, p_names, p_rows, p_bound);
            RETURN QUERY
            SELECT n.ordinality::integer, 4::smallint, n.id, 0::smallint, 0, NULL::bytea, (v_fitting.rooms)[n.queue]
            FROM unnest(p_rows) WITH ORDINALITY AS n WHERE n.ordinality <> ALL (v_fitting.fit);
            RETURN;
        END IF;
    END IF;
    IF cardinality(p_rows) = 1 THEN  -- without a query, which would cost more than the work
        v_keyed := r.key IS NOT NULL;
        v_replies := r.reply_to IS NOT NULL;
        v_grouped := r.group_name IS NOT NULL;
        v_replaces := r.replaces > 0;
        v_sizes := ARRAY[row_weight(v_now, r)];
    ELSE
        SELECT count(n.key) > 0, count(n.reply_to) > 0, count(n.group_name) > 0, count(*) FILTER (WHERE n.replaces > 0) > 0,
            array_agg(row_weight(v_now, n))
        INTO v_keyed, v_replies, v_grouped, v_replaces, v_sizes FROM unnest(p_rows) AS n;
    END IF;
    v_bad := array_position(v_sizes, NULL);
    IF v_bad IS NOT NULL THEN
        PERFORM refuse_row(v_now, v_bad, p_rows[v_bad]);
    END IF;
    IF cardinality(p_rows) > 1 AND (v_keyed OR NOT p_new) THEN  -- otherwise an id that comes twice is met as a known one
        v_twice := (SELECT count(DISTINCT n.id) < count(n.id) FROM unnest(p_rows) AS n);
    END IF;
    v_ruled := v_ruled OR v_grouped;
    IF v_twice THEN
        RETURN QUERY SELECT * FROM insert_one_by_one(v_now, p_names, p_rows, p_bound);
        IF p_calls AND v_grouped THEN
            PERFORM call_inserted(v_qids, p_rows, p_bound);
        END IF;
        RETURN;
    ELSIF NOT p_new AND NOT v_keyed AND NOT v_replies THEN
        BEGIN
            RETURN QUERY SELECT * FROM insert_v1(v_now, p_names, p_rows, false, p_bound, p_calls, true);
            RETURN;
        EXCEPTION WHEN unique_violation THEN
            NULL;  -- some are stored already: look closer
        END;
    END IF;
    IF v_replaces THEN
        v_locked := lock_replaced(v_now, v_qids, p_rows);
    END IF;
    IF NOT p_new THEN  -- jobs_pkey, one probe per id
        SELECT coalesce(array_agg(j.id), '{}') INTO v_known FROM unnest(p_rows) AS n JOIN jobs AS j ON j.id = ANY (ARRAY[n.id]);
    END IF;
    IF v_keyed AND cardinality(p_rows) > 1 THEN
        v_losers := take_keys(v_now, v_qids, p_rows, p_bound, v_known);
    ELSIF v_keyed AND v_known = '{}' THEN
        h := take_key(
            v_now, v_qids[r.queue], r.key, r.id, r.hold_failed, r.key_until, CASE WHEN NOT p_bound THEN r.reply_to END
        );
        IF h.id IS NOT NULL THEN
            v_losers := (ARRAY[1], ARRAY[h.id], ARRAY[h.alone]);
        END IF;
    END IF;
    IF v_losers.ords <> '{}' OR NOT p_new THEN
        RETURN QUERY SELECT * FROM insert_others(
            v_losers, v_known, v_now, v_qids, p_rows, v_sizes, v_ruled, v_grouped AND p_calls, p_bound, p_new, v_locked
        );
        RETURN;
    ELSIF cardinality(p_rows) = 1 AND NOT v_ruled AND NOT v_replies THEN
        PERFORM insert_one(v_now, v_qids[r.queue], r, v_sizes[1]);
        RETURN;
    END IF;
    INSERT INTO jobs (
        id, enqueued_at, expires_at, timeout, result_ttl, max_attempts, task, tenant, key, group_name, headers,
        parameters, vm_state, metadata, blob
    )
    SELECT
        n.id, v_now, v_now + n.expires, n.timeout, n.result_ttl, n.max_attempts, n.task, n.tenant, n.key, n.group_name,
        n.headers, n.parameters, n.vm_state, n.metadata, n.blob
    FROM unnest(p_rows) AS n;
    IF v_replies THEN
        INSERT INTO waiters (id, inbox) SELECT n.id, n.reply_to FROM unnest(p_rows) AS n WHERE n.reply_to IS NOT NULL
        ON CONFLICT DO NOTHING;
    END IF;
    IF NOT v_ruled THEN
        PERFORM make_ready(v_now, v_qids, p_rows, v_sizes);
        RETURN;
    END IF;
    PERFORM make_ready_by_rules(v_now, v_qids, p_rows, v_sizes);
    IF p_calls AND v_grouped THEN
        PERFORM call_inserted(v_qids, p_rows, p_bound);
    END IF;
END $$;

-- The same if an id comes twice. The caller calls the groups.
CREATE FUNCTION insert_one_by_one(p_now bigint, p_names text[], p_rows job_row[], p_bound boolean)
RETURNS SETOF inserted_row LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    FOR i IN 1..cardinality(p_rows) LOOP
        RETURN QUERY
        SELECT i, one.status, one.id, one.state, one.attempt, one.result, one.room
        FROM insert_v1(p_now, p_names, p_rows[i:i], false, p_bound, false) AS one;
    END LOOP;
END $$;

-- The same if some rows do not become jobs, because their ids are known or others have their keys.
CREATE FUNCTION insert_others(
    p_losers losers, p_known uuid[], p_now bigint, p_qids integer[], p_rows job_row[], p_sizes integer[], p_ruled boolean,
    p_calls boolean, p_bound boolean, p_new boolean, p_locked uuid[]
) RETURNS SETOF inserted_row LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_indexonlyscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_losers integer[] := p_losers.ords;
    v_owners uuid[] := p_losers.owners;
    v_fresh uuid[];
    v_rows job_row[];
    v_sizes integer[];
    v_replaced integer[];
    v_told integer;
BEGIN
    SELECT array_agg(p_rows[n.ordinality] ORDER BY n.ordinality), array_agg(p_sizes[n.ordinality] ORDER BY n.ordinality) INTO v_rows, v_sizes
    FROM unnest(p_rows) WITH ORDINALITY AS n WHERE n.ordinality <> ALL (v_losers) AND n.id <> ALL (p_known);
    WITH fresh AS (
        INSERT INTO jobs AS j (
            id, enqueued_at, expires_at, timeout, result_ttl, max_attempts, task, tenant, key, group_name, headers,
            parameters, vm_state, metadata, blob
        )
        SELECT
            n.id, p_now, p_now + n.expires, n.timeout, n.result_ttl, n.max_attempts, n.task, n.tenant, n.key, n.group_name,
            n.headers, n.parameters, n.vm_state, n.metadata, n.blob
        FROM unnest(v_rows) AS n
        ON CONFLICT (id) DO NOTHING
        RETURNING j.id
    )
    SELECT coalesce(array_agg(f.id), '{}') INTO v_fresh FROM fresh AS f;
    -- Somebody stored one of these ids while this waited for a key, which may then be somebody else's. Try again.
    IF cardinality(v_fresh) + cardinality(p_known) + cardinality(v_losers) < cardinality(p_rows)
        OR EXISTS (SELECT 1 FROM unnest(v_losers) AS o JOIN jobs AS j ON j.id = ANY (ARRAY[(p_rows[o]).id]))  -- jobs_pkey
    THEN
        RAISE EXCEPTION 'a job was stored at the same time, or before'
            USING ERRCODE = CASE WHEN p_new THEN 'unique_violation' ELSE 'serialization_failure' END;
    END IF;
    IF v_rows IS NOT NULL AND p_ruled THEN
        PERFORM make_ready_by_rules(p_now, p_qids, v_rows, v_sizes);
    ELSIF v_rows IS NOT NULL THEN
        PERFORM make_ready(p_now, p_qids, v_rows, v_sizes);
    END IF;
    IF p_calls THEN
        PERFORM call_inserted(p_qids, v_rows, p_bound);
    END IF;
    -- Inboxes wait for new jobs, and for live jobs that have the key.
    INSERT INTO waiters (id, inbox) SELECT n.id, n.reply_to FROM unnest(v_rows) AS n WHERE n.reply_to IS NOT NULL
    ON CONFLICT DO NOTHING;
    IF cardinality(v_fresh) = cardinality(p_rows) THEN
        RETURN;
    END IF;
    PERFORM watch(p_now, w.id, w.inbox) FROM (
        SELECT DISTINCT k.id, n.reply_to
        FROM unnest(p_rows) WITH ORDINALITY AS n
        JOIN keys AS k ON k.qid = ANY (ARRAY[p_qids[n.queue]]) AND k.key = ANY (ARRAY[n.key])  -- keys_pkey
            AND k.id = v_owners[array_position(v_losers, n.ordinality::integer)]
        WHERE n.reply_to IS NOT NULL AND k.held_until IS NULL ORDER BY 1, 2
    ) AS w (id, inbox);
    v_replaced := replace_jobs(p_now, p_losers, p_rows, p_locked || v_fresh, p_bound);
    RETURN QUERY
    SELECT
        n.ord::integer,
        (CASE
            WHEN n.ord = ANY (v_replaced) THEN 5
            WHEN n.owner IS NULL OR (n.owner = n.id AND NOT n.alone) THEN 1
            WHEN e.state = 3 THEN 3
            ELSE 2
        END)::smallint,
        coalesce(e.id, n.owner),
        coalesce(e.state, 3::smallint),
        coalesce(e.attempt, 0),
        CASE WHEN e.state = 3 AND e.held_until > p_now AND n.owner <> n.id THEN e.result END,
        NULL::bytea
    FROM (
        SELECT m.id, m.hold_failed, m.ordinality AS ord, v_owners[o.at] AS owner, coalesce(p_losers.alone[o.at], false) AS alone
        FROM unnest(p_rows) WITH ORDINALITY AS m
        CROSS JOIN LATERAL (SELECT array_position(v_losers, m.ordinality::integer) AS at) AS o
    ) AS n LEFT JOIN entries AS e ON e.id = ANY (ARRAY[coalesce(n.owner, n.id)]) AND NOT n.alone
    WHERE CASE
        WHEN n.alone THEN true
        WHEN n.owner IS NOT NULL THEN e.state < 3 OR (e.state = 3 AND e.held_until > p_now) OR (e.state = 5 AND n.hold_failed)
        ELSE e.id IS NOT NULL AND n.id <> ALL (v_fresh)
    END;
    GET DIAGNOSTICS v_told = ROW_COUNT;
    IF v_told + cardinality(v_fresh) < cardinality(p_rows) THEN
        RAISE EXCEPTION 'a job has ended or was removed at the same time' USING ERRCODE = 'serialization_failure';
    END IF;
END $$;

-- Insert only the rows with these numbers, which are in order. Answers use these numbers.
CREATE FUNCTION insert_some(p_some integer[], p_now bigint, p_names text[], p_rows job_row[], p_bound boolean)
RETURNS SETOF inserted_row LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    IF cardinality(p_some) > 0 THEN
        RETURN QUERY
        SELECT p_some[i.ord], i.status, i.id, i.state, i.attempt, i.result, i.room
        FROM insert_v1(p_now, p_names, ARRAY(SELECT p_rows[n] FROM unnest(p_some) AS n), false, p_bound) AS i;
    END IF;
END $$;
