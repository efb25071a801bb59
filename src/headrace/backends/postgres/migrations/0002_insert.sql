-- The store's clock.
CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
    'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint';

-- The numbers of queues, which are made known. Whoever has a number in hand keeps the queue from being forgotten until
-- the end of the transaction: a shared lock in memory, which only ``forget_queues`` takes alone.
CREATE FUNCTION queue_ids(p_names text[]) RETURNS integer[] LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    found integer[];
BEGIN
    -- A number of our own: that of the table alone might be one that the application locks.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('headrace queues', 'queues'::regclass::oid::bigint));
    FOR attempt IN 1..2 LOOP
        -- queues_name_key, one probe per name.
        SELECT array_agg(q.qid ORDER BY n.ord) INTO found
        FROM unnest(p_names) WITH ORDINALITY AS n (name, ord) JOIN queues AS q ON q.name = n.name;
        EXIT WHEN cardinality(found) = cardinality(p_names);
        INSERT INTO queues (name) SELECT DISTINCT n FROM unnest(p_names) AS n ORDER BY n ON CONFLICT (name) DO NOTHING;
    END LOOP;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- A transaction that looks back may see a queue that has been forgotten since: better that it fails.
        PERFORM 1 FROM queues AS q WHERE q.qid = ANY (found) FOR KEY SHARE;
    END IF;
    RETURN found;
END $$;

-- Lock the keys that jobs of these queues have. Whoever writes more than one key does this first, and after it has locked
-- the places of the jobs by id: as everybody goes in the same order, no two wait for each other.
CREATE FUNCTION lock_keys(p_ids uuid[], p_qids integer[]) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM 1 FROM unnest(p_ids, p_qids) AS n (id, qid) JOIN jobs AS j ON j.id = ANY (ARRAY[n.id])  -- jobs_pkey, keys_pkey
    JOIN keys AS k ON k.qid = ANY (ARRAY[n.qid]) AND k.key = ANY (ARRAY[j.key]) AND k.id = n.id
    ORDER BY k.qid, k.key FOR UPDATE OF k;
END $$;

-- Bytes that a job takes up, as retention counts them: this, and its cells.
CREATE FUNCTION weight(p_parameters bytea, p_vm_state bytea, p_metadata bytea, p_blob bytea) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(octet_length(p_parameters), 0) + coalesce(octet_length(p_vm_state), 0)
        + coalesce(octet_length(p_metadata), 0) + coalesce(octet_length(p_blob), 0)
$$;

-- New jobs wait, and are counted.
CREATE FUNCTION make_ready(
    p_now bigint, p_qids integer[], p_ids uuid[], p_queues smallint[], p_keys text[], p_priorities smallint[],
    p_delays bigint[], p_run_ats bigint[], p_expires bigint[], p_sizes integer[]
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO ready (run_at, id, qid, epoch, attempt, lost, size, priority, keyed, dies_at)
    SELECT
        coalesce(n.run_at, p_now + n.delay), n.id, p_qids[n.queue], 0, 0, 0, n.size, n.priority, n.key IS NOT NULL,
        CASE WHEN n.expires IS NOT NULL THEN greatest(p_now + n.expires, coalesce(n.run_at, p_now + n.delay)) END
    FROM unnest(p_ids, p_queues, p_priorities, p_delays, p_run_ats, p_expires, p_keys, p_sizes)
        AS n (id, queue, priority, delay, run_at, expires, key, size);
    INSERT INTO deltas (qid, state, jobs) SELECT p_qids[n.queue], 0, count(*) FROM unnest(p_queues) AS n (queue) GROUP BY 1;
END $$;

-- Rows become jobs. An array of nothing but NULL may be NULL itself; ``p_sizes`` are the bytes that the jobs take up, as
-- retention counts them. Answers only for those that did not become one: status 1 SAME, 2 DUPLICATE, 3 DONE.
CREATE FUNCTION insert_v1(
    p_at bigint, p_names text[], p_ids uuid[], p_queues smallint[], p_tasks text[], p_tenants text[], p_keys text[],
    p_priorities smallint[], p_delays bigint[], p_run_ats bigint[], p_expires bigint[], p_max_attempts integer[],
    p_timeouts bigint[], p_result_ttls bigint[], p_headers bytea[], p_reply_tos text[], p_hold_failed boolean[],
    p_parameters bytea[], p_vm_states bytea[], p_metadatas bytea[], p_blobs bytea[], p_sizes integer[]
) RETURNS TABLE (ord integer, status smallint, id uuid, state smallint, attempt integer, result bytea)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_indexonlyscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(p_at, now_us());
    v_qids integer[] := queue_ids(p_names);
    v_known uuid[] := '{}';
    v_fresh uuid[];
    v_losers integer[] := '{}';
    v_holders uuid[] := '{}';
    v_holder uuid;
    v_told integer;
    v_plain boolean := coalesce(cardinality(array_remove(p_keys, NULL)), 0) = 0
        AND coalesce(cardinality(array_remove(p_reply_tos, NULL)), 0) = 0;
    r record;
BEGIN
    IF cardinality(p_ids) > 1 AND (SELECT count(DISTINCT n) FROM unnest(p_ids) AS n) < cardinality(p_ids) THEN  -- an id twice: one after the other
        FOR i IN 1..cardinality(p_ids) LOOP
            RETURN QUERY
            SELECT i, one.status, one.id, one.state, one.attempt, one.result FROM insert_v1(
                v_now, p_names, p_ids[i:i], p_queues[i:i], p_tasks[i:i], p_tenants[i:i], p_keys[i:i], p_priorities[i:i],
                p_delays[i:i], p_run_ats[i:i], p_expires[i:i], p_max_attempts[i:i], p_timeouts[i:i], p_result_ttls[i:i],
                p_headers[i:i], p_reply_tos[i:i], p_hold_failed[i:i], p_parameters[i:i], p_vm_states[i:i],
                p_metadatas[i:i], p_blobs[i:i], p_sizes[i:i]
            ) AS one;
        END LOOP;
        RETURN;
    END IF;
    IF v_plain THEN
        BEGIN
            INSERT INTO jobs (
                id, enqueued_at, expires_at, timeout, result_ttl, max_attempts, task, tenant, headers,
                parameters, vm_state, metadata, blob
            )
            SELECT
                n.id, v_now, v_now + n.expires, n.timeout, n.result_ttl, n.max_attempts, n.task, n.tenant, n.headers,
                n.parameters, n.vm_state, n.metadata, n.blob
            FROM unnest(
                p_ids, p_expires, p_timeouts, p_result_ttls, p_max_attempts, p_tasks, p_tenants, p_headers,
                p_parameters, p_vm_states, p_metadatas, p_blobs
            ) AS n (
                id, expires, timeout, result_ttl, max_attempts, task, tenant, headers,
                parameters, vm_state, metadata, blob
            );
            PERFORM make_ready(
                v_now, v_qids, p_ids, p_queues, p_keys, p_priorities, p_delays, p_run_ats, p_expires, p_sizes
            );
            RETURN;
        EXCEPTION WHEN unique_violation THEN
            NULL;  -- some are here already: it takes a closer look
        END;
    END IF;
    -- jobs_pkey, one probe per id.
    SELECT coalesce(array_agg(j.id), '{}') INTO v_known FROM unnest(p_ids) AS n (id) JOIN jobs AS j ON j.id = ANY (ARRAY[n.id]);
    IF NOT v_plain THEN
        -- In the order of the keys, so that two inserts never wait for each other; and within a key in that of the rows.
        FOR r IN
            SELECT n.ord, n.id, v_qids[n.queue] AS qid, n.key, n.hold, n.inbox
            FROM unnest(p_ids, p_queues, p_keys, p_hold_failed, p_reply_tos) WITH ORDINALITY
                AS n (id, queue, key, hold, inbox, ord)
            WHERE n.key IS NOT NULL AND n.id <> ALL (v_known)
            ORDER BY 3, n.key, n.ord
        LOOP
            -- keys_pkey. What is taken is not touched: this transaction may last, and whoever ends that job must not wait.
            IF r.inbox IS NULL THEN
                SELECT k.id INTO v_holder FROM keys AS k WHERE k.qid = r.qid AND k.key = r.key
                    AND (k.held_until IS NULL OR k.held_until > v_now OR (k.failed AND r.hold));
                IF FOUND THEN
                    v_losers := v_losers || r.ord::integer;
                    v_holders := v_holders || v_holder;
                    CONTINUE;
                END IF;
            END IF;
            -- A row that it does not update, it still locks: with somebody who waits for it, that job must not end unseen.
            INSERT INTO keys AS k (qid, key, id) VALUES (r.qid, r.key, r.id)
            ON CONFLICT ON CONSTRAINT keys_pkey DO UPDATE SET id = excluded.id, held_until = NULL, failed = false
            WHERE k.held_until <= v_now AND NOT (k.failed AND r.hold);
            IF NOT FOUND THEN
                SELECT k.id INTO v_holder FROM keys AS k WHERE k.qid = r.qid AND k.key = r.key;
                v_losers := v_losers || r.ord::integer;
                v_holders := v_holders || v_holder;
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
        WHERE n.ord <> ALL (v_losers) AND n.id <> ALL (v_known)
        ON CONFLICT (id) DO NOTHING
        RETURNING j.id
    )
    SELECT coalesce(array_agg(f.id), '{}') INTO v_fresh FROM fresh AS f;
    -- Somebody stored one of these ids while this waited for a key: then the key may be somebody else's. Once more.
    IF cardinality(v_fresh) + cardinality(v_known) + cardinality(v_losers) < cardinality(p_ids)
        OR EXISTS (SELECT 1 FROM unnest(v_losers) AS o JOIN jobs AS j ON j.id = ANY (ARRAY[p_ids[o]]))
    THEN
        RAISE EXCEPTION 'a job was stored at the same time' USING ERRCODE = 'serialization_failure';
    END IF;
    PERFORM make_ready(
        v_now, v_qids, array_agg(n.id), array_agg(n.queue), array_agg(n.key), array_agg(n.priority), array_agg(n.delay),
        array_agg(n.run_at), array_agg(n.expires), array_agg(n.size)
    )
    FROM unnest(p_ids, p_queues, p_keys, p_priorities, p_delays, p_run_ats, p_expires, p_sizes) WITH ORDINALITY
        AS n (id, queue, key, priority, delay, run_at, expires, size, ord)
    WHERE n.id = ANY (v_fresh) AND n.ord <> ALL (v_losers)
    HAVING count(*) > 0;
    -- Those who wait: for new jobs, and for those that have the key and are still to end.
    INSERT INTO waiters (id, inbox)
    SELECT DISTINCT coalesce(k.id, n.id), n.inbox
    FROM unnest(p_ids, p_queues, p_keys, p_reply_tos) WITH ORDINALITY AS n (id, queue, key, inbox, ord)
    LEFT JOIN keys AS k ON k.qid = ANY (ARRAY[v_qids[n.queue]]) AND k.key = ANY (ARRAY[n.key]) AND k.id = v_holders[array_position(v_losers, n.ord::integer)]
    WHERE n.inbox IS NOT NULL AND ((k.id IS NULL AND n.id = ANY (v_fresh)) OR (k.id IS NOT NULL AND k.held_until IS NULL))
    ON CONFLICT DO NOTHING;
    RETURN QUERY
    SELECT
        n.ord::integer,
        (CASE WHEN n.holder IS NULL OR n.holder = n.id THEN 1 WHEN e.state = 3 THEN 3 ELSE 2 END)::smallint,
        e.id,
        e.state,
        e.attempt,
        CASE WHEN e.state = 3 AND e.held_until > v_now AND n.holder <> n.id THEN e.result END
    FROM (
        SELECT m.*, v_holders[array_position(v_losers, m.ord::integer)] AS holder
        FROM unnest(p_ids, p_hold_failed) WITH ORDINALITY AS m (id, hold, ord)
    ) AS n JOIN entries AS e ON e.id = ANY (ARRAY[coalesce(n.holder, n.id)])
    WHERE CASE
        WHEN n.holder IS NOT NULL THEN e.state < 3 OR (e.state = 3 AND e.held_until > v_now) OR (e.state = 5 AND n.hold)
        ELSE n.id <> ALL (v_fresh)
    END;
    GET DIAGNOSTICS v_told = ROW_COUNT;
    IF v_told + cardinality(v_fresh) < cardinality(p_ids) THEN
        RAISE EXCEPTION 'a job has ended or was removed at the same time' USING ERRCODE = 'serialization_failure';
    END IF;
END $$;
