-- Policies, and the turns of tenants in governed queues. ``Backend.claim`` says what the steps are: 1. wake, 2. next
-- tenant, 3. allowance, 4. take, 5. rest.
--
-- A queue with a policy, or a governed one, has a row in ``policies``; a governed one also has a row in ``turns``. Who
-- locks that row decides alone whose turn it is: claims, and changes of rules. Nobody else waits for it: inserts,
-- settlements, and whatever else brings a job into a lane or takes it out, add a row to ``news``, which the next
-- transaction with the lock reads first. Locks are taken in this order: jobs, keys, groups, turns.
CREATE TABLE policies (
    queue text NOT NULL CONSTRAINT policies_pkey PRIMARY KEY,
    version bigint NOT NULL DEFAULT 0,
    running bigint,
    every bigint,
    burst bigint,
    tenant_running bigint,
    tenant_every bigint,
    tenant_burst bigint,
    tenant_workers bigint,
    tenant_batch bigint,
    ageing bigint,
    group_running bigint NOT NULL DEFAULT 1,
    depth bigint
);

-- The ``group_running`` of a queue.
CREATE FUNCTION group_running_of(p_qid integer) RETURNS bigint LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT coalesce((SELECT p.group_running FROM policies AS p WHERE p.queue = coalesce(
        (SELECT q.name FROM queues AS q WHERE q.qid = p_qid), name_of(p_qid)
    )), 1)
$$;

-- ``full_at``: when the burst of the rate is saved up. ``behind``: an answer of ``hear_turns``; always false here. No
-- awake tenant comes before (``low_count``, ``low_since``, ``low_tenant``), and none wakes before ``low_wake``:
-- searches start there, past entries that an old snapshot keeps in the indexes. ``stir_from``: the tenants after this
-- one are still to wake, because the rules changed at ``stir_at``; with ``stir_rates`` their burst is saved up.
CREATE TABLE turns (
    round bigint NOT NULL DEFAULT 0,
    running bigint NOT NULL DEFAULT 0,
    full_at bigint NOT NULL DEFAULT 0,
    low_count bigint NOT NULL DEFAULT '-9223372036854775808',
    low_since bigint NOT NULL DEFAULT '-9223372036854775808',
    low_wake bigint NOT NULL DEFAULT '-9223372036854775808',
    low_tenant text COLLATE "C" NOT NULL DEFAULT '',
    qid integer NOT NULL CONSTRAINT turns_pkey PRIMARY KEY,
    behind boolean NOT NULL DEFAULT false,
    stir_from bigint,
    stir_at bigint NOT NULL DEFAULT 0,
    stir_rates boolean NOT NULL DEFAULT false
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- ``jobs``: jobs in its lanes; if that says none, the lanes are checked. ``awake``; ``at_limit``: full; neither: asleep
-- until ``wake_at``, if ever. ``held_by``: as many holders as ``tenant_workers`` allows had jobs of it when a claim of
-- another one met it, and only these may visit it; 0: nobody is known to be ruled out.
CREATE TABLE tenants (
    tid bigint NOT NULL CONSTRAINT tenants_pkey PRIMARY KEY,
    count bigint NOT NULL DEFAULT 0,
    since bigint NOT NULL DEFAULT 0,
    wake_at bigint,
    jobs bigint NOT NULL DEFAULT 0,
    running bigint NOT NULL DEFAULT 0,
    full_at bigint NOT NULL DEFAULT 0,
    held_by bigint NOT NULL DEFAULT 0,
    qid integer NOT NULL,
    awake boolean NOT NULL DEFAULT false,
    at_limit boolean NOT NULL DEFAULT false,
    tenant text COLLATE "C" NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX tenants_awake ON tenants (qid, count, since, tenant) WHERE awake AND held_by = 0;
CREATE INDEX tenants_asleep ON tenants (qid, wake_at) WHERE wake_at IS NOT NULL;

-- The names of tenants, in order. Only a tenant that comes or goes writes here: in ``tenants``, where most of what a claim
-- changes is in an index, a further index would be written with every visit.
CREATE TABLE tenant_names (
    tid bigint NOT NULL,
    qid integer NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    CONSTRAINT tenant_names_pkey PRIMARY KEY (qid, tenant)
);
CREATE FUNCTION keep_tenant_names() RETURNS trigger LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO tenant_names (tid, qid, tenant) VALUES (new.tid, new.qid, new.tenant) ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM tenant_names AS n WHERE n.qid = old.qid AND n.tenant = old.tenant;  -- tenant_names_pkey
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER tenants_named AFTER INSERT OR DELETE ON tenants FOR EACH ROW EXECUTE FUNCTION keep_tenant_names();

-- Who has jobs of the tenants with ``held_by``, and a copy of what says when it is their turn.
CREATE TABLE holdings (
    tid bigint NOT NULL,
    count bigint NOT NULL,
    since bigint NOT NULL,
    qid integer NOT NULL,
    awake boolean NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    holder text NOT NULL,
    CONSTRAINT holdings_pkey PRIMARY KEY (tid, holder)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX holdings_awake ON holdings (holder, qid, count, since, tenant) WHERE awake;

-- A job waits in the lane of its tenant (``lane_of``). A claim that meets jobs of a task with a rate or a pause there
-- puts them aside, into a lane for this tenant and task, so that those which may not run are in nobody's way. This
-- table has the lanes that were made so. An empty one is removed.
CREATE TABLE lanes (
    lane bigint NOT NULL CONSTRAINT lanes_pkey PRIMARY KEY,
    tid bigint NOT NULL,
    qid integer NOT NULL,
    task text NOT NULL
);
CREATE INDEX lanes_tid ON lanes (tid);
CREATE INDEX lanes_qid ON lanes (qid);

-- Limits of single tenants, instead of the policy's; and pauses of tenants and tasks.
CREATE TABLE tenant_rules (
    tid bigint NOT NULL CONSTRAINT tenant_rules_pkey PRIMARY KEY,
    running bigint,
    every bigint,
    burst bigint,
    paused_until bigint NOT NULL DEFAULT 0,
    qid integer NOT NULL,
    tenant text COLLATE "C" NOT NULL
);
CREATE INDEX tenant_rules_name ON tenant_rules (qid, tenant);
CREATE INDEX tenant_rules_over ON tenant_rules (qid, paused_until) WHERE every IS NULL AND running IS NULL;
CREATE TABLE task_rules (
    every bigint,
    burst bigint,
    full_at bigint NOT NULL DEFAULT 0,
    paused_until bigint NOT NULL DEFAULT 0,
    qid integer NOT NULL,
    task text COLLATE "C" NOT NULL,
    CONSTRAINT task_rules_pkey PRIMARY KEY (qid, task)
);

-- ``kind``: 1 jobs have come into lanes, the first of them due at ``ats``; 2 jobs have stopped running at ``ats``; 3
-- jobs have left their lanes at ``ats``, but not for a worker. One row per step, with one array element per tenant.
CREATE TABLE news (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    qid integer NOT NULL,
    kind smallint NOT NULL,
    tids bigint[] NOT NULL,
    jobs bigint[] NOT NULL,
    ats bigint[] NOT NULL,
    tenants text[]
) WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX news_qid ON news (qid, seq);

-- Jobs of these tenants have stopped running.
CREATE FUNCTION tell_stopped(p_now bigint, p_qids integer[], p_tids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO news (qid, kind, tids, jobs, ats)
    SELECT g.qid, 2, array_agg(g.tid), array_agg(g.jobs), array_agg(p_now) FROM (
        SELECT n.qid, n.tid, count(*) AS jobs FROM unnest(p_qids, p_tids) AS n (qid, tid) WHERE n.tid IS NOT NULL
        GROUP BY n.qid, n.tid
    ) AS g GROUP BY g.qid;
END $$;

-- Of these queues, in which jobs have stopped running, those in which somebody may wait for that.
CREATE FUNCTION waited_for(p_qids integer[], p_tids bigint[]) RETURNS SETOF integer LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY
    SELECT n.qid FROM (SELECT DISTINCT m.qid FROM unnest(p_qids, p_tids) AS m (qid, tid) WHERE m.tid IS NOT NULL) AS n
    JOIN queues AS q ON q.qid = ANY (ARRAY[n.qid]) JOIN policies AS p ON p.queue = ANY (ARRAY[q.name])  -- queues_pkey, policies_pkey
    WHERE coalesce(p.running, p.tenant_workers, p.tenant_running) IS NOT NULL OR EXISTS (  -- tenant_rules_pkey
        SELECT 1 FROM tenant_rules AS u WHERE u.tid = ANY (p_tids) AND u.qid = n.qid AND u.running IS NOT NULL
    );
END $$;

-- Those of these jobs that were in a lane of a tenant have left it.
CREATE FUNCTION tell_dropped(p_now bigint, p_qids integer[], p_ids uuid[], p_lanes bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    INSERT INTO news (qid, kind, tids, jobs, ats)
    SELECT g.qid, 3, array_agg(tid_of(g.qid, g.tenant)), array_agg(g.jobs), array_agg(p_now) FROM (
        SELECT n.qid, j.tenant, count(*) AS jobs  -- jobs_pkey
        FROM unnest(p_qids, p_ids, p_lanes) AS n (qid, id, lane) JOIN jobs AS j ON j.id = ANY (ARRAY[n.id])
        WHERE n.lane >= 4611686018427387904 GROUP BY n.qid, j.tenant
    ) AS g GROUP BY g.qid;
END $$;

-- How many jobs of a governed queue are delayed, up to a number; and when the first of all jobs is or was due.
CREATE FUNCTION look_into_lanes(p_now bigint, p_qid integer, p_cap integer, OUT later bigint, OUT run_at bigint)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    SELECT count(*) INTO later FROM (  -- ready_asleep_qid
        SELECT 1 FROM ready AS y WHERE y.qid = p_qid AND y.lane >= 4611686018427387904 AND y.lane & 1 = 1 AND y.run_at > p_now
        LIMIT p_cap
    ) AS few;
    run_at := least((  -- ready_turns, ready_asleep_qid
        SELECT y.run_at FROM ready AS y WHERE y.qid = p_qid AND y.lane >= 4611686018427387904 AND y.lane & 1 = 0
        ORDER BY y.qid, y.run_at LIMIT 1
    ), (
        SELECT y.run_at FROM ready AS y WHERE y.qid = p_qid AND y.lane >= 4611686018427387904 AND y.lane & 1 = 1
        ORDER BY y.qid, y.run_at LIMIT 1
    ));
END $$;

-- When the first of the jobs of a governed queue that are not due is.
CREATE FUNCTION next_asleep(p_now bigint, p_qid integer) RETURNS bigint
LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    SELECT y.run_at FROM ready AS y  -- ready_asleep_qid
    WHERE y.qid = p_qid AND y.lane >= 4611686018427387904 AND y.lane & 1 = 1 AND y.run_at > p_now
    ORDER BY y.qid, y.run_at LIMIT 1
$$;

-- How many of the available jobs of a queue are not due, by counting those that are, up to a bound; the bound, if there are more.
CREATE FUNCTION beyond_due(p_now bigint, p_qid integer, p_cap integer, p_available bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_due bigint;
BEGIN
    SELECT count(*) INTO v_due FROM (
        SELECT 1 FROM ready AS y WHERE y.qid = p_qid AND y.lane IS NULL  -- ready_line
        UNION ALL
        SELECT 1 FROM ready AS y WHERE y.qid = p_qid AND y.lane = 0 AND y.run_at <= p_now  -- ready_later
        UNION ALL
        SELECT 1 FROM ready AS y WHERE y.qid = p_qid AND y.lane >= 4611686018427387904 AND y.lane & 1 = 0  -- ready_turns
        UNION ALL
        SELECT 1 FROM ready AS y  -- ready_asleep_qid
        WHERE y.qid = p_qid AND y.lane >= 4611686018427387904 AND y.lane & 1 = 1 AND y.run_at <= p_now
        LIMIT p_cap
    ) AS few;
    RETURN CASE WHEN v_due < p_cap THEN p_available - v_due ELSE p_cap END;
END $$;

-- The lanes of a tenant, without those of closed tasks. Its own comes first, and has no task.
CREATE FUNCTION open_lanes(p_tid bigint, p_closed text[]) RETURNS TABLE (lane bigint, task text) LANGUAGE sql STABLE AS $$
    SELECT lane_of(p_tid), NULL::text
    UNION ALL SELECT l.lane, l.task FROM lanes AS l WHERE l.tid = p_tid AND (p_closed IS NULL OR l.task <> ALL (p_closed))
$$;

-- Whether a tenant has jobs in its lanes.
CREATE FUNCTION has_jobs(p_tid bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM open_lanes(p_tid, NULL) AS l JOIN ready AS y ON y.lane = ANY (ARRAY[l.lane, l.lane + 1]));
END $$;

-- Read ``news`` of jobs that came into lanes. Returns the earliest instant at which a tenant wakes.
CREATE FUNCTION hear_came(p_qid integer, p_upto bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_wake bigint;
BEGIN
    WITH rows AS (  -- news_qid; other kinds have come since, and wait for the next claim
        DELETE FROM news AS n WHERE n.qid = p_qid AND n.seq <= p_upto AND n.kind = 1 RETURNING n.*
    ), heard AS MATERIALIZED (
        SELECT x.* FROM rows AS n CROSS JOIN LATERAL unnest(n.tids, n.jobs, n.ats, n.tenants) AS x (tid, jobs, at, tenant)
    ), came AS (
        INSERT INTO tenants AS t (tid, qid, tenant, jobs, wake_at)
        SELECT h.tid, p_qid, min(h.tenant), sum(h.jobs), min(h.at) FROM heard AS h GROUP BY h.tid
        ON CONFLICT (tid) DO UPDATE SET jobs = t.jobs + excluded.jobs,
            wake_at = CASE WHEN NOT (t.awake OR t.at_limit) THEN least(t.wake_at, excluded.wake_at) END
    )
    SELECT min(h.at) INTO v_wake FROM heard AS h;
    RETURN v_wake;
END $$;

-- Jobs of these tenants, which are held, have stopped running. Those with fewer holders than are allowed are free.
CREATE FUNCTION free_tenants(p_tids bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
BEGIN
    DELETE FROM holdings AS h USING unnest(p_tids) AS n (tid)  -- holdings_pkey; leased_tenant
    WHERE h.tid = ANY (ARRAY[n.tid]) AND NOT EXISTS (SELECT 1 FROM leased AS l WHERE l.tid = h.tid AND l.holder = h.holder);
    WITH free AS (  -- tenants_pkey, holdings_pkey
        UPDATE tenants AS o SET held_by = 0 FROM unnest(p_tids) AS n (tid)
        WHERE o.tid = ANY (ARRAY[n.tid]) AND (SELECT count(*) FROM holdings AS h WHERE h.tid = o.tid) < o.held_by RETURNING o.tid
    )
    DELETE FROM holdings AS h USING free AS f WHERE h.tid = ANY (ARRAY[f.tid]);
END $$;

-- Jobs of these tenants have stopped running. Returns the earliest instant at which a tenant wakes. A tenant that has
-- nothing left, and would be the same if it came back, is removed. Relies on the settings of ``hear`` or ``claim_v1``.
CREATE FUNCTION count_stopped(p_now bigint, p_round bigint, p_tids bigint[], p_jobs bigint[], p_ats bigint[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_wake bigint;
    v_empty bigint[];
    v_held bigint[];
BEGIN
    WITH kept AS (  -- tenants_pkey
        UPDATE tenants AS t SET running = t.running - h.jobs, at_limit = false,
            wake_at = CASE WHEN t.at_limit THEN h.at ELSE t.wake_at END
        FROM (
            SELECT n.tid, sum(n.jobs) AS jobs, min(n.at) AS at FROM unnest(p_tids, p_jobs, p_ats) AS n (tid, jobs, at) GROUP BY n.tid
        ) AS h WHERE t.tid = ANY (ARRAY[h.tid]) RETURNING t.tid, t.jobs, t.running, t.awake, t.wake_at, t.held_by
    )
    SELECT min(k.wake_at), array_agg(k.tid) FILTER (WHERE k.jobs + k.running <= 0 AND NOT k.awake),
        array_agg(k.tid) FILTER (WHERE k.held_by > 0)
    INTO v_wake, v_empty, v_held FROM kept AS k;
    IF v_held IS NOT NULL THEN
        PERFORM free_tenants(v_held);
    END IF;
    IF v_empty IS NOT NULL THEN
        DELETE FROM tenants AS t USING unnest(v_empty) AS n (tid)
        WHERE t.tid = ANY (ARRAY[n.tid]) AND t.count <= p_round AND t.full_at <= p_now AND NOT has_jobs(t.tid);
    END IF;
    RETURN v_wake;
END $$;

-- Read ``news`` of all kinds, in order.
CREATE FUNCTION hear_all(p_qid integer, p_now bigint, p_round bigint, p_upto bigint, OUT stopped bigint, OUT wake bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_empty bigint[];
    v_held bigint[];
BEGIN
    WITH rows AS (  -- news_qid
        DELETE FROM news AS n WHERE n.qid = p_qid AND n.seq <= p_upto RETURNING n.*
    ), heard AS MATERIALIZED (
        SELECT n.seq, n.kind, x.* FROM rows AS n
        CROSS JOIN LATERAL unnest(n.tids, n.jobs, n.ats, n.tenants) AS x (tid, jobs, at, tenant)
    ), told AS MATERIALIZED (  -- tenants_pkey
        SELECT
            h.seq, h.kind, h.tid, h.jobs, h.at, h.tenant, coalesce(t.awake, false) AS awake,
            coalesce(t.at_limit, false) AS at_limit, t.wake_at, coalesce(t.held_by > 0, false) AS is_held,
            coalesce(t.awake, false) OR coalesce(t.count, 0) > p_round OR coalesce(t.full_at, 0) > h.at AS lasts,
            coalesce(t.jobs + t.running, 0)
                + sum(CASE WHEN h.kind = 1 THEN h.jobs ELSE -h.jobs END) OVER (PARTITION BY h.tid ORDER BY h.seq) AS rest,
            min(h.seq) FILTER (WHERE h.kind = 2) OVER (PARTITION BY h.tid) AS stop
        FROM heard AS h LEFT JOIN tenants AS t ON t.tid = ANY (ARRAY[h.tid])
    ), passed AS MATERIALIZED (
        SELECT o.*, max(o.seq) FILTER (WHERE o.kind <> 1 AND o.rest <= 0 AND NOT o.lasts) OVER (PARTITION BY o.tid) AS empty
        FROM told AS o
    ), summed AS MATERIALIZED (
        SELECT
            o.tid, max(o.tenant) AS tenant,
            coalesce(sum(o.jobs) FILTER (WHERE o.kind = 1), 0) - coalesce(sum(o.jobs) FILTER (WHERE o.kind = 3), 0) AS came,
            coalesce(sum(o.jobs) FILTER (WHERE o.kind = 2), 0) AS stopped,
            bool_or(o.at_limit) AND min(o.stop) IS NULL AND max(o.empty) IS NULL AS at_limit,
            CASE WHEN NOT bool_or(o.awake) THEN least(
                CASE
                    WHEN max(o.empty) IS NOT NULL THEN NULL
                    WHEN bool_or(o.at_limit) THEN min(o.at) FILTER (WHERE o.seq = o.stop)
                    ELSE min(o.wake_at)
                END,
                min(o.at) FILTER (WHERE o.kind = 1 AND o.seq > coalesce(
                    o.empty, CASE WHEN o.at_limit THEN coalesce(o.stop, 9223372036854775807) END, 0
                ))
            ) END AS wake_at,
            max(o.empty) IS NOT NULL AS emptied, bool_or(o.is_held) AND min(o.stop) IS NOT NULL AS freed
        FROM passed AS o GROUP BY o.tid
    ), kept AS (
        INSERT INTO tenants AS t (tid, qid, tenant, jobs, running, wake_at, at_limit)
        SELECT s.tid, p_qid, s.tenant, s.came, -s.stopped, s.wake_at, s.at_limit FROM summed AS s WHERE s.tenant IS NOT NULL
        ON CONFLICT (tid) DO UPDATE SET jobs = t.jobs + excluded.jobs, running = t.running + excluded.running,
            wake_at = excluded.wake_at, at_limit = excluded.at_limit
    ), others AS (
        UPDATE tenants AS t SET jobs = t.jobs + s.came, running = t.running - s.stopped, wake_at = s.wake_at,
            at_limit = s.at_limit
        FROM summed AS s WHERE s.tenant IS NULL AND t.tid = ANY (ARRAY[s.tid])
    )
    SELECT coalesce(sum(s.stopped), 0), least(p_now, min(s.wake_at)), array_agg(s.tid) FILTER (WHERE s.emptied),
        array_agg(s.tid) FILTER (WHERE s.freed)
    INTO stopped, wake, v_empty, v_held FROM summed AS s;
    IF v_held IS NOT NULL THEN
        PERFORM free_tenants(v_held);
    END IF;
    IF v_empty IS NOT NULL THEN
        DELETE FROM tenants AS t
        WHERE t.tid = ANY (v_empty) AND t.jobs <= 0 AND t.running <= 0 AND NOT t.awake AND t.count <= p_round
            AND t.full_at <= p_now AND NOT has_jobs(t.tid);
        UPDATE tenants AS t SET wake_at = p_now
        WHERE t.tid = ANY (v_empty) AND t.jobs <= 0 AND NOT t.awake AND t.wake_at IS NULL AND has_jobs(t.tid);
    END IF;
END $$;

-- Read ``news``: all, or the first part if there is very much. Returns how many jobs have stopped running, the earliest
-- instant at which a tenant wakes, and whether there is more.
CREATE FUNCTION hear(p_qid integer, p_now bigint, p_round bigint, OUT stopped bigint, OUT wake bigint, OUT more boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    c_most CONSTANT bigint := 250;
    v_first smallint;
    v_last smallint;
    v_upto bigint;
    v_tids bigint[];
    v_jobs bigint[];
    v_ats bigint[];
BEGIN
    stopped := 0;
    SELECT
        min(n.kind) FILTER (WHERE n.before < c_most), max(n.kind) FILTER (WHERE n.before < c_most),
        max(n.seq) FILTER (WHERE n.before < c_most), count(*) = c_most OR coalesce(max(n.before), 0) >= c_most
    INTO v_first, v_last, v_upto, more FROM (
        SELECT n.kind, n.seq, sum(n.entries) OVER (ORDER BY n.seq ROWS UNBOUNDED PRECEDING) - n.entries AS before FROM (  -- news_qid
            SELECT n.kind, n.seq, cardinality(n.tids) AS entries FROM news AS n WHERE n.qid = p_qid
            ORDER BY n.qid, n.seq LIMIT c_most
        ) AS n
    ) AS n;
    IF v_first = 1 AND v_last = 1 THEN  -- as usual: all of one kind, so their order does not matter
        wake := hear_came(p_qid, v_upto);
    ELSIF v_first = 2 AND v_last = 2 THEN
        WITH rows AS (  -- news_qid
            DELETE FROM news AS n WHERE n.qid = p_qid AND n.seq <= v_upto AND n.kind = 2 RETURNING n.*
        )
        SELECT coalesce(sum(x.jobs), 0), array_agg(x.tid), array_agg(x.jobs), array_agg(x.at) INTO stopped, v_tids, v_jobs, v_ats
        FROM rows AS n CROSS JOIN LATERAL unnest(n.tids, n.jobs, n.ats) AS x (tid, jobs, at);
        wake := count_stopped(p_now, p_round, v_tids, v_jobs, v_ats);
    ELSIF v_first IS NOT NULL THEN
        SELECT h.stopped, h.wake INTO stopped, wake FROM hear_all(p_qid, p_now, p_round, v_upto) AS h;
    END IF;
END $$;

-- Whether jobs still wait where they were before the queue became governed.
CREATE FUNCTION waits_outside(p_qid integer) RETURNS boolean LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT EXISTS (SELECT 1 FROM ready AS y WHERE y.qid = p_qid AND y.lane IS NULL)  -- ready_line
        OR EXISTS (SELECT 1 FROM ready AS y WHERE y.qid = p_qid AND y.lane = 0)  -- ready_later
$$;

-- Bring a bounded number of them into their lanes, in order.
CREATE FUNCTION bring_in(p_now bigint, p_qid integer) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
BEGIN
    WITH head AS MATERIALIZED (  -- ready_line, ready_later; then by place in the heap; jobs_pkey
        SELECT x.* FROM (
            SELECT y.ctid AS place FROM ready AS y WHERE y.qid = p_qid AND y.lane IS NULL
            ORDER BY y.qid, y.priority, y.run_at, y.id LIMIT 1000 FOR UPDATE SKIP LOCKED
        ) AS x
        UNION ALL
        SELECT x.* FROM (
            SELECT y.ctid AS place FROM ready AS y WHERE y.qid = p_qid AND y.lane = 0
            ORDER BY y.qid, y.run_at, y.id LIMIT 1000 FOR UPDATE SKIP LOCKED
        ) AS x
    ), moved AS (
        UPDATE ready AS y SET lane = lane_of(tid_of(p_qid, j.tenant)) + (y.run_at > p_now)::integer
        FROM head AS h CROSS JOIN jobs AS j WHERE y.ctid = h.place AND j.id = y.id RETURNING y.run_at, j.tenant
    )
    INSERT INTO news (qid, kind, tids, jobs, ats, tenants)
    SELECT p_qid, 1, array_agg(tid_of(p_qid, g.tenant)), array_agg(g.jobs), array_agg(g.run_at), array_agg(g.tenant)
    FROM (SELECT m.tenant, count(*) AS jobs, min(m.run_at) AS run_at FROM moved AS m GROUP BY m.tenant) AS g HAVING count(*) > 0;
END $$;

-- The holders that have jobs of a tenant.
CREATE FUNCTION holders_of(p_tid bigint) RETURNS SETOF text LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE one (holder) AS (  -- leased_tenant, one probe per holder
        SELECT (SELECT l.holder FROM leased AS l WHERE l.tid = p_tid ORDER BY l.tid, l.holder LIMIT 1)
        UNION ALL
        SELECT (SELECT l.holder FROM leased AS l WHERE l.tid = p_tid AND l.holder > o.holder ORDER BY l.tid, l.holder LIMIT 1)
        FROM one AS o WHERE o.holder IS NOT NULL
    )
    SELECT o.holder FROM one AS o WHERE o.holder IS NOT NULL;
END $$;

-- Of these tenants, ``tenant_workers`` rules out those that as many holders have jobs of, and not this one. They are held
-- now: only their holders meet them. Returns how many they are.
CREATE FUNCTION hold(p_qid integer, p_tids bigint[], p_holder text, p_most bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    WITH found AS MATERIALIZED (  -- leased_tenant
        SELECT n.tid, h.holders FROM unnest(p_tids) AS n (tid) CROSS JOIN LATERAL (SELECT ARRAY(SELECT holders_of(n.tid)) AS holders) AS h
        WHERE cardinality(h.holders) >= p_most AND p_holder <> ALL (h.holders)
    ), held AS (  -- tenants_pkey
        UPDATE tenants AS o SET held_by = p_most FROM found AS f WHERE o.tid = ANY (ARRAY[f.tid]) RETURNING o.*, f.holders
    )
    INSERT INTO holdings (tid, count, since, qid, awake, tenant, holder)
    SELECT o.tid, o.count, o.since, p_qid, o.awake, o.tenant, n FROM held AS o CROSS JOIN LATERAL unnest(o.holders) AS n
    ON CONFLICT (tid, holder) DO UPDATE SET count = excluded.count, since = excluded.since, awake = excluded.awake;
    RETURN (SELECT count(*) FROM unnest(p_tids) AS n (tid) JOIN tenants AS o ON o.tid = ANY (ARRAY[n.tid]) WHERE o.held_by > 0);
END $$;

-- These tenants, which are held, have another turn, or none.
CREATE FUNCTION copy_turns(p_tids bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    UPDATE holdings AS h SET count = o.count, since = o.since, awake = o.awake  -- tenants_pkey, holdings_pkey
    FROM unnest(p_tids) AS n (tid) JOIN tenants AS o ON o.tid = ANY (ARRAY[n.tid]) WHERE h.tid = ANY (ARRAY[o.tid]);
END $$;

-- How many jobs a rate allows. NULL: there is no rate.
CREATE FUNCTION allowed(p_every bigint, p_burst bigint, p_full_at bigint, p_now bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_every IS NOT NULL THEN greatest(0, p_burst - (greatest(0, p_full_at - p_now) + p_every - 1) / p_every) END
$$;

-- Tasks of a governed queue that may not start, and until when; and tasks with a rate, and how many may start.
-- ``ruled``: there is one of these. ``aside``: jobs may have been put aside.
CREATE TYPE task_gates AS (closed text[], until bigint[], rated text[], free bigint[], ruled boolean, aside boolean);
CREATE FUNCTION closed_tasks(p_now bigint, p_qid integer) RETURNS task_gates LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    gates task_gates;
BEGIN
    SELECT
        array_agg(k.task) FILTER (WHERE k.until > 0), array_agg(k.until) FILTER (WHERE k.until > 0),
        array_agg(k.task) FILTER (WHERE k.until = 0 AND k.every IS NOT NULL),
        array_agg(k.free) FILTER (WHERE k.until = 0 AND k.every IS NOT NULL), true, true
    INTO gates FROM (
        SELECT c.task, c.every, c.free, greatest(
            CASE WHEN c.paused_until > p_now THEN c.paused_until ELSE 0 END,
            CASE WHEN c.free = 0 THEN c.full_at - (c.burst - 1) * c.every ELSE 0 END
        ) AS until
        FROM (  -- task_rules_pkey
            SELECT x.*, allowed(x.every, x.burst, x.full_at, p_now) AS free FROM task_rules AS x WHERE x.qid = p_qid
        ) AS c
    ) AS k;
    RETURN gates;
END $$;

-- Rules have changed for all tenants: wake the next of them, a bounded number.
CREATE FUNCTION stir(INOUT turn turns) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    v_tids CONSTANT bigint[] := ARRAY(  -- tenants_pkey, those of other queues among them
        SELECT o.tid FROM tenants AS o WHERE o.tid > turn.stir_from ORDER BY o.tid LIMIT 1000
    );
BEGIN
    DELETE FROM holdings AS h USING unnest(v_tids) AS n (tid) WHERE h.tid = ANY (ARRAY[n.tid]) AND h.qid = turn.qid;  -- holdings_pkey
    UPDATE tenants AS o SET at_limit = false, held_by = 0, wake_at = CASE WHEN NOT o.awake THEN least(o.wake_at, turn.stir_at) END,
        full_at = CASE
            WHEN turn.stir_rates AND NOT EXISTS (SELECT 1 FROM tenant_rules AS u WHERE u.tid = o.tid AND u.every IS NOT NULL) THEN 0
            ELSE o.full_at
        END
    FROM unnest(v_tids) AS n (tid)
    WHERE o.tid = ANY (ARRAY[n.tid]) AND o.qid = turn.qid AND (turn.stir_rates OR NOT o.awake OR o.held_by > 0);
    turn.stir_from := v_tids[1000];
    turn.low_wake := least(turn.low_wake, turn.stir_at);
    turn.low_count := -9223372036854775808;  -- some are free now
    UPDATE turns AS t SET stir_from = turn.stir_from, stir_at = turn.stir_at, stir_rates = turn.stir_rates,
        low_wake = turn.low_wake, low_count = turn.low_count
    WHERE t.qid = turn.qid;
END $$;

-- Lock the turns of a governed queue, and read ``news``: all, or as much as a moment allows. ``behind``: there is more,
-- or jobs are not in their lanes yet. ``p_keeps``: the caller stores what is returned.
CREATE FUNCTION hear_turns(p_now bigint, p_qid integer, p_keeps boolean DEFAULT false) RETURNS turns LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_stopped bigint;
    v_wake bigint;
    v_more boolean;
    v_until timestamptz;
    turn turns;
BEGIN
    SELECT t.* INTO turn FROM turns AS t WHERE t.qid = p_qid FOR NO KEY UPDATE;
    IF waits_outside(p_qid) THEN
        PERFORM bring_in(p_now, p_qid);
        turn.behind := waits_outside(p_qid);
    END IF;
    v_until := clock_timestamp() + interval '10 milliseconds';
    LOOP
        SELECT h.stopped, h.wake, h.more INTO v_stopped, v_wake, v_more FROM hear(p_qid, p_now, turn.round) AS h;
        IF v_stopped > 0 OR v_wake < turn.low_wake THEN
            turn.running := turn.running - v_stopped;
            turn.low_wake := least(turn.low_wake, v_wake);
            IF NOT p_keeps THEN
                UPDATE turns AS t SET running = turn.running, low_wake = turn.low_wake WHERE t.qid = p_qid;
            END IF;
        END IF;
        EXIT WHEN NOT v_more OR clock_timestamp() > v_until;
    END LOOP;
    IF turn.stir_from IS NOT NULL THEN
        turn := stir(turn);
    END IF;
    turn.behind := turn.behind OR v_more OR turn.stir_from IS NOT NULL;
    RETURN turn;
END $$;

-- A visit of a tenant. Its allowance: ``stops``: it is full; ``until``: nothing is allowed before; ``most`` jobs;
-- ``cost``: how many of them it has, as far as known. Then its first jobs, in order, and how many are ``taken``.
-- ``passed_at``: when the first of the jobs on their last chance was due that it passed over. ``cut``: ``most`` is what
-- those before it leave of the room, if each takes its ``cost``.
CREATE TYPE visit AS (
    tid bigint, count bigint, since bigint, tenant text, every bigint, stops boolean, until bigint, most bigint, cost bigint, places tid[], tasks text[],
    bytes bigint, taken integer, rests boolean, passed_at bigint, cut boolean
);

-- Promote a bounded number of due jobs of these tenants, the same share of each lane, in the order of run_at. Returns
-- how many.
CREATE FUNCTION promote_turns(p_now bigint, p_visits visit[], p_closed text[], p_most integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_moved integer;
BEGIN
    WITH ripe AS MATERIALIZED (  -- lanes_tid, ready_asleep
        SELECT l.lane FROM unnest(p_visits) AS n CROSS JOIN LATERAL open_lanes(n.tid, p_closed) AS l
        WHERE n.cost > 0 AND EXISTS (
            SELECT 1 FROM ready AS y WHERE y.lane = l.lane + 1 AND y.lane >= 4611686018427387904 AND y.lane & 1 = 1 AND y.run_at <= p_now
        ) LIMIT p_most
    ), few AS MATERIALIZED (  -- ready_asleep; then by place in the heap
        SELECT x.place FROM ripe AS r CROSS JOIN LATERAL (
            SELECT y.ctid AS place FROM ready AS y
            WHERE y.lane = r.lane + 1 AND y.lane >= 4611686018427387904 AND y.lane & 1 = 1 AND y.run_at <= p_now
            ORDER BY y.lane, y.run_at, y.id LIMIT p_most / (SELECT count(*) FROM ripe) FOR UPDATE SKIP LOCKED
        ) AS x
    )
    UPDATE ready AS y SET lane = y.lane - 1 FROM few AS f WHERE y.ctid = f.place;
    GET DIAGNOSTICS v_moved = ROW_COUNT;
    RETURN v_moved;
END $$;

-- Jobs that are no longer due, because the clock was set back, wait apart again: a bounded number.
CREATE FUNCTION put_back(p_now bigint, p_qid integer) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    WITH early AS MATERIALIZED (  -- ready_turns; another transaction may have read the clock a moment later
        SELECT y.ctid AS place FROM ready AS y
        WHERE y.qid = p_qid AND y.lane >= 4611686018427387904 AND y.lane & 1 = 0 AND y.run_at > p_now + 100000
        ORDER BY y.qid, y.run_at LIMIT 1000 FOR UPDATE SKIP LOCKED
    )
    UPDATE ready AS y SET lane = y.lane + 1 FROM early AS e WHERE y.ctid = e.place;
END $$;

-- The first jobs of a lane by (run_at + priority * ageing, id), locked. Looks at the first 1,000 priorities. ``p_expired``:
-- expired ones too.
CREATE FUNCTION aged_jobs(p_now bigint, p_lane bigint, p_ageing bigint, p_most bigint, p_bound integer, p_expired boolean)
RETURNS TABLE (place tid, id uuid, size integer, level bigint, due bigint) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE level (priority) AS (  -- ready_lane, two probes per priority
        SELECT (SELECT min(y.priority) FROM ready AS y WHERE y.lane = p_lane)
        UNION ALL
        SELECT (SELECT min(y.priority) FROM ready AS y WHERE y.lane = p_lane AND y.priority > l.priority)
        FROM level AS l WHERE l.priority IS NOT NULL
    ), few AS MATERIALIZED (
        SELECT l.priority FROM level AS l WHERE l.priority IS NOT NULL LIMIT 1000
    )
    SELECT x.* FROM few AS f CROSS JOIN LATERAL (
        SELECT y.ctid AS place, y.id, y.size, y.run_at + y.priority * p_ageing AS level, 0::bigint AS due FROM ready AS y
        WHERE y.lane = p_lane AND y.priority = f.priority AND y.run_at <= p_now
            AND (y.dies_at IS NULL OR y.dies_at > p_now OR p_expired) AND y.lost < p_bound
        ORDER BY y.run_at, y.id LIMIT p_most FOR UPDATE SKIP LOCKED
    ) AS x ORDER BY x.level, x.id LIMIT p_most;
END $$;

-- 1. Wake: sleeping tenants whose time has come wake up, up to a number. The caller stores the turns.
CREATE FUNCTION wake(INOUT turn turns, p_now bigint, p_most bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    r record;
BEGIN
    WITH first AS MATERIALIZED (  -- tenants_asleep; tenants_pkey
        SELECT o.tid FROM tenants AS o WHERE o.qid = turn.qid AND o.wake_at >= turn.low_wake AND o.wake_at <= p_now
        ORDER BY o.qid, o.wake_at LIMIT p_most
    ), woken AS (
        UPDATE tenants AS o SET awake = true, since = o.wake_at, wake_at = NULL, count = greatest(o.count, turn.round)
        FROM first AS f WHERE o.tid = ANY (ARRAY[f.tid]) RETURNING o.count, o.since, CASE WHEN o.held_by > 0 THEN o.tid END AS held
    )
    SELECT w.count, w.since, count(*) OVER () AS tenants, max(w.since) OVER () AS last, array_agg(w.held) FILTER (WHERE w.held IS NOT NULL) OVER () AS held
    INTO r FROM woken AS w ORDER BY w.count, w.since LIMIT 1;
    IF r.held IS NOT NULL THEN
        PERFORM copy_turns(r.held);
    END IF;
    IF (r.count, r.since) <= (turn.low_count, turn.low_since) THEN
        turn.low_count := r.count;
        turn.low_since := r.since;
        turn.low_tenant := '';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN  -- an old snapshot may miss some
        RETURN;
    ELSIF r.tenants = p_most THEN
        turn.low_wake := r.last;
    ELSE
        turn.low_wake := coalesce((  -- tenants_asleep
            SELECT o.wake_at FROM tenants AS o WHERE o.qid = turn.qid AND o.wake_at > p_now ORDER BY o.qid, o.wake_at LIMIT 1
        ), 9223372036854775807);
    END IF;
END $$;

-- The tasks of these jobs, in order. Planned each time, as ``contents`` is.
CREATE FUNCTION tasks_of(p_ids uuid[]) RETURNS text[] LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN ARRAY(
        SELECT j.task FROM unnest(p_ids) WITH ORDINALITY AS n (id, ord)
        LEFT JOIN (SELECT j.id, j.task FROM jobs AS j WHERE j.id = ANY (p_ids)) AS j ON j.id = n.id  -- jobs_pkey
        ORDER BY n.ord
    );
END $$;

-- Move the jobs at these places, which are locked, to the lanes of their tasks.
CREATE FUNCTION move_aside(p_qid integer, p_tid bigint, p_tenant text, p_places tid[], p_tasks text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE ready AS y SET lane = n.lane + (y.lane & 1)  -- by place in the heap
    FROM (SELECT m.place, lane_of_task(p_qid, p_tenant, m.task) AS lane FROM unnest(p_places, p_tasks) AS m (place, task) OFFSET 0) AS n
    WHERE y.ctid = n.place;
    INSERT INTO lanes (lane, tid, qid, task)
    SELECT DISTINCT lane_of_task(p_qid, p_tenant, n), p_tid, p_qid, n FROM unnest(p_tasks) AS n ON CONFLICT (lane) DO NOTHING;
END $$;

-- Before a tenant falls asleep: of its delayed jobs, those of closed tasks that come first are put aside, a bounded
-- number.
CREATE FUNCTION put_delayed_aside(gates task_gates, p_qid integer, p_tid bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_tenant CONSTANT text := (SELECT o.tenant FROM tenants AS o WHERE o.tid = p_tid);  -- tenants_pkey
    v_places tid[];
    v_ids uuid[];
    v_tasks text[];
    v_open integer;
BEGIN
    FOR i IN 1..10 LOOP
        SELECT array_agg(x.place), array_agg(x.id) INTO v_places, v_ids FROM (  -- ready_asleep
            SELECT y.ctid AS place, y.id FROM ready AS y
            WHERE y.lane = lane_of(p_tid) + 1 AND y.lane >= 4611686018427387904 AND y.lane & 1 = 1
            ORDER BY y.lane, y.run_at, y.id LIMIT CASE WHEN i = 1 THEN 1 ELSE 100 END FOR UPDATE SKIP LOCKED
        ) AS x;
        EXIT WHEN v_places IS NULL;
        v_tasks := tasks_of(v_ids);
        v_open := coalesce((
            SELECT min(n.ord) FROM unnest(v_tasks) WITH ORDINALITY AS n (task, ord) WHERE (n.task = ANY (gates.closed)) IS NOT TRUE
        ), cardinality(v_tasks) + 1);
        IF v_open > 1 THEN
            PERFORM move_aside(p_qid, p_tid, v_tenant, v_places[1:v_open - 1], v_tasks[1:v_open - 1]);
        END IF;
        EXIT WHEN v_open <= cardinality(v_tasks);
    END LOOP;
END $$;

-- 5. Rest: tenants with no eligible job left fall asleep. Returns when the first of them wakes. Empty lanes are
-- removed, and tenants that would be the same if they came back.
CREATE FUNCTION rest(turn turns, gates task_gates, p_now bigint, p_tids bigint[], p_bound integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_wake bigint;
BEGIN
    IF gates.closed IS NOT NULL THEN
        PERFORM put_delayed_aside(gates, turn.qid, t) FROM unnest(p_tids) AS t;
    END IF;
    WITH resting AS (  -- tenants_pkey; lanes_tid, ready_lane, ready_asleep
        UPDATE tenants AS o SET wake_at = (
            SELECT min(CASE WHEN w.until < 9007199254740991 THEN w.until END) FROM (
                SELECT greatest(h.run_at, gates.until[array_position(gates.closed, l.task)]) AS until
                FROM open_lanes(n.tid, NULL) AS l CROSS JOIN LATERAL (
                    SELECT least((
                        SELECT y.run_at FROM ready AS y WHERE y.lane = l.lane AND y.lost < p_bound
                        ORDER BY y.lane, y.priority, y.run_at, y.id LIMIT 1
                    ), (
                        SELECT y.run_at FROM ready AS y
                        WHERE y.lane = l.lane + 1 AND y.lane >= 4611686018427387904 AND y.lane & 1 = 1
                        ORDER BY y.lane, y.run_at, y.id LIMIT 1
                    )) AS run_at
                ) AS h
                WHERE h.run_at IS NOT NULL
            ) AS w
        )
        FROM unnest(p_tids) AS n (tid) WHERE o.tid = ANY (ARRAY[n.tid]) RETURNING o.wake_at
    )
    SELECT min(o.wake_at) INTO v_wake FROM resting AS o;
    IF gates.aside THEN
        DELETE FROM lanes AS l USING unnest(p_tids) AS n (tid)  -- lanes_tid, ready_lane
        WHERE l.tid = ANY (ARRAY[n.tid]) AND NOT EXISTS (SELECT 1 FROM ready AS y WHERE y.lane = ANY (ARRAY[l.lane, l.lane + 1]));
    END IF;
    DELETE FROM tenants AS o USING unnest(p_tids) AS n (tid)  -- tenants_pkey
    WHERE o.tid = ANY (ARRAY[n.tid]) AND o.jobs <= 0 AND o.running <= 0 AND o.count <= turn.round AND o.full_at <= p_now
        AND NOT has_jobs(o.tid);
    RETURN v_wake;
END $$;

-- What a claim knows of a governed queue: its turns and rules; ``ripe``: jobs are to be promoted; ``ruled``: single
-- tenants have rules.
CREATE TYPE turn_scope AS (turn turns, rule policies, gates task_gates, ripe boolean, ruled boolean);

-- Lock the turns of a governed queue, and look around, for a claim of ``p_most`` jobs. ``p_stopped`` as in ``claim_v1``.
CREATE FUNCTION look_at_turns(p_now bigint, p_qid integer, p_name text, p_most bigint, p_stopped bigint[]) RETURNS turn_scope
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_some integer := cardinality(p_stopped);
    turn turns;
    rule policies;
    gates task_gates;
    r record;
BEGIN
    SELECT t.* INTO turn FROM turns AS t WHERE t.qid = p_qid FOR NO KEY UPDATE;  -- turns_pkey
    -- policies_pkey; news_qid, ready_line, ready_later, ready_turns, ready_asleep_qid, task_rules_pkey, lanes_qid, tenant_rules_name: one probe each
    SELECT
        x AS rule, EXISTS (SELECT 1 FROM news AS n WHERE n.qid = p_qid) OR EXISTS (SELECT 1 FROM ready AS y WHERE y.qid = p_qid AND y.lane IS NULL)
            OR EXISTS (SELECT 1 FROM ready AS y WHERE y.qid = p_qid AND y.lane = 0) AS unheard,
        EXISTS (
            SELECT 1 FROM ready AS y
            WHERE y.qid = p_qid AND y.lane >= 4611686018427387904 AND y.lane & 1 = 0 AND y.run_at > p_now + 100000
        ) AS early,
        EXISTS (
            SELECT 1 FROM ready AS y WHERE y.qid = p_qid AND y.lane >= 4611686018427387904 AND y.lane & 1 = 1 AND y.run_at <= p_now
        ) AS ripe,
        EXISTS (SELECT 1 FROM task_rules AS k WHERE k.qid = p_qid) AS tasks, EXISTS (SELECT 1 FROM lanes AS l WHERE l.qid = p_qid) AS aside,
        EXISTS (SELECT 1 FROM tenant_rules AS u WHERE u.qid = p_qid) AS ruled
    INTO r FROM policies AS x WHERE x.queue = p_name;
    rule := r.rule;
    rule.tenant_batch := coalesce(rule.tenant_batch, 10);
    IF r.unheard OR turn.stir_from IS NOT NULL THEN
        turn := hear_turns(p_now, p_qid, true);
    END IF;
    IF v_some > 0 THEN
        turn.running := turn.running - v_some;
        turn.low_wake := least(turn.low_wake, count_stopped(
            p_now, turn.round, p_stopped, array_fill(1::bigint, ARRAY[v_some]), array_fill(p_now, ARRAY[v_some])
        ));
    END IF;
    IF turn.low_wake <= p_now THEN
        turn := wake(turn, p_now, least(250, greatest(50, p_most)));
    END IF;
    IF r.early THEN
        PERFORM put_back(p_now, p_qid);
    END IF;
    IF r.tasks THEN
        gates := closed_tasks(p_now, p_qid);
    ELSE
        gates.aside := r.aside;
    END IF;
    RETURN (turn, rule, gates, r.ripe, r.ruled)::turn_scope;
END $$;

-- Under the rule ``tenant_workers``: the first awake tenants that this holder may visit, in order; ``hold_taken`` comes
-- before.
CREATE FUNCTION first_tenants(turn turns, p_holder text, p_most bigint) RETURNS SETOF tenants LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY
    SELECT x.* FROM (
        (  -- tenants_awake
            SELECT o.* FROM tenants AS o WHERE o.qid = turn.qid AND o.awake AND o.held_by = 0
            ORDER BY o.qid, o.count, o.since, o.tenant LIMIT p_most
        )
        UNION ALL
        (  -- holdings_awake, tenants_pkey
            SELECT o.* FROM (
                SELECT h.tid FROM holdings AS h WHERE h.holder = p_holder AND h.qid = turn.qid AND h.awake
                ORDER BY h.holder, h.qid, h.count, h.since, h.tenant LIMIT p_most
            ) AS h JOIN tenants AS o ON o.tid = ANY (ARRAY[h.tid])
        )
    ) AS x ORDER BY x.count, x.since, x.tenant LIMIT p_most;
END $$;

-- Under the rule ``tenant_workers``: hold those of the first tenants that this holder may not visit, until it may visit
-- the first ``p_most``. Returns false if they were very many, and the rest is left to the claims that follow.
CREATE FUNCTION hold_taken(turn turns, p_holder text, p_most bigint, p_workers bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    c_many CONSTANT bigint := 250;
    v_held bigint := 0;
    v_some bigint;
BEGIN
    LOOP
        v_some := hold(turn.qid, ARRAY(
            SELECT o.tid FROM first_tenants(turn, p_holder, least(p_most + v_held, c_many)) AS o
            WHERE o.held_by = 0 AND o.running >= p_workers
        ), p_holder, p_workers);
        v_held := v_held + v_some;
        IF v_some = 0 OR v_held >= c_many THEN
            RETURN v_some = 0;
        END IF;
    END LOOP;
END $$;

-- 2. Next tenant, 3. Allowance: the tenants to visit, in order, if each takes its ``cost``; the caller sees whether it
-- does. ``p_alone`` may have ``p_alone_most``, if that says a number. NULL: there was too much to do before.
CREATE FUNCTION next_tenants(
    turn turns, rule policies, p_now bigint, p_holder text, p_ruled boolean, p_width bigint, p_room bigint, p_alone bigint, p_alone_most bigint
) RETURNS visit[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_visits visit[] := '{}';
    v_upto bigint := 0;
    v_below bigint;
    v_cost bigint;
    v_cut boolean;
    r record;
BEGIN
    IF rule.tenant_workers IS NOT NULL AND NOT hold_taken(turn, p_holder, p_width, rule.tenant_workers) THEN
        RETURN NULL;
    END IF;
    FOR r IN  -- tenants_awake; tenant_rules_pkey
        SELECT
            a.*, coalesce(a.running >= a.cap, false) AS stops,
            greatest(a.paused_until, CASE WHEN a.free = 0 THEN a.full_at - (a.burst - 1) * a.every ELSE 0 END) AS until,
            least(coalesce(CASE WHEN a.tid = p_alone THEN p_alone_most END, rule.tenant_batch), a.cap - a.running, a.free) AS most
        FROM (
            SELECT b.*, allowed(b.every, b.burst, b.full_at, p_now) AS free FROM (
                SELECT
                    t.tid, t.count, t.since, t.tenant, t.jobs, t.running, t.full_at, coalesce(u.running, rule.tenant_running) AS cap,
                    CASE WHEN u.every IS NOT NULL THEN u.every ELSE rule.tenant_every END AS every,
                    CASE WHEN u.every IS NOT NULL THEN u.burst ELSE rule.tenant_burst END AS burst,
                    coalesce(u.paused_until, 0) AS paused_until
                FROM (
                    (
                        SELECT o.* FROM tenants AS o
                        WHERE rule.tenant_workers IS NULL AND o.qid = turn.qid AND o.awake AND o.held_by = 0
                            AND (o.count, o.since, o.tenant) >= (turn.low_count, turn.low_since, turn.low_tenant)
                        ORDER BY o.qid, o.count, o.since, o.tenant LIMIT p_width
                    )
                    UNION ALL SELECT o.* FROM first_tenants(turn, p_holder, p_width) AS o WHERE rule.tenant_workers IS NOT NULL
                ) AS t LEFT JOIN tenant_rules AS u ON p_ruled AND u.tid = ANY (ARRAY[t.tid])
            ) AS b
        ) AS a
    LOOP
        v_cost := CASE WHEN r.stops OR r.until > p_now THEN 0 ELSE least(r.most, greatest(r.jobs, 1)) END;
        EXIT WHEN r.count >= v_below;  -- one that is visited before may come first again
        v_cut := v_upto > 0 AND v_upto + v_cost > p_room;
        v_visits := v_visits || CASE
            WHEN v_cut THEN (
                r.tid, r.count, r.since, r.tenant, r.every, r.stops, r.until, p_room - v_upto, p_room - v_upto, NULL, NULL, 0, 0, false, NULL, true
            )::visit
            ELSE (r.tid, r.count, r.since, r.tenant, r.every, r.stops, r.until, r.most, v_cost, NULL, NULL, 0, 0, false, NULL, false)::visit
        END;
        v_upto := v_upto + v_cost;
        EXIT WHEN v_upto >= p_room OR cardinality(v_visits) >= p_width;
        v_below := least(v_below, CASE WHEN v_cost = r.most THEN r.count + v_cost END);
    END LOOP;
    RETURN v_visits;
END $$;

-- 4. Take, before: jobs of tasks with rules are put aside, as far as a visit may come in the lane of its tenant. Sets
-- ``places`` of each visit to the jobs without rules that it may take, locked, in claim order. ``budget``: how many jobs
-- may be looked at, and how many more after this.
CREATE FUNCTION put_aside(
    rule policies, gates task_gates, p_now bigint, p_qid integer, p_bound integer, INOUT visits visit[], INOUT budget integer
) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c_most CONSTANT integer := 1000;
    v_ruled CONSTANT text[] := coalesce(gates.closed, '{}') || coalesce(gates.rated, '{}');
    v_window integer;
    v_places tid[];
    v_free boolean[];
    v_ids uuid[];
    v_tasks text[];
    v_which boolean[];
    v visit;
BEGIN
    FOR i IN 1..cardinality(visits) LOOP
        v := visits[i];
        v_window := v.cost;
        WHILE v.cost > 0 AND budget > 0 LOOP
            SELECT array_agg(x.place), array_agg(x.id), array_agg(x.free) INTO v_places, v_ids, v_free FROM (
                SELECT y.ctid AS place, y.id, (y.dies_at IS NULL OR y.dies_at > p_now) AND y.lost < p_bound AS free FROM ready AS y  -- ready_lane
                WHERE rule.ageing IS NULL AND y.lane = lane_of(v.tid) AND y.run_at + 0 <= p_now
                ORDER BY y.lane, y.priority, y.run_at, y.id LIMIT v_window FOR UPDATE SKIP LOCKED
            ) AS x;
            IF rule.ageing IS NOT NULL THEN
                SELECT array_agg(x.place), array_agg(x.id), array_agg((y.dies_at IS NULL OR y.dies_at > p_now) AND y.lost < p_bound)
                INTO v_places, v_ids, v_free
                FROM aged_jobs(p_now, lane_of(v.tid), rule.ageing, v_window, 2147483647, true) AS x JOIN ready AS y ON y.ctid = x.place;
            END IF;
            EXIT WHEN v_places IS NULL;
            v_tasks := tasks_of(v_ids);
            v_which := ARRAY(SELECT n = ANY (v_ruled) FROM unnest(v_tasks) AS n);
            IF true = ANY (v_which) THEN
                PERFORM move_aside(
                    p_qid, v.tid, v.tenant, array_agg(n.place), array_agg(n.task)
                ) FROM unnest(v_places, v_tasks, v_which) AS n (place, task, ruled) WHERE n.ruled;
            END IF;
            v.places := ARRAY(
                SELECT n.place FROM unnest(v_places, v_free, v_which) WITH ORDINALITY AS n (place, free, ruled, ord)
                WHERE n.free AND n.ruled IS NOT TRUE ORDER BY n.ord LIMIT v.cost
            );
            budget := budget - cardinality(v_places);
            EXIT WHEN cardinality(v_places) < v_window OR cardinality(v.places) >= v.cost;
            v_window := least(4 * v_window, c_most);
        END LOOP;
        visits[i] := v;
    END LOOP;
END $$;

-- 4. Take, first half: the first jobs of these tenants, locked, in claim order. ``places``: see ``put_aside``.
CREATE FUNCTION first_jobs(rule policies, gates task_gates, p_now bigint, p_visits visit[], p_room bigint, p_bound integer)
RETURNS visit[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF rule.ageing IS NULL AND gates.aside IS NOT TRUE THEN  -- as below, but cheaper to start for each claim
        RETURN ARRAY(  -- ready_lane, in claim order
            SELECT (
                n.tid, n.count, n.since, n.tenant, n.every, n.stops, n.until, n.most, n.cost, x.places, NULL, coalesce(x.bytes, 0), coalesce(x.jobs, 0),
                false, NULL, n.cut
            )::visit
            FROM unnest(p_visits) WITH ORDINALITY AS n (
                tid, count, since, tenant, every, stops, until, most, cost, places, tasks, bytes, taken, rests, passed_at, cut, ord
            ) LEFT JOIN LATERAL (
                SELECT array_agg(h.place ORDER BY h.priority, h.run_at, h.id) AS places, count(*) AS jobs, sum(h.size) AS bytes FROM (
                    SELECT y.ctid AS place, y.id, y.size, y.priority, y.run_at FROM ready AS y
                    WHERE y.lane = lane_of(n.tid) AND y.run_at + 0 <= p_now AND (y.dies_at IS NULL OR y.dies_at > p_now) AND y.lost < p_bound
                    ORDER BY y.lane, y.priority, y.run_at, y.id LIMIT least(n.cost, p_room) FOR UPDATE SKIP LOCKED
                ) AS h
            ) AS x ON n.cost > 0 ORDER BY n.ord
        );
    END IF;
    RETURN ARRAY(  -- lanes_tid; ready_lane, in claim order
        SELECT (
            n.tid, n.count, n.since, n.tenant, n.every, n.stops, n.until, n.most, n.cost, x.places, x.tasks, coalesce(x.bytes, 0),
            coalesce(x.jobs, 0), false, NULL, n.cut
        )::visit
        FROM unnest(p_visits) WITH ORDINALITY AS n (
            tid, count, since, tenant, every, stops, until, most, cost, places, tasks, bytes, taken, rests, passed_at, cut, ord
        ) LEFT JOIN LATERAL (
            SELECT
                array_agg(h.place ORDER BY h.level, h.due, h.id) AS places,
                array_agg(h.task ORDER BY h.level, h.due, h.id) FILTER (WHERE gates.rated IS NOT NULL) AS tasks, count(*) AS jobs,
                sum(h.size) AS bytes
            FROM (
                SELECT z.* FROM (
                    SELECT
                        y.*, l.task, CASE WHEN gates.rated IS NOT NULL
                            THEN row_number() OVER (PARTITION BY l.task ORDER BY y.level, y.due, y.id)
                                <= coalesce(gates.free[array_position(gates.rated, l.task)], n.cost)
                            ELSE true
                        END AS fits
                    FROM open_lanes(n.tid, gates.closed) AS l CROSS JOIN LATERAL (
                        SELECT y.* FROM (
                            SELECT y.ctid AS place, y.id, y.size, y.priority::bigint AS level, y.run_at AS due FROM ready AS y
                            WHERE rule.ageing IS NULL AND (l.task IS NOT NULL OR gates.ruled IS NOT TRUE) AND y.lane = l.lane
                                AND y.run_at + 0 <= p_now AND (y.dies_at IS NULL OR y.dies_at > p_now) AND y.lost < p_bound
                            ORDER BY y.lane, y.priority, y.run_at, y.id LIMIT least(n.cost, p_room)
                            FOR UPDATE SKIP LOCKED
                        ) AS y
                        UNION ALL
                        SELECT y.* FROM aged_jobs(p_now, l.lane, rule.ageing, least(n.cost, p_room), p_bound, false) AS y
                        WHERE rule.ageing IS NOT NULL AND (l.task IS NOT NULL OR gates.ruled IS NOT TRUE)
                        UNION ALL
                        SELECT y.ctid, y.id, y.size, CASE WHEN rule.ageing IS NULL THEN y.priority ELSE y.run_at + y.priority * rule.ageing END,
                            CASE WHEN rule.ageing IS NULL THEN y.run_at ELSE 0 END
                        FROM ready AS y WHERE l.task IS NULL AND gates.ruled AND y.ctid = ANY (n.places)
                    ) AS y
                ) AS z WHERE z.fits ORDER BY z.level, z.due, z.id LIMIT least(n.cost, p_room)
            ) AS h
        ) AS x ON n.cost > 0
        ORDER BY n.ord
    );
END $$;

-- 4. Take, second half: ``take``, next to ``claim_v1``.

-- Cut a visit short once what is wanted of its jobs weighs enough.
CREATE FUNCTION fitting(INOUT v visit, p_bytes bigint, p_want smallint) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    SELECT count(*), coalesce(sum(w.bytes), 0) INTO v.taken, v.bytes FROM (
        SELECT n.bytes, sum(n.bytes) OVER (ORDER BY n.ord) - n.bytes AS before FROM weighed(v.places, p_want) AS n
    ) AS w WHERE w.before < p_bytes;
END $$;

-- Up to where a visit has looked in claim order, among the jobs of a task: the last job that it takes (of this task, if
-- its rate allowed no more), or the end if it has seen all.
CREATE FUNCTION looked_at(rule policies, gates task_gates, v visit, p_task text, OUT level bigint, OUT due bigint, OUT id uuid)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_some integer[] := array_positions(v.tasks[1:v.taken], p_task);
    v_shut boolean := coalesce(cardinality(v_some) >= gates.free[array_position(gates.rated, p_task)], false);
BEGIN
    IF v.rests AND NOT v_shut THEN
        level := 9223372036854775807;
        RETURN;
    END IF;
    SELECT CASE WHEN rule.ageing IS NULL THEN y.priority ELSE y.run_at + y.priority * rule.ageing END,
        CASE WHEN rule.ageing IS NULL THEN y.run_at ELSE 0 END, y.id
    INTO level, due, id FROM ready AS y
    WHERE y.ctid = v.places[CASE WHEN v_shut THEN v_some[cardinality(v_some)] ELSE v.taken END];
END $$;

-- When the first of the jobs on their last chance was due that a visit has passed over.
CREATE FUNCTION passed_over(rule policies, gates task_gates, p_now bigint, v visit, p_bound integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (
        SELECT min(y.run_at)  -- lanes_tid, ready_lost
        FROM open_lanes(v.tid, gates.closed) AS l CROSS JOIN LATERAL looked_at(rule, gates, v, l.task) AS u
        JOIN ready AS y ON coalesce(y.lane, y.qid) = ANY (ARRAY[l.lane])
        WHERE y.lost > 0 AND y.lost + 0 >= p_bound
            AND y.run_at <= p_now AND (y.dies_at IS NULL OR y.dies_at > p_now) AND (
                CASE WHEN rule.ageing IS NULL THEN y.priority ELSE y.run_at + y.priority * rule.ageing END,
                CASE WHEN rule.ageing IS NULL THEN y.run_at ELSE 0 END, y.id
            ) <= (u.level, u.due, u.id)
    );
END $$;

-- The places of expired jobs that a visit has passed over, at most so many.
CREATE FUNCTION doomed(rule policies, gates task_gates, p_now bigint, v visit, p_most integer) RETURNS tid[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN ARRAY(  -- lanes_tid, ready_doomed
        SELECT y.place FROM open_lanes(v.tid, gates.closed) AS l CROSS JOIN LATERAL looked_at(rule, gates, v, l.task) AS u CROSS JOIN LATERAL (
            SELECT y.ctid AS place, y.run_at, y.priority, y.id FROM ready AS y
            WHERE coalesce(y.lane, y.qid) = l.lane AND y.dies_at IS NOT NULL AND y.dies_at + 0 <= p_now
            ORDER BY y.dies_at + 0 LIMIT p_most
        ) AS y
        WHERE (
            CASE WHEN rule.ageing IS NULL THEN y.priority ELSE y.run_at + y.priority * rule.ageing END,
            CASE WHEN rule.ageing IS NULL THEN y.run_at ELSE 0 END, y.id
        ) <= (u.level, u.due, u.id)
        LIMIT p_most
    );
END $$;

-- Cancel expired jobs that visits have passed over, at most so many, all together.
CREATE FUNCTION expire_passed(
    scope claim_scope, rule policies, gates task_gates, p_now bigint, p_visits visit[], p_most integer
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_places tid[] := '{}';
    v visit;
BEGIN
    IF NOT scope.dying THEN
        RETURN;
    END IF;
    FOREACH v IN ARRAY p_visits LOOP
        EXIT WHEN cardinality(v_places) >= p_most;
        v_places := v_places || CASE WHEN v.cost > 0 THEN doomed(rule, gates, p_now, v, p_most - cardinality(v_places)) END;
    END LOOP;
    RETURN QUERY SELECT * FROM expire(p_now, v_places);
END $$;

-- A tenant that alone has the lowest count is visited until another comes first. Returns how many jobs that is, so that
-- it can have them at once. NULL: it is not alone.
CREATE FUNCTION alone_for(turn turns, rule policies, p_holder text, p_tid bigint, p_left bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (
        SELECT coalesce(
            (x.counts[2] - x.counts[1] + rule.tenant_batch - 1) / rule.tenant_batch * rule.tenant_batch,
            p_left / rule.tenant_batch * rule.tenant_batch + rule.tenant_batch
        )
        FROM (
            SELECT array_agg(o.count) AS counts, array_agg(o.tid) AS tids FROM (
                (  -- tenants_awake
                    SELECT o.count, o.tid FROM tenants AS o
                    WHERE rule.tenant_workers IS NULL AND o.qid = turn.qid AND o.awake AND o.held_by = 0
                        AND (o.count, o.since, o.tenant) >= (turn.low_count, turn.low_since, turn.low_tenant)
                    ORDER BY o.qid, o.count, o.since, o.tenant LIMIT 2
                )
                UNION ALL SELECT o.count, o.tid FROM first_tenants(turn, p_holder, 2) AS o WHERE rule.tenant_workers IS NOT NULL
            ) AS o
        ) AS x WHERE x.tids[1] = p_tid AND (x.counts[2] IS NULL OR x.counts[2] > x.counts[1])
    );
END $$;

-- Store what visits took. Returns when the first of these tenants wakes.
CREATE FUNCTION end_visits(turn turns, gates task_gates, p_now bigint, p_visits visit[], p_bound integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_wake bigint;
    v_resting bigint[];
    v_held bigint[];
BEGIN
    WITH visited AS (  -- tenants_pkey
        UPDATE tenants AS o SET
            count = o.count + n.taken, jobs = o.jobs - n.taken, running = o.running + n.taken,
            awake = NOT (n.stops OR n.until > p_now OR n.rests), at_limit = n.stops,
            full_at = CASE WHEN n.taken * n.every > 0 THEN greatest(o.full_at, p_now) + n.taken * n.every ELSE o.full_at END,
            wake_at = CASE WHEN NOT n.stops AND n.until > p_now AND n.until < 9007199254740991 THEN n.until END
        FROM unnest(p_visits) AS n WHERE o.tid = ANY (ARRAY[n.tid]) RETURNING o.wake_at, o.tid, n.rests, o.held_by
    )
    SELECT min(o.wake_at), array_agg(o.tid) FILTER (WHERE o.rests), array_agg(o.tid) FILTER (WHERE o.held_by > 0)
    INTO v_wake, v_resting, v_held FROM visited AS o;
    IF v_held IS NOT NULL THEN
        PERFORM copy_turns(v_held);
    END IF;
    IF v_resting IS NOT NULL THEN
        v_wake := least(v_wake, rest(turn, gates, p_now, v_resting, p_bound));
    END IF;
    RETURN v_wake;
END $$;

-- Jobs of these tasks were taken. Returns what their rates allow now.
CREATE FUNCTION spend_rates(p_now bigint, p_qid integer, p_tasks text[]) RETURNS task_gates
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE task_rules AS k SET full_at = greatest(k.full_at, p_now) + n.jobs * k.every  -- task_rules_pkey
    FROM (SELECT m.task, count(*) AS jobs FROM unnest(p_tasks) AS m (task) GROUP BY m.task) AS n
    WHERE k.qid = p_qid AND k.task = ANY (ARRAY[n.task]) AND k.every IS NOT NULL;
    RETURN closed_tasks(p_now, p_qid);
END $$;

-- Another claim may have what was passed over, so these tenants wake for it. Returns when the first does.
CREATE FUNCTION wake_passed(p_visits visit[]) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE tenants AS o SET wake_at = least(o.wake_at, n.passed_at)  -- tenants_pkey
    FROM (SELECT m.tid, min(m.passed_at) AS passed_at FROM unnest(p_visits) AS m GROUP BY m.tid) AS n
    WHERE o.tid = ANY (ARRAY[n.tid]) AND NOT o.awake AND NOT o.at_limit;
    RETURN (SELECT min(n.passed_at) FROM unnest(p_visits) AS n);
END $$;

-- Claim from one governed queue, the first of the scope: up to ``p_most`` jobs, visit by visit. Those that are sure to
-- follow each other are made in one statement, unless they share the rate of a task. ``p_stopped`` as in ``claim_v1``.
-- Answers as ``claim_v1`` does; the last row also has the bytes that were taken. Visits a bounded number of tenants.
-- Relies on the settings of ``claim_v1``, and so do the steps that it takes.
CREATE FUNCTION claim_turns(
    p_now bigint, scope claim_scope, p_holder text, p_most bigint, p_lease_for bigint, p_want smallint, p_lost_below integer,
    p_max_bytes bigint, p_ord integer, p_stopped bigint[]
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    c_visits CONSTANT integer := 250;
    v_qid CONSTANT integer := scope.qids[1];
    v_name CONSTANT text := scope.names[1];
    v_bound integer := coalesce(p_lost_below, 2147483647);
    v_left bigint := p_most;
    v_room bigint;
    v_bytes bigint := p_max_bytes;
    v_places tid[];
    v_owners bigint[];
    v_visits visit[];
    v_done visit[];
    v_below bigint;
    v_some integer;
    v_alone_most bigint;
    v_budget integer := 1000;
    v_aside integer := 300;
    v_looked integer := 0;
    v_visited integer := 0;
    v_moved integer;
    v_passed visit[] := '{}';
    v_next bigint;
    s turn_scope := look_at_turns(p_now, v_qid, v_name, p_most, p_stopped);
    turn turns := s.turn;
    rule policies := s.rule;
    gates task_gates := s.gates;
    v_width bigint := p_most / rule.tenant_batch + 4;
    v_commit text := set_config('synchronous_commit', 'off', true);  -- no wait for the disk with the turns locked: the caller waits, by ``seal_v1``
    v visit;
BEGIN
    IF p_stopped IS NOT NULL AND (s.ruled OR coalesce(rule.running, rule.tenant_workers, rule.tenant_running) IS NOT NULL) THEN
        RETURN QUERY SELECT w.* FROM waited_for(ARRAY[v_qid], p_stopped) AS q CROSS JOIN LATERAL woken(q) AS w;
    END IF;
    LOOP
        v_room := least(v_left, rule.running - turn.running, allowed(rule.every, rule.burst, turn.full_at, p_now));
        EXIT WHEN v_room <= 0 OR v_bytes <= 0;
        v_visits := next_tenants(
            turn, rule, p_now, p_holder, s.ruled,
            CASE WHEN gates.rated IS NULL THEN least(v_width, v_room, c_visits - v_visited) ELSE 1 END, v_room,
            (v_done[1]).tid, v_alone_most
        );
        IF rule.tenant_workers IS NULL THEN
            turn.low_count := coalesce((v_visits[1]).count, 9223372036854775807);
            turn.low_since := coalesce((v_visits[1]).since, turn.low_since);
            turn.low_tenant := coalesce((v_visits[1]).tenant, '');
        END IF;
        turn.behind := turn.behind OR v_visits IS NULL;
        EXIT WHEN v_visits IS NULL OR v_visits = '{}';
        IF s.ripe AND v_budget > 0 THEN  -- then look again
            v_moved := promote_turns(p_now, v_visits, gates.closed, v_budget);
            v_budget := v_budget - v_moved;
            CONTINUE WHEN v_moved > 0;
        END IF;
        IF gates.ruled THEN
            SELECT p.visits, p.budget INTO v_visits, v_aside FROM put_aside(rule, gates, p_now, v_qid, v_bound, v_visits, v_aside) AS p;
        END IF;
        v_places := '{}';
        v_owners := '{}';
        v_done := '{}';
        v_below := NULL;
        FOREACH v IN ARRAY first_jobs(rule, gates, p_now, v_visits, v_room, v_bound) LOOP
            EXIT WHEN v_room <= 0 OR v_bytes <= 0 OR v.count >= v_below OR v.cut AND v_room > v.most;  -- then look again
            IF v.bytes > v_bytes OR p_want <> 15 THEN
                v := fitting(v, v_bytes, p_want);
            END IF;
            v_bytes := v_bytes - v.bytes;
            v.rests := v.cost > 0 AND v.taken < least(v.most, v_room) AND v_bytes > 0;
            turn.round := greatest(turn.round, v.count + greatest((v.taken - (NOT v.rests)::integer) / rule.tenant_batch, 0) * rule.tenant_batch);
            v_places := v_places || v.places[1:v.taken];
            v_owners := v_owners || array_fill(v.tid, ARRAY[v.taken]);
            v_room := v_room - v.taken;
            v_left := v_left - v.taken;
            IF scope.suspects AND v.cost > 0 THEN
                v.passed_at := passed_over(rule, gates, p_now, v, v_bound);
                v_passed := v_passed || CASE WHEN v.passed_at IS NOT NULL THEN ARRAY[v] END;
            END IF;
            v_below := least(v_below, CASE WHEN v.cost > 0 AND NOT v.rests THEN v.count + v.taken END);
            v_done := v_done || v;
        END LOOP;
        RETURN QUERY SELECT * FROM expire_passed(scope, rule, gates, p_now, v_done, v_budget);
        GET DIAGNOSTICS v_some = ROW_COUNT;
        v_budget := v_budget - v_some;
        v_some := cardinality(v_places);
        IF v_some > 0 THEN
            RETURN QUERY SELECT * FROM take(p_now, v_qid, v_name, p_holder, p_lease_for, p_want, v_places, v_owners, p_ord);
            p_ord := p_ord + v_some;
            turn.running := turn.running + v_some;
            turn.full_at := greatest(turn.full_at, p_now) + v_some * rule.every;
            IF gates.rated IS NOT NULL THEN
                gates := spend_rates(p_now, v_qid, (v_done[1]).tasks[1:v_some]);
            END IF;
        END IF;
        turn.low_wake := least(turn.low_wake, end_visits(turn, gates, p_now, v_done, v_bound));
        v_looked := v_looked + coalesce(cardinality(gates.closed), 0) + coalesce(cardinality(gates.rated), 0);  -- each visit looks at all rules
        v_visited := v_visited + cardinality(v_done);
        IF v_looked >= 1000 OR v_visited >= c_visits THEN  -- leave the rest to the claims that follow
            turn.behind := true;
            EXIT;
        END IF;
        v_width := p_most;
        v := v_done[1];
        v_alone_most := CASE
            WHEN v_left > 0 AND cardinality(v_done) = 1 AND gates.rated IS NULL AND v.cost > 0 AND NOT v.rests
            THEN alone_for(turn, rule, p_holder, v.tid, v_left)
        END;
    END LOOP;
    v_next := CASE WHEN v_left > 0 THEN CASE WHEN v_bytes <= 0 THEN p_now ELSE least(scope.pause, next_turn(p_now, rule, turn)) END END;
    turn.low_wake := least(turn.low_wake, CASE WHEN v_passed <> '{}' THEN wake_passed(v_passed) END);
    UPDATE turns AS x SET round = turn.round, running = turn.running, full_at = coalesce(turn.full_at, 0),
        low_count = turn.low_count, low_since = turn.low_since, low_wake = turn.low_wake, low_tenant = turn.low_tenant
    WHERE x.qid = v_qid;
    RETURN NEXT last_row(
        0, CASE WHEN v_passed <> '{}' THEN choose(p_now, v_qid, p_holder, p_lease_for) ELSE 0 END,
        v_next - p_now, NULL, p_max_bytes - v_bytes, true
    );
END $$;

-- When the first sleeping tenant wakes or the queue's rate opens; not before now.
CREATE FUNCTION next_turn(p_now bigint, rule policies, turn turns) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    IF turn.behind THEN
        RETURN p_now;
    ELSIF allowed(rule.every, rule.burst, turn.full_at, p_now) = 0 THEN
        RETURN turn.full_at - (rule.burst - 1) * rule.every;
    ELSIF turn.running >= rule.running THEN
        RETURN NULL;
    END IF;
    RETURN (  -- tenants_asleep
        SELECT greatest(o.wake_at, p_now) FROM tenants AS o WHERE o.qid = turn.qid AND o.wake_at >= turn.low_wake
        ORDER BY o.qid, o.wake_at LIMIT 1
    );
END $$;

-- Of these governed queues (0: of others), those that a claim passes over: ``idle``, in order. They have nothing now, or come after
-- many that do: then ``more``. ``next``: when the first of those that have nothing may have something.
CREATE FUNCTION idle_turns(p_now bigint, p_qids integer[], p_holder text, OUT idle boolean[], OUT next bigint, OUT more boolean)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c_most CONSTANT integer := 16;
BEGIN
    SELECT
        array_agg(z.qid > 0 AND (NOT z.busy OR z.place > c_most) ORDER BY z.ord),
        min(CASE WHEN z.opens_at > p_now THEN z.opens_at WHEN NOT z.is_full THEN z.wake_at END) FILTER (WHERE z.qid > 0 AND NOT z.busy),
        coalesce(bool_or(z.busy AND z.place > c_most), false)
    INTO idle, next, more FROM (
        SELECT y.*, count(*) FILTER (WHERE y.busy) OVER (ORDER BY y.ord) AS place FROM (
            SELECT n.qid, n.ord, w.wake_at, t.opens_at, t.is_full, n.qid > 0 AND (
                    t.stirs OR NOT t.is_full AND t.opens_at <= p_now AND (w.wake_at <= p_now OR EXISTS (
                        SELECT 1 FROM tenants AS o WHERE o.qid = n.qid AND o.awake AND o.held_by = 0  -- tenants_awake
                    ) OR EXISTS (
                        SELECT 1 FROM holdings AS h WHERE h.holder = p_holder AND h.qid = n.qid AND h.awake  -- holdings_awake
                    ))
                    OR EXISTS (SELECT 1 FROM news AS e WHERE e.qid = n.qid)  -- news_qid
                    OR EXISTS (SELECT 1 FROM ready AS r WHERE r.qid = n.qid AND r.lane IS NULL)  -- ready_line
                    OR EXISTS (SELECT 1 FROM ready AS r WHERE r.qid = n.qid AND r.lane = 0)  -- ready_later
                ) AS busy
            FROM unnest(p_qids) WITH ORDINALITY AS n (qid, ord)
            LEFT JOIN LATERAL (  -- turns_pkey, queues_pkey, policies_pkey
                SELECT t.stir_from IS NOT NULL AS stirs, coalesce(t.running >= x.running, false) AS is_full,
                    CASE WHEN allowed(x.every, x.burst, t.full_at, p_now) = 0 THEN t.full_at - (x.burst - 1) * x.every ELSE 0 END AS opens_at
                FROM turns AS t JOIN queues AS q ON q.qid = t.qid JOIN policies AS x ON x.queue = q.name WHERE t.qid = n.qid
            ) AS t ON true
            LEFT JOIN LATERAL (  -- tenants_asleep
                SELECT o.wake_at FROM tenants AS o WHERE o.qid = n.qid AND o.wake_at IS NOT NULL ORDER BY o.qid, o.wake_at LIMIT 1
            ) AS w ON true
        ) AS y
    ) AS z;
END $$;

-- ``claim_v1`` if at least one of the queues is governed: several queues, as ``Backend.claim`` says. Each governed
-- queue, and all others together, are one part. Looks at a bounded number of governed queues.
CREATE FUNCTION claim_parts(
    p_now bigint, scope claim_scope, p_queues text[], p_holder text, p_limit integer, p_lease_for bigint, p_want smallint, p_lost_below integer,
    p_max_bytes bigint
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_qids integer[];
    v_names text[];
    v_plain text[];
    v_left bigint := p_limit;
    v_bytes bigint := p_max_bytes;
    v_next bigint := scope.pause;
    v_passed integer := 0;
    v_plenty integer[] := '{}';
    v_ord integer := 0;
    v_share bigint;
    v_got integer;
    v_ids uuid[];
    v_idle boolean[];
    v_more boolean;
    v_behind boolean;
    a answer;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);  -- as in ``claim_turns``
    -- The number of a part is that of its queue; 0 for all that are not governed.
    SELECT array_agg(x.qid ORDER BY x.ord), array_agg(x.name ORDER BY x.ord) INTO v_qids, v_names FROM (
        SELECT CASE WHEN q.governed THEN q.qid ELSE 0 END AS qid, min(n.ord) AS ord, min(q.name) AS name
        FROM unnest(p_queues) WITH ORDINALITY AS n (name, ord) LEFT JOIN queues AS q ON q.name = n.name
        WHERE coalesce(q.paused_until, 0) <= p_now GROUP BY 1
    ) AS x;
    v_plain := ARRAY(
        SELECT q.name FROM queues AS q WHERE q.name = ANY (p_queues) AND q.paused_until <= p_now AND NOT q.governed
    );
    SELECT i.idle, least(v_next, i.next), i.more INTO v_idle, v_next, v_more FROM idle_turns(p_now, v_qids, p_holder) AS i;
    SELECT bool_or((hear_turns(p_now, q.qid)).behind) INTO v_behind
    FROM (SELECT n.qid FROM unnest(v_qids, v_idle) AS n (qid, idle) WHERE n.qid > 0 AND NOT n.idle ORDER BY n.qid) AS q;
    FOR i IN 1..2 * coalesce(cardinality(v_qids), 0) LOOP
        EXIT WHEN v_left <= 0 OR v_bytes <= 0;
        IF i <= cardinality(v_qids) THEN
            v_share := ceil(v_left::numeric / (cardinality(v_qids) - i + 1));
        ELSE
            CONTINUE WHEN i - cardinality(v_qids) <> ALL (v_plenty);
            v_share := v_left;
        END IF;
        CONTINUE WHEN v_idle[(i - 1) % cardinality(v_qids) + 1];
        v_got := 0;
        v_ids := '{}';
        IF v_qids[(i - 1) % cardinality(v_qids) + 1] = 0 THEN
            FOR a IN
                SELECT * FROM claim_v1(
                    p_now, p_holder, v_plain, v_share::integer, p_lease_for, p_want, p_lost_below, v_bytes, false
                ) AS x ORDER BY x.priority, x.run_at, x.id  -- notices come last
            LOOP
                IF a.id IS NOT NULL THEN
                    v_got := v_got + 1;
                    v_ids := v_ids || a.id;
                    a.ord := v_ord + v_got;
                    RETURN NEXT a;
                ELSIF a.walked IS NULL THEN
                    RETURN NEXT a;
                ELSE
                    v_passed := greatest(v_passed, a.passed_over);
                    v_next := least(v_next, p_now + a.next_in);
                END IF;
            END LOOP;
            v_bytes := v_bytes - coalesce((SELECT sum(l.size) FROM leased AS l WHERE l.id = ANY (v_ids)), 0)  -- leased_pkey
                + coalesce((SELECT sum(s.bytes) FROM spared(v_ids, p_want) AS s), 0);
        ELSE
            scope.qids := ARRAY[v_qids[(i - 1) % cardinality(v_qids) + 1]];
            scope.names := ARRAY[v_names[(i - 1) % cardinality(v_qids) + 1]];
            scope.pause := NULL;
            FOR a IN
                SELECT * FROM claim_turns(p_now, scope, p_holder, v_share, p_lease_for, p_want, p_lost_below, v_bytes, v_ord, NULL)
            LOOP
                IF a.walked IS NULL THEN
                    v_got := v_got + (a.id IS NOT NULL)::integer;
                    RETURN NEXT a;
                ELSE
                    v_passed := greatest(v_passed, a.passed_over);
                    v_bytes := v_bytes - a.bytes;
                    v_next := least(v_next, p_now + a.next_in);
                END IF;
            END LOOP;
        END IF;
        v_ord := v_ord + v_got;
        v_left := v_left - v_got;
        IF v_got = v_share THEN
            v_plenty := v_plenty || i;
        END IF;
    END LOOP;
    RETURN NEXT last_row(
        0, v_passed, CASE WHEN v_left > 0 THEN CASE WHEN v_bytes <= 0 OR v_behind OR v_more THEN 0 ELSE v_next - p_now END END, NULL, NULL, true
    );
END $$;

-- When this has committed, all earlier commits are on disk. A commit waits for the disk only if it wrote something: a
-- message for nobody.
CREATE FUNCTION seal_v1() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_told pg_lsn := pg_logical_emit_message(true, 'headrace', '');  -- an expression: starts no executor
BEGIN
END $$;
