-- Jobs named by id, then by key, in order. A part of the statement that calls it.
CREATE FUNCTION each_named(p_ids uuid[], p_queues text[], p_keys text[]) RETURNS TABLE (id uuid, ord bigint) LANGUAGE sql STABLE AS $$
    SELECT n.id, n.ord FROM unnest(p_ids) WITH ORDINALITY AS n (id, ord)
    UNION ALL
    SELECT k.id, n.ord + coalesce(cardinality(p_ids), 0)
    FROM unnest(p_queues, p_keys) WITH ORDINALITY AS n (queue, key, ord)
    LEFT JOIN queues AS q ON q.name = n.queue CROSS JOIN LATERAL (  -- keys_pkey, by both
        SELECT k.id FROM keys AS k
        WHERE k.qid = coalesce(q.qid, qid_of(n.queue)) AND k.key = n.key AND k.alone_until IS NULL OFFSET 0
    ) AS k
$$;
-- The same, each once.
CREATE FUNCTION named(p_ids uuid[], p_queues text[], p_keys text[]) RETURNS TABLE (id uuid, ord bigint)
LANGUAGE sql STABLE ROWS 10 SET search_path FROM CURRENT AS $$
    SELECT x.id, min(x.ord) FROM each_named(p_ids, p_queues, p_keys) AS x GROUP BY x.id
$$;

-- Of these, those that match a selector, in order; or the newest.
CREATE FUNCTION matching_named(
    p_ids uuid[], p_key_queues text[], p_keys text[], p_qid integer, p_tenant text, p_task text, p_states smallint[],
    p_before bigint, p_above uuid, p_below uuid, p_limit integer, p_newest boolean, p_reason text
) RETURNS TABLE (id uuid) LANGUAGE sql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_indexonlyscan = off AS $$
    SELECT n.id FROM named(p_ids, p_key_queues, p_keys) AS n JOIN entries AS e ON e.id = ANY (ARRAY[n.id])
    WHERE (p_qid IS NULL OR e.qid = p_qid) AND (p_tenant IS NULL OR e.tenant = p_tenant)
        AND (p_task IS NULL OR e.task = p_task) AND (p_states IS NULL OR e.state = ANY (p_states))
        AND (p_before IS NULL OR e.enqueued_at <= p_before) AND (p_reason IS NULL OR coalesce(e.reason, '') = p_reason)
        AND (p_above IS NULL OR n.id > p_above) AND (p_below IS NULL OR n.id < p_below)
    ORDER BY CASE WHEN p_newest THEN n.id END DESC, n.ord LIMIT CASE WHEN p_newest THEN p_limit END
$$;

-- The jobs that match a selector: the named ones in order, or all in these states by id. Planned each time: the best
-- plan depends on the selector. ``p_unasked`` leaves out running jobs whose cancellation was requested.
CREATE FUNCTION matching_v1(
    p_at bigint, p_named boolean, p_ids uuid[], p_key_queues text[], p_keys text[], p_queue text, p_tenant text, p_task text,
    p_states smallint[], p_older_than bigint, p_above uuid, p_below uuid, p_limit integer, p_newest boolean,
    p_unasked boolean, p_reason text DEFAULT NULL
) RETURNS TABLE (id uuid) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
DECLARE
    v_before bigint := clock(p_at) - p_older_than;
    v_qid integer := qid_of(p_queue);
    v_live CONSTANT boolean := coalesce(p_reason, '') = '';  -- only what has ended has a reason
BEGIN
    IF p_queue IS NOT NULL AND v_qid IS NULL THEN
        RETURN;
    END IF;
    IF p_named THEN
        RETURN QUERY SELECT m.id FROM matching_named(
            p_ids, p_key_queues, p_keys, v_qid, p_tenant, p_task, p_states, v_before, p_above, p_below, p_limit, p_newest,
            p_reason
        ) AS m;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT x.id FROM (
        SELECT y.id, y.qid FROM ready AS y WHERE v_live AND (p_states IS NULL OR 0 = ANY (p_states))
        UNION ALL SELECT l.id, l.qid FROM leased AS l
            WHERE v_live AND (p_states IS NULL OR 1 = ANY (p_states)) AND NOT (p_unasked AND (l.cancel OR asked_for(l.id)))
        UNION ALL SELECT p.id, p.qid FROM paused AS p WHERE v_live AND (p_states IS NULL OR 2 = ANY (p_states))
        UNION ALL SELECT e.id, e.qid FROM ended AS e
            WHERE (p_states IS NULL OR e.state = ANY (p_states)) AND (p_reason IS NULL OR e.reason = p_reason)
    ) AS x JOIN jobs AS j ON j.id = ANY (ARRAY[x.id])
    WHERE (v_qid IS NULL OR x.qid = v_qid) AND (p_tenant IS NULL OR j.tenant = p_tenant)
        AND (p_task IS NULL OR j.task = p_task) AND (v_before IS NULL OR j.enqueued_at <= v_before)
        AND (p_above IS NULL OR x.id > p_above) AND (p_below IS NULL OR x.id < p_below)
    ORDER BY CASE WHEN p_newest THEN x.id END DESC, x.id LIMIT p_limit;
END $$;

-- A record. ``held``: the job is COMPLETED, and its result and key are still held.
CREATE TYPE record_row AS (
    ord integer, id uuid, queue text, task text, state smallint, tenant text, key text, priority smallint,
    run_at bigint, enqueued_at bigint, expires_at bigint, finished_at bigint, epoch bigint, attempt integer, lost integer,
    max_attempts integer, timeout bigint, result_ttl bigint, headers bytea, worker text, lease_until bigint, cancel boolean,
    reason text, parameters bytea, vm_state bytea, metadata bytea, blob bytea, error bytea, result bytea, held boolean,
    group_name text, progress bytea
);
-- Records of jobs named by id, then by key. ``ord`` counts through both.
CREATE FUNCTION fetch_v1(
    p_at bigint, p_ids uuid[], p_queues text[], p_keys text[], p_want smallint, p_error boolean, p_result boolean
) RETURNS SETOF record_row LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_indexonlyscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now bigint := clock(p_at);
BEGIN
    RETURN QUERY
    SELECT
        n.ord::integer, e.id, coalesce(q.name, name_of(e.qid)), e.task, e.state, e.tenant,
        CASE WHEN e.keyed THEN e.key END, e.priority, e.run_at, e.enqueued_at, e.expires_at, e.finished_at, e.epoch,
        e.attempt, e.lost, e.max_attempts, e.timeout, e.result_ttl, e.headers, coalesce(w.worker, ''), e.lease_until,
        e.cancel, coalesce(e.reason, ''),
        CASE WHEN p_want & 1 <> 0 THEN e.parameters END, CASE WHEN p_want & 2 <> 0 THEN e.vm_state END,
        CASE WHEN p_want & 4 <> 0 THEN e.metadata END, CASE WHEN p_want & 8 <> 0 THEN e.blob END,
        CASE WHEN p_error THEN e.error END, CASE WHEN p_result AND e.state = 3 AND e.held_until > v_now THEN e.result END,
        coalesce(e.state = 3 AND e.held_until > v_now, false), e.group_name, e.progress
    FROM each_named(p_ids, p_queues, p_keys) AS n JOIN entries AS e ON e.id = ANY (ARRAY[n.id]) LEFT JOIN queues AS q ON q.qid = e.qid
    LEFT JOIN workers AS w ON w.holder = e.holder AND w.listed_until > v_now
    WHERE e.state IS NOT NULL
    ORDER BY n.ord;
END $$;

-- The workers. Without their holders: who knows a holder can write under its leases.
CREATE FUNCTION workers_v1(p_at bigint)
RETURNS TABLE (worker text, queues text[], slots integer, busy integer, started_at bigint, seen_at bigint)
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT w.worker, w.queues, w.slots, w.busy, w.started_at, w.seen_at
    FROM workers AS w WHERE w.listed_until > clock(p_at) ORDER BY w.started_at, w.worker
$$;

-- Queues in numbers: the counters, and what a look at ``ready`` tells. ``p_names``: only these. Otherwise a bounded
-- number of queues, above the one with the number ``p_above``; a last row that has only ``more`` says above which one to
-- go on, if there are others. For a few queues (queues_name_key, totals_pkey) there is one plan; many need another, and
-- are planned each time, which takes three times as long as the look itself.
CREATE FUNCTION stats_v1(p_at bigint, p_cap integer, p_names text[] DEFAULT NULL, p_above integer DEFAULT NULL)
RETURNS TABLE (
    name text, paused boolean, available bigint, scheduled bigint, running bigint, jobs_paused bigint, completed bigint,
    cancelled bigint, failed bigint, oldest bigint, paused_until bigint, next_in bigint,
    more integer
) LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    c_most CONSTANT integer := 1000;
    c_few CONSTANT integer := 50;
    v_now bigint := clock(p_at);
    v_qids integer[];
BEGIN
    IF p_names IS NOT NULL THEN
        v_qids := ARRAY(SELECT q.qid FROM queues AS q WHERE q.name = ANY (p_names));  -- queues_name_key
    ELSE
        v_qids := ARRAY(SELECT q.qid FROM all_queues AS q WHERE p_above IS NULL OR q.qid > p_above ORDER BY q.qid LIMIT c_most);
    END IF;
    IF cardinality(v_qids) > c_few THEN
        PERFORM set_config('plan_cache_mode', 'force_custom_plan', true);
    END IF;
    RETURN QUERY
    SELECT q.name, q.paused_until > v_now, coalesce(w.available, 0),
        CASE WHEN h.scheduled < p_cap THEN h.scheduled ELSE beyond_due(v_now, q.qid, p_cap, w.available) END,
        coalesce(w.running, 0), coalesce(w.jobs_paused, 0),
        coalesce(w.completed, 0), coalesce(w.cancelled, 0), coalesce(w.failed, 0), h.oldest,
        CASE WHEN q.paused_until > v_now AND q.paused_until < 9007199254740991 THEN q.paused_until END,
        least((  -- ready_later
            SELECT y.run_at FROM ready AS y WHERE y.qid = q.qid AND y.lane = 0 AND y.run_at > v_now ORDER BY y.qid, y.run_at LIMIT 1
        ), CASE WHEN q.governed THEN next_asleep(v_now, q.qid) END) - v_now, NULL::integer
    FROM all_queues AS q LEFT JOIN (
        SELECT c.* FROM queue_counts AS c WHERE c.qid = ANY (v_qids)
    ) AS w ON w.qid = q.qid
    CROSS JOIN LATERAL (
        SELECT least(coalesce(sum(s.later), 0), p_cap)::bigint AS scheduled,
            v_now - min(s.run_at) FILTER (WHERE s.run_at <= v_now) AS oldest
        FROM (
            SELECT least((  -- ready_line, two probes per priority, of at most 1,000
                WITH RECURSIVE level (priority) AS (
                    SELECT (SELECT min(y.priority) FROM ready AS y WHERE y.qid = q.qid AND y.lane IS NULL)
                    UNION ALL
                    SELECT (SELECT min(y.priority) FROM ready AS y WHERE y.qid = q.qid AND y.lane IS NULL AND y.priority > l.priority)
                    FROM level AS l WHERE l.priority IS NOT NULL
                )
                SELECT min(x.run_at) FROM (
                    SELECT (SELECT min(y.run_at) FROM ready AS y WHERE y.qid = q.qid AND y.lane IS NULL AND y.priority = l.priority) AS run_at
                    FROM level AS l WHERE l.priority IS NOT NULL LIMIT 1000
                ) AS x
            ), (  -- ready_later
                SELECT y.run_at FROM ready AS y WHERE y.qid = q.qid AND y.lane = 0 ORDER BY y.qid, y.run_at LIMIT 1
            )) AS run_at, (
                SELECT count(*) FROM (SELECT 1 FROM ready AS y WHERE y.qid = q.qid AND y.lane = 0 AND y.run_at > v_now LIMIT p_cap) AS few
            ) AS later
            UNION ALL
            SELECT t.run_at, t.later FROM look_into_lanes(v_now, q.qid, p_cap) AS t WHERE q.governed
        ) AS s
    ) AS h
    WHERE q.qid = ANY (v_qids) AND (
        q.paused_until > v_now OR w.available + w.running + w.jobs_paused + w.completed + w.cancelled + w.failed > 0
    );
    IF p_names IS NULL AND cardinality(v_qids) = c_most THEN
        RETURN QUERY SELECT NULL::text, NULL::boolean, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, v_qids[c_most];
    END IF;
END $$;

-- Ended jobs, ticks (6), and keys that outlive their jobs (7).
CREATE FUNCTION places_v1() RETURNS TABLE (state smallint, jobs bigint, bytes bigint)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT s.state::smallint, coalesce(sum(c.jobs), 0)::bigint, coalesce(sum(c.bytes), 0)::bigint
    FROM generate_series(3, 7) AS s (state) LEFT JOIN store_counts AS c ON c.state = s.state
    GROUP BY s.state ORDER BY s.state
$$;

-- Jobs that refer to objects of hours before this one, above an hour and an id, oldest first; and their references.
CREATE FUNCTION referring_v1(p_before integer, p_hour integer, p_id uuid, p_limit integer)
RETURNS TABLE (id uuid, hour integer, parameters bytea, vm_state bytea, metadata bytea, blob bytea) LANGUAGE sql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
    WITH hits AS MATERIALIZED (
        (  -- jobs_objects of every partition, as many entries as are wanted
            SELECT j.id, oldest_hour(j.parameters, j.vm_state, j.metadata, j.blob) AS hour FROM jobs AS j
            WHERE oldest_hour(j.parameters, j.vm_state, j.metadata, j.blob) < p_before
                AND (oldest_hour(j.parameters, j.vm_state, j.metadata, j.blob), j.id) > (p_hour, p_id)
            ORDER BY oldest_hour(j.parameters, j.vm_state, j.metadata, j.blob), j.id LIMIT p_limit
        )
        UNION ALL
        (  -- patches_objects; jobs_pkey
            SELECT c.id, c.object_hour FROM patches AS c
            WHERE c.object_hour < p_before AND (c.object_hour, c.id) > (p_hour, p_id) AND NOT EXISTS (
                SELECT 1 FROM jobs AS j
                WHERE j.id = c.id AND oldest_hour(j.parameters, j.vm_state, j.metadata, j.blob) <= c.object_hour
            )
            ORDER BY c.object_hour, c.id LIMIT p_limit
        )
    ), first AS MATERIALIZED (
        SELECT h.id, min(h.hour) AS hour FROM hits AS h GROUP BY h.id ORDER BY 2, 1 LIMIT p_limit
    )
    SELECT
        f.id, f.hour, CASE WHEN reference_hour(e.parameters) IS NOT NULL THEN e.parameters END,
        CASE WHEN reference_hour(e.vm_state) IS NOT NULL THEN e.vm_state END,
        CASE WHEN reference_hour(e.metadata) IS NOT NULL THEN e.metadata END,
        CASE WHEN reference_hour(e.blob) IS NOT NULL THEN e.blob END
    FROM first AS f JOIN entries AS e ON e.id = ANY (ARRAY[f.id]) ORDER BY f.hour, f.id
$$;
