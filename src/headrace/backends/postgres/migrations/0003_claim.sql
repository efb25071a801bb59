-- What functions tell, one kind of row each: 0 a settlement whose answer is not the state that it asked for (its number in
-- ``epoch``, its state in ``attempt``), 1 a leased job, 2 a job that was taken back or has expired (its state in
-- ``attempt``, the reason in ``tenant``), 3 the rest of the answer to a claim, 4 an inbox to be told, 5 a queue to be told.
-- ``ord`` is a leased job's place in the answer, where that is not told by (priority, run_at, id); ``begun``, whether a handler may
-- have been called for it before.
CREATE TYPE claim_row AS (
    kind smallint, id uuid, name text, task text, tenant text, key text, epoch bigint, attempt integer, lost integer,
    priority smallint, run_at bigint, enqueued_at bigint, max_attempts integer, timeout bigint, result_ttl bigint,
    headers bytea, error bytea, parameters bytea, vm_state bytea, metadata bytea, blob bytea, group_name text, ord integer, begun boolean
);

-- A row of kind 4: the inbox waits for the job, which has ended.
CREATE FUNCTION told(p_id uuid, p_inbox text) RETURNS claim_row LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT (
        4, p_id, p_inbox, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL
    )::claim_row
$$;

-- What jobs came with, for claims. It is planned for these ids, and so locks only the days that they are of: a plan that is kept
-- locks every day there is, and then every claim waits for one who makes or drops a day, and he for them. The claim joins by
-- hashing its own rows, which are narrow and, as the planner is told, few.
CREATE FUNCTION contents(p_ids uuid[]) RETURNS SETOF jobs LANGUAGE plpgsql VOLATILE ROWS 1000000
SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN QUERY SELECT j.* FROM jobs AS j WHERE j.id = ANY (p_ids);  -- jobs_pkey
END $$;

-- AVAILABLE jobs that have expired are cancelled; the caller has taken them out of ``ready``.
CREATE FUNCTION end_jobs(
    p_now bigint, p_state smallint, p_reason text, p_ids uuid[], p_qids integer[], p_epochs bigint[],
    p_attempts integer[], p_losts integer[], p_sizes integer[], p_priorities smallint[], p_run_ats bigint[],
    p_keyed boolean[], p_errors bytea[]
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO ended (
        finished_at, held_until, run_at, id, qid, epoch, attempt, lost, size, state, priority, keyed, reason, error
    )
    SELECT p_now, 0, n.run_at, n.id, n.qid, n.epoch, n.attempt, n.lost, n.size, p_state, n.priority, n.keyed, p_reason, n.error
    FROM unnest(
        p_run_ats, p_ids, p_qids, p_epochs, p_attempts, p_losts, p_sizes, p_priorities, p_keyed, p_errors
    ) AS n (run_at, id, qid, epoch, attempt, lost, size, priority, keyed, error);
    INSERT INTO deltas (qid, state, jobs, bytes)
    SELECT n.qid, p_state, count(*), sum(n.size) FROM unnest(p_qids, p_sizes) AS n (qid, size) GROUP BY n.qid;
    IF true = ANY (p_keyed) THEN
        PERFORM lock_keys(p_ids, p_qids);
        UPDATE keys AS k SET held_until = 0, failed = (p_state = 5)
        FROM unnest(p_ids, p_qids, p_keyed) AS n (id, qid, keyed) JOIN jobs AS j ON j.id = ANY (ARRAY[n.id])
        WHERE n.keyed AND k.qid = ANY (ARRAY[n.qid]) AND k.key = ANY (ARRAY[j.key]) AND k.id = n.id;
    END IF;
END $$;

-- The inboxes that wait for jobs that have ended; each is told once.
CREATE FUNCTION take_waiters(p_ids uuid[]) RETURNS TABLE (id uuid, inbox text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY  -- waiters_pkey
    DELETE FROM waiters AS w USING unnest(p_ids) AS n (id) WHERE w.id = ANY (ARRAY[n.id]) RETURNING w.id, w.inbox;
END $$;

-- Cancel the jobs at these places of ``ready``, which have expired, but for those that somebody has in hand. Their groups are
-- to be looked at.
CREATE FUNCTION expire_v1(p_now bigint, p_places tid[]) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_ids uuid[];
    v_qids integer[];
    v_lanes bigint[];
BEGIN
    WITH head AS MATERIALIZED (
        SELECT y.ctid AS place FROM ready AS y WHERE y.ctid = ANY (p_places) AND y.dies_at <= p_now FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM ready AS y USING head AS h WHERE y.ctid = h.place RETURNING y.*
    ), counted AS (
        INSERT INTO deltas (qid, state, jobs) SELECT g.qid, 0, -count(*) FROM gone AS g GROUP BY g.qid
    ), over AS (
        SELECT end_jobs(
            p_now, 4::smallint, 'expired', array_agg(g.id), array_agg(g.qid), array_agg(g.epoch), array_agg(g.attempt),
            array_agg(g.lost), array_agg(g.size), array_agg(g.priority), array_agg(g.run_at), array_agg(g.keyed),
            array_agg(g.error)
        ), array_agg(g.id) AS ids, array_agg(g.qid) AS qids, array_agg(g.lane) AS lanes
        FROM gone AS g HAVING count(*) > 0
    ), looks AS (
        INSERT INTO looks (qid, gid) SELECT DISTINCT g.qid, g.gid FROM gone AS g WHERE g.gid IS NOT NULL
    )
    SELECT o.ids, o.qids, o.lanes INTO v_ids, v_qids, v_lanes FROM over AS o;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    PERFORM tell_dropped(p_now, v_qids, v_ids, v_lanes);
    RETURN QUERY
    SELECT
        2::smallint, e.id, q.name, j.task, 'expired', CASE WHEN e.keyed THEN j.key END, e.epoch, 4, e.lost,
        e.priority, e.run_at, NULL::bigint, NULL::integer, NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea,
        NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea, NULL::text, NULL::integer, NULL::boolean
    FROM unnest(v_ids) AS n (id) JOIN ended AS e ON e.id = ANY (ARRAY[n.id]) JOIN jobs AS j ON j.id = ANY (ARRAY[n.id]) JOIN queues AS q ON q.qid = e.qid;
    RETURN QUERY SELECT (told(w.id, w.inbox)).* FROM take_waiters(v_ids) AS w;
END $$;

-- Lease the first jobs by (priority, run_at, id). The client puts them in that order: a plan may return them in another.
--
-- ``p_mark_*`` say, per queue and priority, up to where this client has claimed lately; it then looks only beyond. It
-- gives them when the answer said that much was walked in vain: while an old snapshot is held, what others have claimed
-- stays in the index, and a look from the beginning passes all of it. ``p_governed`` is false where governed queues are passed over, as
-- one may have become so since the caller looked.
CREATE FUNCTION claim_v1(
    p_at bigint, p_holder text, p_queues text[], p_limit integer, p_lease_for bigint, p_want smallint,
    p_lost_below integer, p_max_bytes bigint, p_governed boolean, p_mark_queues text[] DEFAULT NULL, p_mark_priorities smallint[] DEFAULT NULL,
    p_mark_run_ats bigint[] DEFAULT NULL, p_mark_ids uuid[] DEFAULT NULL
) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = on SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := clock(p_at);
    v_bound integer := coalesce(p_lost_below, 2147483647);
    v_qids integer[];
    v_names text[];
    v_governed boolean;
    v_looks boolean;
    v_pause bigint;
    v_level smallint;
    v_left integer := greatest(p_limit, 0);
    v_room bigint := p_max_bytes;
    v_full boolean := false;
    v_got integer;
    v_last_run_at bigint;
    v_last_id uuid;
    v_dying boolean;
    v_suspects boolean;
    v_passed boolean := false;
    v_later bigint;
    v_next bigint;
    v_mark_run_ats bigint[];
    v_mark_ids uuid[];
    v_walked bigint := pg_stat_get_xact_tuples_returned('ready_pkey'::regclass);
BEGIN
    -- queues_name_key; ready_pkey and looks_qid, one probe per queue; ready_dying; ready_lost.
    SELECT
        array_agg(q.qid ORDER BY q.qid) FILTER (WHERE q.paused_until <= v_now),
        array_agg(q.name ORDER BY q.qid) FILTER (WHERE q.paused_until <= v_now),
        min(x.priority) FILTER (WHERE q.paused_until <= v_now),
        min(q.paused_until) FILTER (WHERE q.paused_until > v_now AND q.paused_until < 9007199254740991),
        bool_or(q.governed) FILTER (WHERE q.paused_until <= v_now), bool_or(EXISTS (SELECT 1 FROM looks AS k WHERE k.qid = q.qid)) FILTER (WHERE q.paused_until <= v_now),
        EXISTS (SELECT 1 FROM ready AS y WHERE y.dies_at IS NOT NULL AND y.dies_at <= v_now),
        p_lost_below IS NOT NULL AND EXISTS (SELECT 1 FROM ready AS y WHERE y.lost > 0 AND y.lost >= v_bound)
    INTO v_qids, v_names, v_level, v_pause, v_governed, v_looks, v_dying, v_suspects
    FROM queues AS q LEFT JOIN LATERAL (
        SELECT y.priority FROM ready AS y WHERE y.lane = q.qid AND p_mark_queues IS NULL ORDER BY y.lane, y.priority LIMIT 1
    ) AS x ON true
    WHERE q.name = ANY (p_queues) AND (p_governed OR NOT q.governed);
    IF v_looks THEN
        PERFORM call_looks(v_qids);
        IF EXISTS (SELECT 1 FROM looks AS k WHERE k.qid = ANY (v_qids)) THEN  -- somebody has their groups in hand
            v_pause := v_now;
        END IF;
        v_level := next_level(v_qids, v_names, -32769, NULL, NULL);
    END IF;
    IF v_governed AND cardinality(p_queues) = 1 THEN
        RETURN QUERY SELECT * FROM claim_turns(
            hear_turns(v_now, v_qids[1]), v_now, v_qids[1], v_names[1], v_pause, p_holder, v_left, p_lease_for, p_want,
            p_lost_below, v_room, v_dying, v_suspects, 0
        );
        RETURN;
    ELSIF v_governed THEN
        RETURN QUERY SELECT * FROM claim_parts(
            v_now, p_holder, p_queues, v_left, p_lease_for, p_want, p_lost_below, v_room, v_dying, v_suspects, v_pause
        );
        RETURN;
    END IF;
    IF p_mark_queues IS NOT NULL THEN
        v_level := next_level(v_qids, v_names, -32769, p_mark_queues, p_mark_priorities);
    END IF;
    WHILE v_left > 0 AND v_level IS NOT NULL LOOP
        IF p_mark_queues IS NOT NULL THEN
            SELECT array_agg(m.run_at ORDER BY q.ord), array_agg(m.id ORDER BY q.ord) INTO v_mark_run_ats, v_mark_ids
            FROM unnest(v_names) WITH ORDINALITY AS q (name, ord)
            LEFT JOIN unnest(p_mark_queues, p_mark_priorities, p_mark_run_ats, p_mark_ids) AS m (name, priority, run_at, id)
                ON m.name = q.name AND m.priority = v_level;
        END IF;
        RETURN QUERY
        -- ready_pkey: (lane, priority, beyond the mark, run_at <= now), in claim order; then by place in the heap; ``contents``;
        -- patches_pkey.
        WITH head AS MATERIALIZED (
            SELECT x.place, x.run_at, x.id, x.size
            FROM unnest(v_qids) WITH ORDINALITY AS q (qid, ord) CROSS JOIN LATERAL (
                SELECT y.ctid AS place, y.run_at, y.id, y.size FROM ready AS y
                WHERE y.lane = q.qid AND y.priority = v_level AND y.run_at <= v_now
                    AND (y.run_at, y.id) > (
                        coalesce(v_mark_run_ats[q.ord], -9223372036854775808),
                        coalesce(v_mark_ids[q.ord], '00000000-0000-0000-0000-000000000000')
                    )
                    AND (y.dies_at IS NULL OR y.dies_at > v_now) AND y.lost < v_bound
                ORDER BY y.run_at, y.id LIMIT v_left
                FOR UPDATE SKIP LOCKED
            ) AS x
            ORDER BY x.run_at, x.id LIMIT v_left
        ), fitting AS (  -- most often all of them, and nothing is to be added up one by one
            SELECT h.place FROM head AS h WHERE (SELECT sum(a.size) FROM head AS a) <= v_room
            UNION ALL
            SELECT w.place FROM (
                SELECT h.place, sum(h.size) OVER (ORDER BY h.run_at, h.id ROWS UNBOUNDED PRECEDING) - h.size AS before
                FROM head AS h WHERE (SELECT sum(a.size) FROM head AS a) > v_room
            ) AS w WHERE w.before < v_room
        ), gone AS (
            DELETE FROM ready AS y USING fitting AS f WHERE y.ctid = f.place RETURNING y.*
        ), held AS (
            INSERT INTO leased (lease_until, run_at, id, qid, epoch, attempt, lost, size, priority, keyed, gid, holder, error)
            SELECT v_now + p_lease_for, g.run_at, g.id, g.qid, greatest(abs(g.epoch) + 1, v_now), g.attempt, g.lost, g.size, g.priority, g.keyed,
                g.gid, p_holder, g.error
            FROM gone AS g
        ), counted AS (
            INSERT INTO deltas (qid, state, jobs)
            SELECT c.qid, s.state, s.sign * c.jobs
            FROM (SELECT g.qid, count(*) AS jobs FROM gone AS g GROUP BY g.qid) AS c
            CROSS JOIN (VALUES (0::smallint, -1), (1::smallint, 1)) AS s (state, sign)
        )
        SELECT
            1::smallint, g.id, v_names[array_position(v_qids, g.qid)], j.task, j.tenant, CASE WHEN g.keyed THEN j.key END,
            greatest(abs(g.epoch) + 1, v_now), g.attempt, g.lost, g.priority, g.run_at, j.enqueued_at, j.max_attempts, j.timeout, j.result_ttl,
            j.headers, g.error,
            CASE WHEN p_want & 1 <> 0 THEN bounded(CASE WHEN (g.patch).mask & 1 <> 0 THEN (g.patch).parameters ELSE j.parameters END) END,
            CASE WHEN p_want & 2 <> 0 THEN bounded(CASE WHEN (g.patch).mask & 2 <> 0 THEN (g.patch).vm_state ELSE j.vm_state END) END,
            CASE WHEN p_want & 4 <> 0 THEN bounded(CASE WHEN (g.patch).mask & 4 <> 0 THEN (g.patch).metadata ELSE j.metadata END) END,
            CASE WHEN p_want & 8 <> 0 THEN bounded(CASE WHEN (g.patch).mask & 8 <> 0 THEN (g.patch).blob ELSE j.blob END) END,
            j.group_name, NULL::integer, g.epoch > 0
        FROM (
            SELECT g.*, CASE WHEN g.epoch <> 0 THEN (SELECT c FROM patches AS c WHERE c.id = ANY (ARRAY[g.id])) END AS patch
            FROM gone AS g OFFSET 0
        ) AS g JOIN contents(ARRAY(SELECT x.id FROM gone AS x)) AS j ON j.id = g.id;
        GET DIAGNOSTICS v_got = ROW_COUNT;
        v_left := v_left - v_got;
        IF v_got > 0 AND v_left > 0 THEN  -- leased_until
            SELECT v_room - sum(l.size) INTO v_room
            FROM leased AS l WHERE l.lease_until = v_now + p_lease_for AND l.holder = p_holder AND l.priority = v_level;
        END IF;
        v_full := v_left = 0 OR v_room <= 0;
        IF v_dying OR v_suspects THEN
            IF v_full THEN  -- leased_until: the last one taken is among those that were leased just now
                SELECT l.run_at, l.id INTO v_last_run_at, v_last_id
                FROM leased AS l WHERE l.holder = p_holder AND l.lease_until = v_now + p_lease_for AND l.priority = v_level
                    AND l.qid = ANY (v_qids)
                ORDER BY l.run_at DESC, l.id DESC LIMIT 1;
            ELSE
                v_last_run_at := v_now;
                v_last_id := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
            END IF;
            IF v_suspects AND NOT v_passed THEN
                v_passed := EXISTS (  -- ready_lost
                    SELECT 1 FROM ready AS y
                    WHERE y.lane = ANY (v_qids) AND y.priority = v_level AND (y.run_at, y.id) <= (v_last_run_at, v_last_id)
                        AND y.lost > 0 AND y.lost >= v_bound AND (y.dies_at IS NULL OR y.dies_at > v_now)
                );
            END IF;
            IF v_dying THEN
                RETURN QUERY SELECT * FROM expire_v1(v_now, ARRAY(  -- ready_doomed
                    SELECT d.place FROM unnest(v_qids) AS q (qid) CROSS JOIN LATERAL (
                        SELECT y.ctid AS place, y.run_at, y.id FROM ready AS y
                        WHERE y.lane = q.qid AND y.priority = v_level AND y.dies_at IS NOT NULL AND y.dies_at + 0 <= v_now
                        ORDER BY y.dies_at + 0 LIMIT 1000
                    ) AS d WHERE (d.run_at, d.id) <= (v_last_run_at, v_last_id) LIMIT 1000
                ));
            END IF;
        END IF;
        EXIT WHEN v_full;
        -- ready_pkey: when the next job of this priority is due. One that could have been taken, and is still there, is in
        -- somebody's hand.
        SELECT least(min(x.run_at), min(b.at)) INTO v_later
        FROM unnest(v_qids) WITH ORDINALITY AS q (qid, ord) LEFT JOIN LATERAL (
            SELECT y.run_at FROM ready AS y WHERE y.lane = q.qid AND y.priority = v_level AND y.run_at > v_now
            ORDER BY y.run_at LIMIT 1
        ) AS x ON true LEFT JOIN LATERAL (
            SELECT v_now AS at FROM ready AS y
            WHERE y.lane = q.qid AND y.priority = v_level AND y.run_at <= v_now
                AND (y.run_at, y.id) > (
                    coalesce(v_mark_run_ats[q.ord], -9223372036854775808),
                    coalesce(v_mark_ids[q.ord], '00000000-0000-0000-0000-000000000000')
                )
                AND (y.dies_at IS NULL OR y.dies_at > v_now) AND y.lost < v_bound
            ORDER BY y.run_at, y.id LIMIT 1
        ) AS b ON true;
        v_next := least(v_next, v_later);
        v_level := next_level(v_qids, v_names, v_level, p_mark_queues, p_mark_priorities);
    END LOOP;
    IF v_left > 0 AND v_dying AND EXISTS (SELECT 1 FROM looks AS k WHERE k.qid = ANY (v_qids)) THEN
        v_next := v_now;  -- one that has expired has made way for another
    END IF;
    RETURN NEXT (
        3, NULL, NULL, NULL, NULL, NULL, NULL, pg_stat_get_xact_tuples_returned('ready_pkey'::regclass) - v_walked,
        v_passed::integer, NULL, CASE WHEN v_left > 0 THEN CASE WHEN v_passed OR v_room <= 0 THEN 0 ELSE least(v_next, v_pause) - v_now END END,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    )::claim_row;
END $$;

-- The next priority in which these queues may have something. One that has a mark is not looked into, only what lies
-- between.
CREATE FUNCTION next_level(
    p_qids integer[], p_names text[], p_level integer, p_mark_queues text[], p_mark_priorities smallint[]
) RETURNS smallint LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    -- ready_pkey, one probe per queue.
    SELECT min(coalesce(x.priority, m.priority)) FROM unnest(p_qids, p_names) AS q (qid, name)
    CROSS JOIN LATERAL (
        SELECT min(m.priority) AS priority FROM unnest(p_mark_queues, p_mark_priorities) AS m (name, priority)
        WHERE m.name = q.name AND m.priority > p_level
    ) AS m
    LEFT JOIN LATERAL (
        SELECT y.priority FROM ready AS y
        WHERE y.lane = q.qid AND y.priority > p_level AND y.priority < coalesce(m.priority, 32768)
        ORDER BY y.lane, y.priority LIMIT 1
    ) AS x ON true
$$;

-- The first job of each lane and priority in use.
CREATE FUNCTION heads(p_lanes bigint[]) RETURNS TABLE (lane bigint, priority smallint, run_at bigint)
LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    WITH RECURSIVE level (lane, priority) AS (
        SELECT n, (SELECT min(y.priority) FROM ready AS y WHERE y.lane = n) FROM unnest(p_lanes) AS n
        UNION ALL
        SELECT l.lane, (SELECT min(y.priority) FROM ready AS y WHERE y.lane = l.lane AND y.priority > l.priority)
        FROM level AS l WHERE l.priority IS NOT NULL
    )
    SELECT l.lane, l.priority,
        (SELECT min(y.run_at) FROM ready AS y WHERE y.lane = l.lane AND y.priority = l.priority)
    FROM level AS l WHERE l.priority IS NOT NULL
$$;
