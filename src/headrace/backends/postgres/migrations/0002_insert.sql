-- The store's clock.
CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
    'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint';

-- The numbers of queues, which are made known. Whoever has a number in hand keeps the queue from being forgotten until
-- the end of the transaction: a shared lock in memory, which only ``forget_queues`` takes alone.
CREATE FUNCTION queue_ids(p_names text[]) RETURNS integer[] LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    found integer[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared('queues'::regclass::oid::bigint);
    FOR attempt IN 1..2 LOOP
        -- queues_name_key, one probe per name.
        SELECT array_agg(q.qid ORDER BY n.ord) INTO found
        FROM unnest(p_names) WITH ORDINALITY AS n (name, ord) JOIN queues AS q ON q.name = n.name;
        EXIT WHEN cardinality(found) = cardinality(p_names);
        INSERT INTO queues (name) SELECT DISTINCT n FROM unnest(p_names) AS n ORDER BY n ON CONFLICT (name) DO NOTHING;
    END LOOP;
    RETURN found;
END $$;

-- Bytes that a job takes up, as retention counts them.
CREATE FUNCTION weight(p_names integer, VARIADIC p_cells bytea[]) RETURNS integer LANGUAGE sql IMMUTABLE AS
    'SELECT 200 + p_names + coalesce(sum(octet_length(c)), 0)::integer FROM unnest(p_cells) AS c';

-- Rows become jobs. Answers only for those that did not: status 1 SAME, 2 DUPLICATE, 3 DONE.
CREATE FUNCTION insert_v1(
    p_at bigint, p_names text[], p_ids uuid[], p_queues smallint[], p_tasks text[], p_tenants text[], p_keys text[],
    p_priorities smallint[], p_delays bigint[], p_run_ats bigint[], p_expires bigint[], p_max_attempts integer[],
    p_timeouts bigint[], p_result_ttls bigint[], p_headers bytea[], p_reply_tos text[], p_hold_failed boolean[],
    p_parameters bytea[], p_vm_states bytea[], p_metadatas bytea[], p_blobs bytea[]
) RETURNS TABLE (ord integer, status smallint, id uuid, state smallint, attempt integer, result bytea)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(p_at, now_us());
    v_qids integer[] := queue_ids(p_names);
    v_known uuid[] := '{}';
    v_fresh uuid[];
    v_losers integer[] := '{}';
    v_plain boolean := array_position(p_keys, NULL) IS NOT NULL
        AND cardinality(array_remove(p_keys, NULL)) = 0 AND cardinality(array_remove(p_reply_tos, NULL)) = 0;
    r record;
BEGIN
    IF (SELECT count(DISTINCT n) FROM unnest(p_ids) AS n) < cardinality(p_ids) THEN  -- an id twice: one after the other
        FOR i IN 1..cardinality(p_ids) LOOP
            RETURN QUERY
            SELECT i, one.status, one.id, one.state, one.attempt, one.result FROM insert_v1(
                v_now, p_names, p_ids[i:i], p_queues[i:i], p_tasks[i:i], p_tenants[i:i], p_keys[i:i], p_priorities[i:i],
                p_delays[i:i], p_run_ats[i:i], p_expires[i:i], p_max_attempts[i:i], p_timeouts[i:i], p_result_ttls[i:i],
                p_headers[i:i], p_reply_tos[i:i], p_hold_failed[i:i], p_parameters[i:i], p_vm_states[i:i],
                p_metadatas[i:i], p_blobs[i:i]
            ) AS one;
        END LOOP;
        RETURN;
    END IF;
    IF NOT v_plain THEN
        -- jobs_pkey, one probe per id.
        SELECT coalesce(array_agg(j.id), '{}') INTO v_known FROM unnest(p_ids) AS n (id) JOIN jobs AS j ON j.id = n.id;
        -- In the order of the keys, so that two inserts never wait for each other; and within a key in that of the rows.
        FOR r IN
            SELECT n.ord, n.id, v_qids[n.queue] AS qid, n.key, n.hold
            FROM unnest(p_ids, p_queues, p_keys, p_hold_failed) WITH ORDINALITY AS n (id, queue, key, hold, ord)
            WHERE n.key IS NOT NULL AND n.id <> ALL (v_known)
            ORDER BY 3, n.key, n.ord
        LOOP
            -- keys_pkey. A row that it does not update, it still locks: whoever ends that job waits for this insert.
            INSERT INTO keys AS k (qid, key, id) VALUES (r.qid, r.key, r.id)
            ON CONFLICT ON CONSTRAINT keys_pkey DO UPDATE SET id = excluded.id, held_until = NULL, failed = false
            WHERE k.held_until <= v_now AND NOT (k.failed AND r.hold);
            IF NOT FOUND THEN
                v_losers := v_losers || r.ord::integer;
            END IF;
        END LOOP;
    END IF;
    WITH fresh AS (
        INSERT INTO jobs AS j (
            id, enqueued_at, expires_at, timeout, result_ttl, max_attempts, task, tenant, key, headers,
            parameters, vm_state, metadata, blob
        )
        SELECT
            n.id, v_now, v_now + n.expires, n.timeout, n.result_ttl, n.max_attempts, n.task, n.tenant, n.key, n.headers,
            n.parameters, n.vm_state, n.metadata, n.blob
        FROM unnest(
            p_ids, p_expires, p_timeouts, p_result_ttls, p_max_attempts, p_tasks, p_tenants, p_keys, p_headers,
            p_parameters, p_vm_states, p_metadatas, p_blobs
        ) WITH ORDINALITY AS n (
            id, expires, timeout, result_ttl, max_attempts, task, tenant, key, headers,
            parameters, vm_state, metadata, blob, ord
        )
        WHERE v_plain OR (n.ord <> ALL (v_losers) AND n.id <> ALL (v_known))
        ON CONFLICT (id) DO NOTHING
        RETURNING j.id
    )
    SELECT coalesce(array_agg(f.id), '{}') INTO v_fresh FROM fresh AS f;
    WITH fresh AS (
        INSERT INTO ready AS y (run_at, id, qid, epoch, attempt, lost, size, priority, keyed, dies_at)
        SELECT
            coalesce(n.run_at, v_now + n.delay), n.id, v_qids[n.queue], 0, 0, 0,
            weight(
                octet_length(n.task) + octet_length(n.tenant) + coalesce(octet_length(n.key), 0), n.headers,
                n.parameters, n.vm_state, n.metadata, n.blob
            ),
            n.priority, n.key IS NOT NULL,
            CASE WHEN n.expires IS NOT NULL THEN greatest(v_now + n.expires, coalesce(n.run_at, v_now + n.delay)) END
        FROM unnest(
            p_ids, p_queues, p_priorities, p_delays, p_run_ats, p_expires, p_keys, p_tasks, p_tenants, p_headers,
            p_parameters, p_vm_states, p_metadatas, p_blobs
        ) WITH ORDINALITY AS n (
            id, queue, priority, delay, run_at, expires, key, task, tenant, headers,
            parameters, vm_state, metadata, blob, ord
        )
        WHERE (cardinality(v_fresh) = cardinality(p_ids)) OR (n.id = ANY (v_fresh) AND n.ord <> ALL (v_losers))
        RETURNING y.qid
    )
    INSERT INTO deltas (qid, state, jobs) SELECT f.qid, 0, count(*) FROM fresh AS f GROUP BY f.qid;
    IF cardinality(v_fresh) = cardinality(p_ids) AND v_plain THEN
        RETURN;
    END IF;
    -- Those who wait: for new jobs, and for those that have the key and are still to end.
    INSERT INTO waiters (id, inbox)
    SELECT DISTINCT coalesce(k.id, n.id), n.inbox
    FROM unnest(p_ids, p_queues, p_keys, p_reply_tos) WITH ORDINALITY AS n (id, queue, key, inbox, ord)
    LEFT JOIN keys AS k ON k.qid = v_qids[n.queue] AND k.key = n.key AND n.ord = ANY (v_losers)
    WHERE n.inbox IS NOT NULL AND ((k.id IS NULL AND n.id = ANY (v_fresh)) OR (k.id IS NOT NULL AND k.held_until IS NULL))
    ON CONFLICT DO NOTHING;
    RETURN QUERY
    SELECT
        n.ord::integer,
        (CASE WHEN k.id IS NULL OR k.id = n.id THEN 1 WHEN e.state = 3 THEN 3 ELSE 2 END)::smallint,
        e.id,
        e.state,
        e.attempt,
        CASE WHEN e.state = 3 AND e.held_until > v_now AND k.id <> n.id THEN e.result END
    FROM unnest(p_ids, p_queues, p_keys) WITH ORDINALITY AS n (id, queue, key, ord)
    LEFT JOIN keys AS k ON k.qid = v_qids[n.queue] AND k.key = n.key AND n.ord = ANY (v_losers)
    JOIN entries AS e ON e.id = coalesce(k.id, n.id)
    WHERE n.ord = ANY (v_losers) OR n.id <> ALL (v_fresh);
END $$;
