-- Jobs named by id or by key, in order, each once.
CREATE FUNCTION named(p_ids uuid[], p_queues text[], p_keys text[]) RETURNS TABLE (id uuid, ord bigint)
LANGUAGE sql STABLE ROWS 10 SET search_path FROM CURRENT AS $$
    SELECT x.id, min(x.ord) FROM (
        SELECT n.id, n.ord FROM unnest(p_ids) WITH ORDINALITY AS n (id, ord)
        UNION ALL
        SELECT k.id, n.ord + coalesce(cardinality(p_ids), 0)
        FROM unnest(p_queues, p_keys) WITH ORDINALITY AS n (queue, key, ord)
        LEFT JOIN queues AS q ON q.name = n.queue CROSS JOIN LATERAL (  -- keys_pkey, by both
            SELECT k.id FROM keys AS k
            WHERE k.qid = coalesce(q.qid, qid_of(n.queue)) AND k.key = n.key AND k.alone_until IS NULL OFFSET 0
        ) AS k
    ) AS x GROUP BY x.id
$$;

-- Those of them that a selector means, in order; or the newest.
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

-- The jobs that a selector means: those named, in order, or all in these states, in the order of their ids. Planned anew
-- each time, as what is the best way depends on what is asked for. ``p_unasked`` leaves out those that were asked to stop.
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
    IF p_newest THEN
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
        ORDER BY x.id DESC LIMIT p_limit;
    ELSE
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
        ORDER BY x.id LIMIT p_limit;
    END IF;
END $$;

-- A stored job as it is read; ``now`` is when.
CREATE TYPE record_row AS (
    ord integer, now bigint, id uuid, queue text, task text, state smallint, tenant text, key text, priority smallint,
    run_at bigint, enqueued_at bigint, expires_at bigint, finished_at bigint, epoch bigint, attempt integer, lost integer,
    max_attempts integer, timeout bigint, result_ttl bigint, headers bytea, worker text, lease_until bigint, cancel boolean,
    reason text, held_until bigint, error bytea, result bytea, parameters bytea, vm_state bytea, metadata bytea, blob bytea,
    group_name text
);
-- Records of jobs named by id, then by key; ``ord`` counts through both.
CREATE FUNCTION fetch_v1(
    p_at bigint, p_ids uuid[], p_queues text[], p_keys text[], p_want smallint, p_error boolean, p_result boolean
) RETURNS SETOF record_row LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_indexonlyscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := clock(p_at);
BEGIN
    RETURN QUERY
    SELECT
        n.ord::integer, v_now, e.id, coalesce(q.name, name_of(e.qid)), e.task, e.state, e.tenant, CASE WHEN e.keyed THEN e.key END, e.priority, e.run_at,
        e.enqueued_at, e.expires_at, e.finished_at, e.epoch, e.attempt, e.lost, e.max_attempts, e.timeout, e.result_ttl,
        e.headers, w.worker, e.lease_until, e.cancel, e.reason, e.held_until, CASE WHEN p_error THEN e.error END,
        CASE WHEN p_result AND e.held_until > v_now THEN e.result END,
        CASE WHEN p_want & 1 <> 0 THEN e.parameters END, CASE WHEN p_want & 2 <> 0 THEN e.vm_state END,
        CASE WHEN p_want & 4 <> 0 THEN e.metadata END, CASE WHEN p_want & 8 <> 0 THEN e.blob END,
        e.group_name
    FROM (
        SELECT i.id, i.ord FROM unnest(p_ids) WITH ORDINALITY AS i (id, ord)
        UNION ALL
        SELECT k.id, i.ord + cardinality(p_ids)
        FROM unnest(p_queues, p_keys) WITH ORDINALITY AS i (queue, key, ord)
        LEFT JOIN queues AS q ON q.name = i.queue CROSS JOIN LATERAL (  -- keys_pkey, by both
            SELECT k.id FROM keys AS k
            WHERE k.qid = coalesce(q.qid, qid_of(i.queue)) AND k.key = i.key AND k.alone_until IS NULL OFFSET 0
        ) AS k
    ) AS n
    JOIN entries AS e ON e.id = ANY (ARRAY[n.id]) LEFT JOIN queues AS q ON q.qid = e.qid
    LEFT JOIN workers AS w ON w.holder = e.holder AND w.listed_until > v_now
    WHERE e.state IS NOT NULL
    ORDER BY n.ord;
END $$;

-- The holder is the secret of a lease, and is not told.
CREATE FUNCTION workers_v1(p_at bigint)
RETURNS TABLE (worker text, queues text[], slots integer, busy integer, started_at bigint, seen_at bigint)
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT w.worker, w.queues, w.slots, w.busy, w.started_at, w.seen_at
    FROM workers AS w WHERE w.listed_until > clock(p_at) ORDER BY w.started_at, w.worker
$$;

-- How a queue stands: the counters, and what only a look at ``ready`` tells.
-- ``p_names``: only of these. Planned anew each time, as a look at a few queues (queues_name_key, totals_pkey) is nothing like one
-- at all.
CREATE FUNCTION stats_v1(p_at bigint, p_cap integer, p_names text[] DEFAULT NULL)
RETURNS TABLE (
    name text, paused boolean, available bigint, scheduled bigint, running bigint, jobs_paused bigint, completed bigint,
    cancelled bigint, failed bigint, oldest bigint, paused_until bigint
) LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := clock(p_at);
    v_qids integer[] := (SELECT array_agg(q.qid) FROM queues AS q WHERE q.name = ANY (p_names));
BEGIN
    IF p_names IS NOT NULL AND v_qids IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH counts AS (
        SELECT c.qid, c.state, sum(c.jobs)::bigint AS jobs FROM (
            SELECT t.qid, t.state, t.jobs FROM totals AS t WHERE v_qids IS NULL OR t.qid = ANY (v_qids)
            UNION ALL
            SELECT d.qid, d.state, d.jobs FROM deltas AS d WHERE v_qids IS NULL OR d.qid = ANY (v_qids)
        ) AS c GROUP BY c.qid, c.state
    ), wide AS (
        SELECT c.qid,
            coalesce(sum(c.jobs) FILTER (WHERE c.state = 0), 0)::bigint AS a,
            coalesce(sum(c.jobs) FILTER (WHERE c.state = 1), 0)::bigint AS r,
            coalesce(sum(c.jobs) FILTER (WHERE c.state = 2), 0)::bigint AS p,
            coalesce(sum(c.jobs) FILTER (WHERE c.state = 3), 0)::bigint AS d,
            coalesce(sum(c.jobs) FILTER (WHERE c.state = 4), 0)::bigint AS x,
            coalesce(sum(c.jobs) FILTER (WHERE c.state = 5), 0)::bigint AS f
        FROM counts AS c GROUP BY c.qid
    )
    SELECT q.name, q.paused_until > v_now, coalesce(w.a, 0), h.scheduled, coalesce(w.r, 0), coalesce(w.p, 0), coalesce(w.d, 0),
        coalesce(w.x, 0), coalesce(w.f, 0), h.oldest,
        CASE WHEN q.paused_until > v_now AND q.paused_until < 9007199254740991 THEN q.paused_until END
    FROM all_queues AS q LEFT JOIN wide AS w ON w.qid = q.qid
    CROSS JOIN LATERAL (
        SELECT least(coalesce(sum(s.later), 0), p_cap)::bigint AS scheduled,
            v_now - min(s.run_at) FILTER (WHERE s.run_at <= v_now) AS oldest
        FROM (
            SELECT least((  -- ready_line, two probes per priority; of very many of them, the first ones
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
    WHERE (v_qids IS NULL OR q.qid = ANY (v_qids)) AND (q.paused_until > v_now OR w.a + w.r + w.p + w.d + w.x + w.f > 0);
END $$;

CREATE FUNCTION places_v1() RETURNS TABLE (state smallint, jobs bigint, bytes bigint)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT s.state, coalesce(sum(c.jobs), 0)::bigint, coalesce(sum(c.bytes), 0)::bigint
    FROM (VALUES (3::smallint), (4::smallint), (5::smallint)) AS s (state)
    LEFT JOIN (
        SELECT t.state, t.jobs, t.bytes FROM totals AS t UNION ALL SELECT d.state, d.jobs, d.bytes FROM deltas AS d
    ) AS c ON c.state = s.state
    GROUP BY s.state ORDER BY s.state
$$;
