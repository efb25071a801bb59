-- Groups (see ``Backend.claim``). A job is called if it is in ``leased``, or in ``ready`` without a negative lane. A
-- step that changes a group calls its jobs at the end. A step in a transaction that may last, or one that meets a group
-- or a job that somebody has locked, leaves a row in ``looks`` instead, for the claims and reaps that follow.
CREATE TABLE looks (
    gid bigint NOT NULL,
    qid integer NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX looks_qid ON looks (qid);

-- The lock of a group: one of a fixed number. Nobody waits for one: a step that does not get it leaves the group in
-- ``looks``. So no two steps wait for each other, whatever the order of their groups, and nobody waits for another's
-- disk.
CREATE FUNCTION group_lock(p_gid bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
    'SELECT ''groups '' || lpad((p_gid & 4095)::text, 4, ''0'')';
-- Lock these groups until the end of the transaction. Returns those that somebody else has locked.
CREATE FUNCTION lock_groups(p_gids bigint[]) RETURNS bigint[] LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_names CONSTANT text[] := ARRAY(SELECT DISTINCT group_lock(g) FROM unnest(p_gids) AS g WHERE g IS NOT NULL);
    v_ours CONSTANT text[] := ARRAY(  -- locks_pkey
        SELECT l.name FROM locks AS l WHERE l.name = ANY (v_names) FOR NO KEY UPDATE SKIP LOCKED
    );
BEGIN
    RETURN CASE WHEN cardinality(v_ours) < cardinality(v_names) THEN ARRAY(
        SELECT DISTINCT g FROM unnest(p_gids) AS g WHERE group_lock(g) <> ALL (v_ours)
    ) ELSE '{}' END;
END $$;
-- Lock all groups, present and future. This waits, and is called before any lock that others with a group wait for.
CREATE FUNCTION lock_all_groups() RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT 1 FROM locks AS l WHERE l.name = ANY (ARRAY(SELECT group_lock(n) FROM generate_series(0, 4095) AS n))  -- locks_pkey
    ORDER BY l.name FOR NO KEY UPDATE
$$;

-- Leave these groups to be looked at. Returns their queues, whose listeners get a hint.
CREATE FUNCTION leave_word(p_qids integer[], p_gids bigint[], p_theirs bigint[]) RETURNS SETOF integer LANGUAGE sql VOLATILE
SET search_path FROM CURRENT AS $$
    WITH left_to_others AS (
        INSERT INTO looks (gid, qid)
        SELECT DISTINCT n.gid, n.qid FROM unnest(p_gids, p_qids) AS n (gid, qid) WHERE n.gid = ANY (p_theirs) RETURNING qid
    )
    SELECT DISTINCT l.qid FROM left_to_others AS l
$$;

-- Call the jobs that come first in these groups. Returns the queues in which one was called. It waits for no row, and
-- its caller waits for none afterwards, so no two steps wait for each other. ``p_later``: jobs that do not count yet;
-- or, if called, still run.
CREATE FUNCTION call_groups(p_qids integer[], p_gids bigint[], p_later uuid[] DEFAULT '{}') RETURNS SETOF integer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET enable_indexonlyscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids uuid[];
    v_groups bigint[];
    v_calls boolean[];
    v_held uuid[];
    v_lanes bigint[];
    v_busy bigint[];
    v_theirs CONSTANT bigint[] := lock_groups(p_gids);
BEGIN
    IF v_theirs <> '{}' THEN
        RETURN QUERY SELECT * FROM leave_word(p_qids, p_gids, v_theirs);
    END IF;
    WITH asked AS MATERIALIZED (
        SELECT g.gid, g.qid, group_running_of(g.qid) AS turns
        FROM (SELECT DISTINCT n.gid, n.qid FROM unnest(p_gids, p_qids) AS n (gid, qid) WHERE n.gid <> ALL (v_theirs)) AS g
    ), called AS MATERIALIZED (  -- ready_called
        SELECT c.*, row_number() OVER (PARTITION BY c.gid, c.loose, c.later ORDER BY c.run_at, c.id) AS place FROM (
            SELECT a.gid, y.run_at, y.id, (a.turns > 1 OR y.epoch = 0) AND y.id <> ALL (p_later) AS loose, y.id = ANY (p_later) AS later
            FROM asked AS a JOIN ready AS y ON y.gid = ANY (ARRAY[a.gid]) AND y.gid IS NOT NULL AND coalesce(y.lane, 0) >= 0
        ) AS c
    ), free AS MATERIALIZED (  -- leased_group
        SELECT a.gid, a.turns, a.turns - l.jobs - c.later AS most, greatest(a.turns - l.jobs - c.later - c.tied, 0) AS room
        FROM asked AS a CROSS JOIN LATERAL (SELECT count(*) AS jobs FROM leased AS l WHERE l.gid = a.gid) AS l
        CROSS JOIN LATERAL (
            SELECT count(*) FILTER (WHERE c.later) AS later, count(*) FILTER (WHERE NOT c.later AND NOT c.loose) AS tied
            FROM called AS c WHERE c.gid = a.gid
        ) AS c
    ), first AS MATERIALIZED (  -- ready_group
        SELECT f.gid, x.id, x.waits FROM free AS f CROSS JOIN LATERAL (
            SELECT y.id, coalesce(y.lane, 0) < 0 AS waits FROM ready AS y
            WHERE y.gid = f.gid AND (y.lane < 0 OR f.turns > 1 OR y.epoch = 0) AND y.id <> ALL (p_later) ORDER BY y.run_at, y.id LIMIT f.room
        ) AS x
    )
    SELECT array_agg(x.id), array_agg(x.gid), array_agg(x.calls) INTO v_ids, v_groups, v_calls FROM (
        SELECT f.id, f.gid, true AS calls FROM first AS f WHERE f.waits
        UNION ALL
        SELECT c.id, c.gid, false FROM called AS c
        WHERE c.loose AND NOT EXISTS (SELECT 1 FROM first AS f WHERE f.id = c.id AND NOT f.waits)
        UNION ALL  -- group_running was lowered
        SELECT c.id, c.gid, false FROM called AS c JOIN free AS f ON f.gid = c.gid
        WHERE NOT c.loose AND NOT c.later AND c.place > f.most
    ) AS x;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    SELECT coalesce(array_agg(h.id), '{}'), coalesce(array_agg(h.lane), '{}') INTO v_held, v_lanes FROM (  -- ready_pkey
        SELECT y.id, y.lane FROM unnest(v_ids, v_groups, v_calls) AS n (id, gid, calls)
        JOIN ready AS y ON y.id = ANY (ARRAY[n.id]) AND y.gid = n.gid AND (coalesce(y.lane, 0) < 0) = n.calls FOR UPDATE OF y SKIP LOCKED
    ) AS h;
    v_busy := ARRAY(
        SELECT DISTINCT n.gid FROM unnest(v_ids, v_groups) AS n (id, gid) WHERE n.id <> ALL (v_held)
    );
    IF v_busy <> '{}' THEN
        INSERT INTO looks (gid, qid)
        SELECT DISTINCT n.gid, n.qid FROM unnest(p_gids, p_qids) AS n (gid, qid) WHERE n.gid = ANY (v_busy);
    END IF;
    RETURN QUERY
    WITH moved AS (  -- ready_pkey, jobs_pkey, queues_pkey
        UPDATE ready AS y SET lane = CASE
            WHEN NOT n.calls THEN -y.qid
            WHEN n.governed THEN lane_of(tid_of(y.qid, j.tenant)) + (y.run_at > now_us())::integer
            WHEN y.run_at > now_us() THEN 0
        END
        FROM (
            SELECT m.*, coalesce(q.governed, false) AS governed FROM unnest(v_ids, v_groups, v_calls) AS m (id, gid, calls)
            LEFT JOIN queues AS q ON q.qid = ANY (ARRAY[p_qids[array_position(p_gids, m.gid)]])
        ) AS n JOIN jobs AS j ON j.id = ANY (ARRAY[n.id])
        WHERE n.gid <> ALL (v_busy) AND y.id = ANY (ARRAY[n.id])
        RETURNING y.qid, y.run_at, j.tenant, n.calls,
            n.governed AND (n.calls OR v_lanes[array_position(v_held, y.id)] >= 4611686018427387904) AS tells
    ), told AS (  -- one that was sent back before it came into a lane has left none
        INSERT INTO news (qid, kind, tids, jobs, ats, tenants)
        SELECT g.qid, CASE WHEN g.calls THEN 1 ELSE 3 END, array_agg(tid_of(g.qid, g.tenant)), array_agg(g.jobs),
            array_agg(g.run_at), array_agg(g.tenant)
        FROM (
            SELECT m.qid, m.calls, m.tenant, count(*) AS jobs, min(m.run_at) AS run_at
            FROM moved AS m WHERE m.tells GROUP BY m.qid, m.calls, m.tenant
        ) AS g GROUP BY g.qid, g.calls ORDER BY g.qid, g.calls
    )
    SELECT DISTINCT m.qid FROM moved AS m WHERE m.calls;
END $$;

-- The same after several changes, in order. ``p_changes``: the change that concerns each group. ``p_entered``,
-- ``p_entries``: jobs that came into a group, and by which change. A job that was leased before keeps its call.
CREATE FUNCTION call_in_order(
    p_qids integer[], p_gids bigint[], p_changes integer[], p_entered uuid[], p_entries integer[]
) RETURNS SETOF integer LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_theirs bigint[];
    r record;
BEGIN
    IF cardinality(p_entered) = 0 OR p_changes[1] = p_changes[cardinality(p_changes)] THEN
        RETURN QUERY SELECT * FROM call_groups(p_qids, p_gids);
        RETURN;
    END IF;
    v_theirs := lock_groups(p_gids);
    IF v_theirs <> '{}' THEN
        RETURN QUERY SELECT * FROM leave_word(p_qids, p_gids, v_theirs);
    END IF;
    FOR r IN
        SELECT n.change, array_agg(n.qid) AS qids, array_agg(n.gid) AS gids
        FROM unnest(p_qids, p_gids, p_changes) AS n (qid, gid, change) WHERE n.gid <> ALL (v_theirs) GROUP BY n.change ORDER BY n.change
    LOOP
        RETURN QUERY SELECT * FROM call_groups(r.qids, r.gids, ARRAY(
            SELECT e.id FROM unnest(p_entered, p_entries) AS e (id, entry) GROUP BY e.id HAVING min(e.entry) > r.change
        ));
    END LOOP;
END $$;

-- Call the groups of these queues, or of all, that wait to be looked at. Returns the queues in which a job was called.
-- Groups that others have locked are left to them, or for another time, as the caller may have locked some itself.
CREATE FUNCTION call_looks(p_qids integer[]) RETURNS SETOF integer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_qids integer[];
    v_gids bigint[];
BEGIN
    WITH few AS MATERIALIZED (  -- looks_qid
        SELECT k.ctid AS place, k.gid FROM looks AS k WHERE p_qids IS NULL OR k.qid = ANY (p_qids)
        LIMIT 500 FOR UPDATE SKIP LOCKED
    ), theirs AS MATERIALIZED (
        SELECT lock_groups(ARRAY(SELECT f.gid FROM few AS f)) AS gids
    ), gone AS (
        DELETE FROM looks AS k USING few AS f, theirs AS t WHERE k.ctid = f.place AND f.gid <> ALL (t.gids)
        RETURNING k.qid, k.gid
    )
    SELECT array_agg(g.qid), array_agg(g.gid) INTO v_qids, v_gids FROM gone AS g;
    IF v_gids IS NOT NULL THEN
        RETURN QUERY SELECT * FROM call_groups(v_qids, v_gids);
    END IF;
END $$;

-- Whether one of these new jobs, in a governed queue, comes after another that is to be called before it. Then its
-- tenant had something for a moment, and the calls must be made one by one. Jobs usually come in the order of their
-- calls.
CREATE FUNCTION crossed(p_qids integer[], p_gids bigint[], p_ids uuid[]) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN cardinality(p_ids) > 1 AND EXISTS (SELECT 1 FROM queues AS q WHERE q.qid = ANY (p_qids) AND q.governed) AND EXISTS (
        SELECT 1 FROM (  -- ready_pkey
            SELECT y.run_at, y.id, lag(y.run_at) OVER w AS last_run_at, lag(y.id) OVER w AS last_id
            FROM unnest(p_gids, p_ids) WITH ORDINALITY AS n (gid, id, ord) JOIN ready AS y ON y.id = ANY (ARRAY[n.id])
            WINDOW w AS (PARTITION BY n.gid ORDER BY n.ord)
        ) AS x WHERE (x.run_at, x.id) < (x.last_run_at, x.last_id)
    );
END $$;

-- Call the groups of new jobs.
CREATE FUNCTION call_inserted(p_qids integer[], p_rows job_row[], p_bound boolean) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_qids integer[];
    v_gids bigint[];
    v_ids uuid[];
    v_ords integer[];
BEGIN
    SELECT array_agg(g.qid ORDER BY g.ord), array_agg(gid_of(g.qid, g.name) ORDER BY g.ord), array_agg(g.id ORDER BY g.ord),
        array_agg(g.ord::integer ORDER BY g.ord)
    INTO v_qids, v_gids, v_ids, v_ords FROM (
        SELECT p_qids[n.queue] AS qid, n.group_name AS name, n.id, n.ordinality AS ord
        FROM unnest(p_rows) WITH ORDINALITY AS n WHERE n.group_name IS NOT NULL
    ) AS g;
    IF v_gids IS NULL THEN
        RETURN;
    ELSIF p_bound THEN
        INSERT INTO looks (qid, gid) SELECT DISTINCT n.* FROM unnest(v_qids, v_gids) AS n;
    ELSIF crossed(v_qids, v_gids, v_ids) THEN
        PERFORM call_in_order(v_qids, v_gids, v_ords, v_ids, v_ords);
    ELSE
        PERFORM call_groups(v_qids, v_gids);
    END IF;
END $$;

-- Jobs of groups and of governed queues have stopped running, or wait now: tell so in ``news``, unless ``p_told``, and
-- call their groups. Returns the queues whose listeners get a hint.
CREATE FUNCTION stopped(
    p_now bigint, p_qids integer[], p_gids bigint[], p_tids bigint[], p_bound boolean, p_told boolean DEFAULT false,
    p_changes integer[] DEFAULT '{1}', p_entered uuid[] DEFAULT '{}', p_entries integer[] DEFAULT '{}'
) RETURNS SETOF integer LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT p_told THEN
        PERFORM tell_stopped(p_now, p_qids, p_tids);
    END IF;
    RETURN QUERY SELECT * FROM waited_for(p_qids, p_tids);
    IF cardinality(array_remove(p_gids, NULL)) = 0 THEN
        RETURN;
    ELSIF p_bound THEN
        INSERT INTO looks (qid, gid) SELECT DISTINCT n.* FROM unnest(p_qids, p_gids) AS n (qid, gid) WHERE n.gid IS NOT NULL;
        RETURN QUERY SELECT DISTINCT n.qid FROM unnest(p_qids, p_gids) AS n (qid, gid) WHERE n.gid IS NOT NULL;
    ELSE
        RETURN QUERY SELECT * FROM call_in_order(p_qids, p_gids, p_changes, p_entered, p_entries);
    END IF;
END $$;
