-- Policies, and what they hold back. A queue that has a policy, or is governed, has a row in ``policies``; a governed one also
-- in ``turns``. Who holds the lock on that row decides alone whose turn it is: claims, and changes of rules. Nobody else waits
-- for it, nor is waited for: inserts, settlements and whatever else brings a job into a lane, or takes it out, tell so in
-- ``news``, and whoever has the lock hears that first. Locks are taken in this order: places of jobs, keys, groups, turns.
CREATE TABLE policies (
    queue text NOT NULL CONSTRAINT policies_pkey PRIMARY KEY,
    version bigint NOT NULL DEFAULT 0,
    running bigint,
    every bigint,
    burst bigint,
    tenant_running bigint,
    tenant_every bigint,
    tenant_burst bigint,
    holders bigint,
    chunk bigint,
    ageing bigint,
    group_running bigint NOT NULL DEFAULT 1,
    depth bigint
);

-- How many turns a group of the queue has.
CREATE FUNCTION turns_of(p_qid integer) RETURNS bigint LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT coalesce((SELECT p.group_running FROM policies AS p WHERE p.queue = coalesce(
        (SELECT q.name FROM queues AS q WHERE q.qid = p_qid), name_of(p_qid)
    )), 1)
$$;

-- ``full_at`` is when the burst of the rate is saved up. ``behind`` is for ``hear_turns`` to answer, and false here. No tenant that
-- is awake comes before ``low_count, low_since, low_tenant``, and none wakes before ``low_wake``: whoever looks for the first begins there,
-- and not with those that have been there; as long as any snapshot is held, these are still in the indexes. ``stir_from``: the tenants
-- after this one are still to wake, for rules that have changed at ``stir_at``; with ``stir_rates`` their burst is saved up.
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

-- ``jobs`` counts those in its lanes; where it says that there are none, the lanes are asked. Neither awake nor full: asleep until ``wake_at``, if ever.
CREATE TABLE tenants (
    tid bigint NOT NULL CONSTRAINT tenants_pkey PRIMARY KEY,
    count bigint NOT NULL DEFAULT 0,
    since bigint NOT NULL DEFAULT 0,
    wake_at bigint,
    jobs bigint NOT NULL DEFAULT 0,
    running bigint NOT NULL DEFAULT 0,
    full_at bigint NOT NULL DEFAULT 0,
    qid integer NOT NULL,
    awake boolean NOT NULL DEFAULT false,
    at_limit boolean NOT NULL DEFAULT false,
    tenant text COLLATE "C" NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX tenants_awake ON tenants (qid, count, since, tenant) WHERE awake;
CREATE INDEX tenants_asleep ON tenants (qid, wake_at) WHERE wake_at IS NOT NULL;

-- The lanes of a tenant. One that is found empty goes; whoever comes into it tells so, and then it is made again.
CREATE TABLE lanes (
    lane bigint NOT NULL CONSTRAINT lanes_pkey PRIMARY KEY,
    tid bigint NOT NULL,
    qid integer NOT NULL,
    task text NOT NULL
);
CREATE INDEX lanes_tid ON lanes (tid);
CREATE INDEX lanes_qid ON lanes (qid);

-- What single tenants may do, instead of what the policy says for each; and until when they, or single tasks, are paused.
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
CREATE TABLE task_rules (
    every bigint,
    burst bigint,
    full_at bigint NOT NULL DEFAULT 0,
    paused_until bigint NOT NULL DEFAULT 0,
    qid integer NOT NULL,
    task text COLLATE "C" NOT NULL,
    CONSTRAINT task_rules_pkey PRIMARY KEY (qid, task)
);

-- ``kind``: 1 so many jobs have come into lanes, the first of them due at ``ats``; 2 so many have stopped to run then; 3 so
-- many have left their lanes then, but not for a worker. A row per step: each column has one entry for each lane, or tenant.
CREATE TABLE news (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    qid integer NOT NULL,
    kind smallint NOT NULL,
    tids bigint[] NOT NULL,
    jobs bigint[] NOT NULL,
    ats bigint[] NOT NULL,
    lanes bigint[],
    tenants text[],
    tasks text[]
) WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX news_qid ON news (qid, seq);

CREATE FUNCTION tell_stopped(p_now bigint, p_qids integer[], p_tids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO news (qid, kind, tids, jobs, ats)
    SELECT g.qid, 2, array_agg(g.tid), array_agg(g.jobs), array_agg(p_now) FROM (
        SELECT n.qid, n.tid, count(*) AS jobs FROM unnest(p_qids, p_tids) AS n (qid, tid) WHERE n.tid IS NOT NULL
        GROUP BY n.qid, n.tid
    ) AS g GROUP BY g.qid;
END $$;

-- Of these queues, in which jobs of these tenants have stopped to run, those in which somebody may wait for that.
CREATE FUNCTION waited_for(p_qids integer[], p_tids bigint[]) RETURNS SETOF integer LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY
    SELECT n.qid FROM (SELECT DISTINCT m.qid FROM unnest(p_qids, p_tids) AS m (qid, tid) WHERE m.tid IS NOT NULL) AS n
    JOIN queues AS q ON q.qid = ANY (ARRAY[n.qid]) JOIN policies AS p ON p.queue = ANY (ARRAY[q.name])  -- queues_pkey, policies_pkey
    WHERE coalesce(p.running, p.holders, p.tenant_running) IS NOT NULL OR EXISTS (  -- tenant_rules_pkey
        SELECT 1 FROM tenant_rules AS u WHERE u.tid = ANY (p_tids) AND u.qid = n.qid AND u.running IS NOT NULL
    );
END $$;

-- Of these jobs, those that were in a lane of a tenant have left it.
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

-- How many jobs in the lanes of a governed queue are due later, counted up to a number; and when the first is, or was, due.
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

-- Whether a tenant has jobs in its lanes.
CREATE FUNCTION has_jobs(p_tid bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM lanes AS l JOIN ready AS y ON y.lane = ANY (ARRAY[l.lane, l.lane + 1]) WHERE l.tid = p_tid);
END $$;

-- Jobs have come into lanes; the earliest instant at which a tenant wakes for it.
CREATE FUNCTION hear_came(p_qid integer, p_upto bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_wake bigint;
BEGIN
    WITH rows AS (  -- news_qid; what is of another kind has come since, and waits for the next claim
        DELETE FROM news AS n WHERE n.qid = p_qid AND n.seq <= p_upto AND n.kind = 1 RETURNING n.*
    ), heard AS MATERIALIZED (
        SELECT x.* FROM rows AS n CROSS JOIN LATERAL unnest(n.tids, n.jobs, n.ats, n.lanes, n.tenants, n.tasks)
            AS x (tid, jobs, at, lane, tenant, task)
    ), opened AS (
        INSERT INTO lanes (lane, tid, qid, task)
        SELECT h.lane, min(h.tid), p_qid, min(h.task) FROM heard AS h GROUP BY h.lane
        ON CONFLICT (lane) DO NOTHING
    ), came AS (
        INSERT INTO tenants AS t (tid, qid, tenant, jobs, wake_at)
        SELECT h.tid, p_qid, min(h.tenant), sum(h.jobs), min(h.at) FROM heard AS h GROUP BY h.tid
        ON CONFLICT (tid) DO UPDATE SET jobs = t.jobs + excluded.jobs,
            wake_at = CASE WHEN NOT (t.awake OR t.at_limit) THEN least(t.wake_at, excluded.wake_at) END
    )
    SELECT min(h.at) INTO v_wake FROM heard AS h;
    RETURN v_wake;
END $$;

-- Jobs of these tenants have stopped running, so many at these instants; the earliest instant at which a tenant wakes for it. A tenant that is left with nothing, and would come anew as it comes back, goes.
CREATE FUNCTION count_stopped(p_now bigint, p_round bigint, p_tids bigint[], p_jobs bigint[], p_ats bigint[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_wake bigint;
    v_empty bigint[];
BEGIN
    WITH kept AS (  -- tenants_pkey
        UPDATE tenants AS t SET running = t.running - h.jobs, at_limit = false,
            wake_at = CASE WHEN t.at_limit THEN h.at ELSE t.wake_at END
        FROM (
            SELECT n.tid, sum(n.jobs) AS jobs, min(n.at) AS at FROM unnest(p_tids, p_jobs, p_ats) AS n (tid, jobs, at) GROUP BY n.tid
        ) AS h WHERE t.tid = ANY (ARRAY[h.tid]) RETURNING t.tid, t.jobs, t.running, t.awake, t.wake_at
    )
    SELECT min(k.wake_at), array_agg(k.tid) FILTER (WHERE k.jobs + k.running <= 0 AND NOT k.awake)
    INTO v_wake, v_empty FROM kept AS k;
    IF v_empty IS NOT NULL THEN
        DELETE FROM tenants AS t USING unnest(v_empty) AS n (tid)
        WHERE t.tid = ANY (ARRAY[n.tid]) AND t.count <= p_round AND t.full_at <= p_now AND NOT has_jobs(t.tid);
    END IF;
    RETURN v_wake;
END $$;

-- Jobs have come, stopped running or left their lanes, in the order in which it was told.
CREATE FUNCTION hear_all(p_qid integer, p_now bigint, p_round bigint, p_upto bigint, OUT stopped bigint, OUT wake bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_empty bigint[];
BEGIN
    WITH rows AS (  -- news_qid
        DELETE FROM news AS n WHERE n.qid = p_qid AND n.seq <= p_upto RETURNING n.*
    ), heard AS MATERIALIZED (
        SELECT n.seq, n.kind, x.* FROM rows AS n CROSS JOIN LATERAL unnest(n.tids, n.jobs, n.ats, n.lanes, n.tenants, n.tasks)
            AS x (tid, jobs, at, lane, tenant, task)
    ), opened AS (
        INSERT INTO lanes (lane, tid, qid, task)
        SELECT DISTINCT h.lane, h.tid, p_qid, h.task FROM heard AS h WHERE h.kind = 1
        ON CONFLICT (lane) DO NOTHING
    ), told AS MATERIALIZED (  -- tenants_pkey
        SELECT
            h.seq, h.kind, h.tid, h.jobs, h.at, h.tenant, coalesce(t.awake, false) AS awake,
            coalesce(t.at_limit, false) AS at_limit, t.wake_at,
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
            max(o.empty) IS NOT NULL AS emptied
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
    SELECT coalesce(sum(s.stopped), 0), least(p_now, min(s.wake_at)), array_agg(s.tid) FILTER (WHERE s.emptied)
    INTO stopped, wake, v_empty FROM summed AS s;
    IF v_empty IS NOT NULL THEN
        DELETE FROM tenants AS t
        WHERE t.tid = ANY (v_empty) AND t.jobs <= 0 AND t.running <= 0 AND NOT t.awake AND t.count <= p_round
            AND t.full_at <= p_now AND NOT has_jobs(t.tid);
        UPDATE tenants AS t SET wake_at = p_now
        WHERE t.tid = ANY (v_empty) AND t.jobs <= 0 AND NOT t.awake AND t.wake_at IS NULL AND has_jobs(t.tid);
    END IF;
END $$;

-- What has happened since somebody last had the lock, or the first part of very much; how many jobs have stopped running, when
-- the first tenant wakes for it, at the earliest, and whether there is more.
CREATE FUNCTION hear(p_qid integer, p_now bigint, p_round bigint, OUT stopped bigint, OUT wake bigint, OUT more boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
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
    IF v_first = 1 AND v_last = 1 THEN  -- most often it is one or the other, and the order tells nothing
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

-- Whether jobs lie where claims looked before the queue was governed.
CREATE FUNCTION waits_outside(p_qid integer) RETURNS boolean LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT EXISTS (SELECT 1 FROM ready AS y WHERE y.qid = p_qid AND y.lane IS NULL)  -- ready_line
        OR EXISTS (SELECT 1 FROM ready AS y WHERE y.qid = p_qid AND y.lane = 0)  -- ready_later
$$;

-- Those come into their lanes: a bounded number, in their order.
CREATE FUNCTION bring_in(p_now bigint, p_qid integer) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
#variable_conflict use_column
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
        UPDATE ready AS y SET lane = lane_of(p_qid, j.tenant, j.task) + (y.run_at > p_now)::integer
        FROM head AS h CROSS JOIN jobs AS j WHERE y.ctid = h.place AND j.id = y.id
        RETURNING y.lane & -2 AS lane, y.run_at, j.tenant, j.task
    )
    INSERT INTO news (qid, kind, tids, jobs, ats, lanes, tenants, tasks)
    SELECT p_qid, 1, array_agg(tid_of(p_qid, g.tenant)), array_agg(g.jobs), array_agg(g.run_at), array_agg(g.lane),
        array_agg(g.tenant), array_agg(g.task)
    FROM (
        SELECT m.lane, m.tenant, m.task, count(*) AS jobs, min(m.run_at) AS run_at
        FROM moved AS m GROUP BY m.lane, m.tenant, m.task
    ) AS g HAVING count(*) > 0;
END $$;

-- How many holders have jobs of a tenant, counted up to a number.
CREATE FUNCTION holders_of(p_tid bigint, p_most bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_holder text := '';
    v_count bigint := 0;
BEGIN
    WHILE v_count < p_most LOOP  -- leased_tenant
        SELECT l.holder INTO v_holder FROM leased AS l WHERE l.tid = p_tid AND l.holder > v_holder
        ORDER BY l.tid, l.holder LIMIT 1;
        EXIT WHEN NOT FOUND;
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;

-- Whether others have all the tokens of a tenant, of which there are so many.
CREATE FUNCTION shut_out(p_tid bigint, p_holder text, p_most bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
BEGIN
    RETURN NOT EXISTS (SELECT 1 FROM leased AS l WHERE l.tid = p_tid AND l.holder = p_holder)  -- leased_tenant
        AND holders_of(p_tid, p_most) >= p_most;
END $$;

-- How many jobs a rate allows; NULL, where there is none.
CREATE FUNCTION allowed(p_every bigint, p_burst bigint, p_full_at bigint, p_now bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_every IS NOT NULL THEN greatest(0, p_burst - (greatest(0, p_full_at - p_now) + p_every - 1) / p_every) END
$$;

-- The tasks of a governed queue that may not be started, and until when; and those of which only so many may be.
CREATE TYPE task_gates AS (closed text[], until bigint[], rated text[], free bigint[]);
CREATE FUNCTION closed_tasks(p_now bigint, p_qid integer) RETURNS task_gates LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    gates task_gates;
BEGIN
    SELECT
        array_agg(k.task) FILTER (WHERE k.until > 0), array_agg(k.until) FILTER (WHERE k.until > 0),
        array_agg(k.task) FILTER (WHERE k.until = 0 AND k.every IS NOT NULL),
        array_agg(k.free) FILTER (WHERE k.until = 0 AND k.every IS NOT NULL)
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

-- Rules have changed for all tenants: the next of those who sleep wake, a bounded number, and look at them.
CREATE FUNCTION stir(INOUT turn turns) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    v_tids CONSTANT bigint[] := ARRAY(  -- tenants_pkey, those of other queues among them
        SELECT o.tid FROM tenants AS o WHERE o.tid > turn.stir_from ORDER BY o.tid LIMIT 1000
    );
BEGIN
    UPDATE tenants AS o SET at_limit = false, wake_at = CASE WHEN NOT o.awake THEN least(o.wake_at, turn.stir_at) END,
        full_at = CASE
            WHEN turn.stir_rates AND NOT EXISTS (SELECT 1 FROM tenant_rules AS u WHERE u.tid = o.tid AND u.every IS NOT NULL) THEN 0
            ELSE o.full_at
        END
    FROM unnest(v_tids) AS n (tid)
    WHERE o.tid = ANY (ARRAY[n.tid]) AND o.qid = turn.qid AND (turn.stir_rates OR NOT o.awake);
    turn.stir_from := v_tids[1000];
    turn.low_wake := least(turn.low_wake, turn.stir_at);
    UPDATE turns AS t SET stir_from = turn.stir_from, stir_at = turn.stir_at, stir_rates = turn.stir_rates, low_wake = turn.low_wake
    WHERE t.qid = turn.qid;
END $$;

-- Lock the turns of a governed queue, and hear what has happened: all until now, or as much as can be heard in a moment. ``behind``:
-- there are jobs that claims do not see yet, or more to hear. With ``p_keeps`` the caller writes down what is answered.
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

-- A visit of a tenant: what its rules allow (``stops``: it has reached its ``running``; ``until`` when nothing is allowed; ``most`` jobs; ``cost``,
-- how many of them it has, as far as known), the first jobs that it has, in their order, and how many of them
-- are taken; when the first was due of those that it passed over because they were lost too often.
CREATE TYPE visit AS (
    tid bigint, count bigint, since bigint, tenant text, every bigint, stops boolean, until bigint, most bigint, cost bigint, places tid[], tasks text[],
    bytes bigint, taken integer, rests boolean, passed_at bigint
);

-- Of tenants that are to be visited, what has become due comes into the lanes from which visits take: a bounded number, of each lane
-- the same share, in the order of run_at; how many.
CREATE FUNCTION promote_turns(p_now bigint, p_visits visit[], p_closed text[], p_most integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_moved integer;
BEGIN
    WITH ripe AS MATERIALIZED (  -- lanes_tid, ready_asleep
        SELECT l.lane FROM unnest(p_visits) AS n JOIN lanes AS l ON l.tid = ANY (ARRAY[n.tid])
        WHERE n.cost > 0 AND (p_closed IS NULL OR l.task <> ALL (p_closed)) AND EXISTS (
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

-- Jobs that are not due any more, as the clock was set back, wait apart again: some of them.
CREATE FUNCTION put_back(p_now bigint, p_qid integer) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    WITH early AS MATERIALIZED (  -- ready_turns; a moment ahead is who has looked at the clock a moment later
        SELECT y.ctid AS place FROM ready AS y
        WHERE y.qid = p_qid AND y.lane >= 4611686018427387904 AND y.lane & 1 = 0 AND y.run_at > p_now + 100000
        ORDER BY y.qid, y.run_at LIMIT 1000 FOR UPDATE SKIP LOCKED
    )
    UPDATE ready AS y SET lane = y.lane + 1 FROM early AS e WHERE y.ctid = e.place;
END $$;

-- The first jobs of a lane by (run_at + priority * ageing, id), locked. Of very many priorities, the first are looked at.
CREATE FUNCTION aged_jobs(p_now bigint, p_lane bigint, p_ageing bigint, p_most bigint, p_bound integer)
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
            AND (y.dies_at IS NULL OR y.dies_at > p_now) AND y.lost < p_bound
        ORDER BY y.run_at, y.id LIMIT p_most FOR UPDATE SKIP LOCKED
    ) AS x ORDER BY x.level, x.id LIMIT p_most;
END $$;

-- 1. Wake: tenants asleep whose time has come wake up, a bounded number; the caller writes down the turns.
CREATE FUNCTION wake(INOUT turn turns, p_now bigint) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    c_woken CONSTANT integer := 500;
    r record;
BEGIN
    WITH first AS MATERIALIZED (  -- tenants_asleep; tenants_pkey
        SELECT o.tid FROM tenants AS o WHERE o.qid = turn.qid AND o.wake_at >= turn.low_wake AND o.wake_at <= p_now
        ORDER BY o.qid, o.wake_at LIMIT c_woken
    ), woken AS (
        UPDATE tenants AS o SET awake = true, since = o.wake_at, wake_at = NULL, count = greatest(o.count, turn.round)
        FROM first AS f WHERE o.tid = ANY (ARRAY[f.tid]) RETURNING o.count, o.since
    )
    SELECT w.count, w.since, count(*) OVER () AS tenants, max(w.since) OVER () AS last INTO r
    FROM woken AS w ORDER BY w.count, w.since LIMIT 1;
    IF (r.count, r.since) <= (turn.low_count, turn.low_since) THEN
        turn.low_count := r.count;
        turn.low_since := r.since;
        turn.low_tenant := '';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN  -- there may be some that it does not see
        RETURN;
    ELSIF r.tenants = c_woken THEN
        turn.low_wake := r.last;
    ELSE
        turn.low_wake := coalesce((  -- tenants_asleep
            SELECT o.wake_at FROM tenants AS o WHERE o.qid = turn.qid AND o.wake_at > p_now ORDER BY o.qid, o.wake_at LIMIT 1
        ), 9223372036854775807);
    END IF;
END $$;

-- 5. Rest: of these tenants, which have nothing to give, when the first of them wakes. Lanes that are empty go, and so do tenants that
-- would come anew as they come back.
CREATE FUNCTION rest(turn turns, gates task_gates, p_now bigint, p_tids bigint[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_wake bigint;
BEGIN
    WITH resting AS (  -- tenants_pkey; lanes_tid, ready_lane, ready_asleep
        UPDATE tenants AS o SET wake_at = (
            SELECT min(CASE WHEN w.until < 9007199254740991 THEN w.until END) FROM (
                SELECT greatest(h.run_at, gates.until[array_position(gates.closed, l.task)]) AS until
                FROM lanes AS l CROSS JOIN LATERAL (
                    SELECT least((
                        SELECT y.run_at FROM ready AS y WHERE y.lane = l.lane
                        ORDER BY y.lane, y.priority, y.run_at, y.id LIMIT 1
                    ), (
                        SELECT y.run_at FROM ready AS y
                        WHERE y.lane = l.lane + 1 AND y.lane >= 4611686018427387904 AND y.lane & 1 = 1
                        ORDER BY y.lane, y.run_at, y.id LIMIT 1
                    )) AS run_at
                ) AS h
                WHERE l.tid = n.tid AND h.run_at IS NOT NULL
            ) AS w
        )
        FROM unnest(p_tids) AS n (tid) WHERE o.tid = ANY (ARRAY[n.tid]) RETURNING o.wake_at
    )
    SELECT min(o.wake_at) INTO v_wake FROM resting AS o;
    DELETE FROM lanes AS l USING unnest(p_tids) AS n (tid)  -- lanes_tid, ready_lane
    WHERE l.tid = ANY (ARRAY[n.tid]) AND NOT EXISTS (SELECT 1 FROM ready AS y WHERE y.lane = ANY (ARRAY[l.lane, l.lane + 1]));
    DELETE FROM tenants AS o USING unnest(p_tids) AS n (tid)  -- tenants_pkey
    WHERE o.tid = ANY (ARRAY[n.tid]) AND o.jobs <= 0 AND o.running <= 0 AND o.count <= turn.round AND o.full_at <= p_now
        AND NOT EXISTS (SELECT 1 FROM lanes AS l WHERE l.tid = o.tid);
    RETURN v_wake;
END $$;

-- What a claim has to know of a governed queue: its turns and rules, whether jobs have become due that are to be promoted, and whether single
-- tenants have rules of their own.
CREATE TYPE turn_scope AS (turn turns, rule policies, gates task_gates, ripe boolean, ruled boolean);

-- Lock the turns of a governed queue, and look around. Of these tenants jobs have just stopped running.
CREATE FUNCTION look_at_turns(p_now bigint, p_qid integer, p_name text, p_stopped bigint[]) RETURNS turn_scope
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_some integer := cardinality(p_stopped);
    turn turns;
    rule policies;
    gates task_gates;
    r record;
BEGIN
    SELECT t.* INTO turn FROM turns AS t WHERE t.qid = p_qid FOR NO KEY UPDATE;  -- turns_pkey
    -- policies_pkey; news_qid, ready_line, ready_later, ready_turns, ready_asleep_qid, task_rules_pkey, tenant_rules_name: one probe each
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
        EXISTS (SELECT 1 FROM task_rules AS k WHERE k.qid = p_qid) AS tasks, EXISTS (SELECT 1 FROM tenant_rules AS u WHERE u.qid = p_qid) AS ruled
    INTO r FROM policies AS x WHERE x.queue = p_name;
    rule := r.rule;
    rule.chunk := coalesce(rule.chunk, 10);
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
        turn := wake(turn, p_now);
    END IF;
    IF r.early THEN
        PERFORM put_back(p_now, p_qid);
    END IF;
    IF r.tasks THEN
        gates := closed_tasks(p_now, p_qid);
    END IF;
    RETURN (turn, rule, gates, r.ripe, r.ruled)::turn_scope;
END $$;

-- 2. Next tenant, 3. allowance: whom to visit, in this order. These all begin with the same count, and more than one fits only where none
-- is likely to have less than it is allowed. ``p_alone`` may have ``p_chunks``.
CREATE FUNCTION next_tenants(
    turn turns, rule policies, p_now bigint, p_holder text, p_ruled boolean, p_width bigint, p_room bigint, p_alone bigint, p_chunks bigint
) RETURNS visit[] LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_visits visit[] := '{}';
    v_upto bigint := 0;
    v_cost bigint;
    r record;
BEGIN
    FOR r IN  -- tenants_awake; tenant_rules_pkey
        SELECT
            a.*, coalesce(a.running >= a.cap, false) AS stops,
            greatest(a.paused_until, CASE WHEN a.free = 0 THEN a.full_at - (a.burst - 1) * a.every ELSE 0 END) AS until,
            least(CASE WHEN a.tid = p_alone THEN p_chunks ELSE rule.chunk END, a.cap - a.running, a.free) AS most
        FROM (
            SELECT b.*, allowed(b.every, b.burst, b.full_at, p_now) AS free FROM (
                SELECT
                    t.tid, t.count, t.since, t.tenant, t.jobs, t.running, t.full_at, coalesce(u.running, rule.tenant_running) AS cap,
                    CASE WHEN u.every IS NOT NULL THEN u.every ELSE rule.tenant_every END AS every,
                    CASE WHEN u.every IS NOT NULL THEN u.burst ELSE rule.tenant_burst END AS burst,
                    coalesce(u.paused_until, 0) AS paused_until
                FROM tenants AS t LEFT JOIN tenant_rules AS u ON p_ruled AND u.tid = ANY (ARRAY[t.tid])
                WHERE t.qid = turn.qid AND t.awake AND (t.count, t.since, t.tenant) >= (turn.low_count, turn.low_since, turn.low_tenant)
                ORDER BY t.qid, t.count, t.since, t.tenant LIMIT CASE WHEN rule.holders IS NULL THEN p_width END
            ) AS b
        ) AS a
    LOOP
        CONTINUE WHEN r.running >= rule.holders AND shut_out(r.tid, p_holder, rule.holders);
        v_cost := CASE WHEN r.stops OR r.until > p_now THEN 0 ELSE least(r.most, greatest(r.jobs, 1)) END;
        EXIT WHEN r.count > (v_visits[1]).count OR v_upto > 0 AND v_upto + v_cost > p_room;
        v_visits := v_visits || (
            r.tid, r.count, r.since, r.tenant, r.every, r.stops, r.until, r.most, v_cost, NULL, NULL, 0, 0, false, NULL
        )::visit;
        v_upto := v_upto + v_cost;
        EXIT WHEN v_upto >= p_room OR cardinality(v_visits) >= p_width;
    END LOOP;
    RETURN v_visits;
END $$;

-- 4. Take, first half: the first jobs of these tenants, locked, in claim order.
CREATE FUNCTION first_jobs(rule policies, gates task_gates, p_now bigint, p_visits visit[], p_room bigint, p_bound integer)
RETURNS visit[] LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    IF rule.ageing IS NULL AND gates.rated IS NULL THEN  -- as below, with less to start for each claim
        RETURN ARRAY(  -- lanes_tid; ready_lane, in claim order
            SELECT (
                n.tid, n.count, n.since, n.tenant, n.every, n.stops, n.until, n.most, n.cost, x.places, NULL, coalesce(x.bytes, 0), coalesce(x.jobs, 0),
                false, NULL
            )::visit
            FROM unnest(p_visits) WITH ORDINALITY AS n (
                tid, count, since, tenant, every, stops, until, most, cost, places, tasks, bytes, taken, rests, passed_at, ord
            ) LEFT JOIN LATERAL (
                SELECT array_agg(h.place ORDER BY h.priority, h.run_at, h.id) AS places, count(*) AS jobs, sum(h.size) AS bytes FROM (
                    SELECT y.* FROM lanes AS l CROSS JOIN LATERAL (
                        SELECT y.ctid AS place, y.id, y.size, y.priority, y.run_at FROM ready AS y
                        WHERE y.lane = l.lane AND y.run_at + 0 <= p_now AND (y.dies_at IS NULL OR y.dies_at > p_now) AND y.lost < p_bound
                        ORDER BY y.lane, y.priority, y.run_at, y.id LIMIT least(n.cost, p_room) FOR UPDATE SKIP LOCKED
                    ) AS y WHERE l.tid = n.tid AND (gates.closed IS NULL OR l.task <> ALL (gates.closed))
                    ORDER BY y.priority, y.run_at, y.id LIMIT least(n.cost, p_room)
                ) AS h
            ) AS x ON n.cost > 0 ORDER BY n.ord
        );
    END IF;
    RETURN ARRAY(  -- lanes_tid; ready_lane, in claim order
        SELECT (
            n.tid, n.count, n.since, n.tenant, n.every, n.stops, n.until, n.most, n.cost, x.places, x.tasks, coalesce(x.bytes, 0),
            coalesce(x.jobs, 0), false, NULL
        )::visit
        FROM unnest(p_visits) WITH ORDINALITY AS n (
            tid, count, since, tenant, every, stops, until, most, cost, places, tasks, bytes, taken, rests, passed_at, ord
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
                    FROM lanes AS l CROSS JOIN LATERAL (
                        SELECT y.* FROM (
                            SELECT y.ctid AS place, y.id, y.size, y.priority::bigint AS level, y.run_at AS due FROM ready AS y
                            WHERE rule.ageing IS NULL AND y.lane = l.lane AND y.run_at + 0 <= p_now
                                AND (y.dies_at IS NULL OR y.dies_at > p_now) AND y.lost < p_bound
                            ORDER BY y.lane, y.priority, y.run_at, y.id LIMIT least(n.cost, p_room)
                            FOR UPDATE SKIP LOCKED
                        ) AS y
                        UNION ALL
                        SELECT y.* FROM aged_jobs(p_now, l.lane, rule.ageing, least(n.cost, p_room), p_bound) AS y
                        WHERE rule.ageing IS NOT NULL
                    ) AS y
                    WHERE l.tid = n.tid AND (gates.closed IS NULL OR l.task <> ALL (gates.closed))
                ) AS z WHERE z.fits ORDER BY z.level, z.due, z.id LIMIT least(n.cost, p_room)
            ) AS h
        ) AS x ON n.cost > 0
        ORDER BY n.ord
    );
END $$;

-- 4. Take, second half: lease the jobs at these places, which are these tenants'; the answer's first jobs are ``p_ord`` others.
CREATE FUNCTION take(
    p_now bigint, p_qid integer, p_name text, p_holder text, p_lease_for bigint, p_want smallint, p_places tid[], p_owners bigint[], p_ord integer
) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH gone AS (  -- by place in the heap; ``contents``; patches_pkey
        DELETE FROM ready AS y USING unnest(p_places, p_owners) WITH ORDINALITY AS n (place, tid, ord)
        WHERE y.ctid = n.place RETURNING y.*, n.tid, n.ord
    ), held AS (
        INSERT INTO leased (lease_until, run_at, id, qid, begun, epoch, attempt, lost, size, priority, keyed, gid, tid, holder, error)
        SELECT p_now + p_lease_for, g.run_at, g.id, g.qid, nullif(g.epoch > 0, false), greatest(abs(g.epoch) + 1, p_now),
            g.attempt, nullif(g.lost, 0), g.size, g.priority, g.keyed, g.gid, g.tid, p_holder, g.error
        FROM gone AS g
    ), counted AS (
        INSERT INTO deltas (qid, state, jobs) VALUES (p_qid, 0, -cardinality(p_places)), (p_qid, 1, cardinality(p_places))
    )
    SELECT
        1::smallint, g.id, p_name, j.task, j.tenant, CASE WHEN g.keyed THEN j.key END,
        greatest(abs(g.epoch) + 1, p_now), g.attempt, g.lost, g.priority, g.run_at, j.enqueued_at, j.max_attempts, j.timeout,
        j.result_ttl, j.headers, g.error,
        CASE WHEN p_want & 1 <> 0 THEN bounded(CASE WHEN (g.patch).mask & 1 <> 0 THEN (g.patch).parameters ELSE j.parameters END) END,
        CASE WHEN p_want & 2 <> 0 THEN bounded(CASE WHEN (g.patch).mask & 2 <> 0 THEN (g.patch).vm_state ELSE j.vm_state END) END,
        CASE WHEN p_want & 4 <> 0 THEN bounded(CASE WHEN (g.patch).mask & 4 <> 0 THEN (g.patch).metadata ELSE j.metadata END) END,
        CASE WHEN p_want & 8 <> 0 THEN bounded(CASE WHEN (g.patch).mask & 8 <> 0 THEN (g.patch).blob ELSE j.blob END) END,
        j.group_name, p_ord + g.ord::integer, g.epoch > 0
    FROM (
        SELECT g.*, CASE WHEN g.epoch <> 0 THEN (SELECT c FROM patches AS c WHERE c.id = ANY (ARRAY[g.id])) END AS patch
        FROM gone AS g OFFSET 0
    ) AS g JOIN contents(ARRAY(SELECT x.id FROM gone AS x)) AS j ON j.id = g.id;
END $$;

-- Jobs are leased as they come, until they weigh enough.
CREATE FUNCTION fitting(INOUT v visit, p_bytes bigint) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    SELECT count(*), sum(w.size) INTO v.taken, v.bytes FROM (
        SELECT y.size, sum(y.size) OVER (ORDER BY n.ord) - y.size AS before
        FROM unnest(v.places) WITH ORDINALITY AS n (place, ord) JOIN ready AS y ON y.ctid = n.place
    ) AS w WHERE w.before < p_bytes;
END $$;

-- Up to where a visit has looked in claim order among the jobs of a task: the last of the jobs that it takes, of this task where its rate
-- allowed no more, or the end where it has seen all of them.
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

-- When the first was due of the jobs that a visit has passed over because they were lost too often.
CREATE FUNCTION passed_over(rule policies, gates task_gates, p_now bigint, v visit, p_bound integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT min(y.run_at)  -- lanes_tid, ready_lost
        FROM lanes AS l CROSS JOIN LATERAL looked_at(rule, gates, v, l.task) AS u
        JOIN ready AS y ON coalesce(y.lane, y.qid) = ANY (ARRAY[l.lane])
        WHERE l.tid = v.tid AND (gates.closed IS NULL OR l.task <> ALL (gates.closed)) AND y.lost > 0 AND y.lost >= p_bound
            AND y.run_at <= p_now AND (y.dies_at IS NULL OR y.dies_at > p_now) AND (
                CASE WHEN rule.ageing IS NULL THEN y.priority ELSE y.run_at + y.priority * rule.ageing END,
                CASE WHEN rule.ageing IS NULL THEN y.run_at ELSE 0 END, y.id
            ) <= (u.level, u.due, u.id)
    );
END $$;

-- Where the jobs lie that a visit has passed over because they have expired.
CREATE FUNCTION doomed(rule policies, gates task_gates, p_now bigint, v visit) RETURNS tid[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    RETURN ARRAY(  -- lanes_tid, ready_doomed
        SELECT y.place FROM lanes AS l CROSS JOIN LATERAL looked_at(rule, gates, v, l.task) AS u CROSS JOIN LATERAL (
            SELECT y.ctid AS place, y.run_at, y.priority, y.id FROM ready AS y
            WHERE coalesce(y.lane, y.qid) = l.lane AND y.dies_at IS NOT NULL AND y.dies_at + 0 <= p_now
            ORDER BY y.dies_at + 0 LIMIT 1000
        ) AS y
        WHERE l.tid = v.tid AND (gates.closed IS NULL OR l.task <> ALL (gates.closed)) AND (
            CASE WHEN rule.ageing IS NULL THEN y.priority ELSE y.run_at + y.priority * rule.ageing END,
            CASE WHEN rule.ageing IS NULL THEN y.run_at ELSE 0 END, y.id
        ) <= (u.level, u.due, u.id)
        LIMIT 1000
    );
END $$;

-- Who has the lowest count alone is visited again and again until another comes before it: how many jobs that is, so that it can have them
-- all at once. None where it is not alone.
CREATE FUNCTION alone_for(turn turns, rule policies, p_tid bigint, p_left bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT coalesce((x.counts[2] - x.counts[1] + rule.chunk - 1) / rule.chunk * rule.chunk, p_left / rule.chunk * rule.chunk + rule.chunk)
        FROM (
            SELECT array_agg(o.count) AS counts, array_agg(o.tid) AS tids FROM (  -- tenants_awake
                SELECT o.count, o.tid FROM tenants AS o
                WHERE o.qid = turn.qid AND o.awake AND (o.count, o.since, o.tenant) >= (turn.low_count, turn.low_since, turn.low_tenant)
                ORDER BY o.qid, o.count, o.since, o.tenant LIMIT 2
            ) AS o
        ) AS x WHERE x.tids[1] = p_tid AND (x.counts[2] IS NULL OR x.counts[2] > x.counts[1])
    );
END $$;

-- What visits have come to is written down; when the first of these tenants wakes that sleep now.
CREATE FUNCTION end_visits(turn turns, gates task_gates, p_now bigint, p_visits visit[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_wake bigint;
    v_resting bigint[];
BEGIN
    WITH visited AS (  -- tenants_pkey
        UPDATE tenants AS o SET
            count = o.count + n.taken, jobs = o.jobs - n.taken, running = o.running + n.taken,
            awake = NOT (n.stops OR n.until > p_now OR n.rests), at_limit = n.stops,
            full_at = CASE WHEN n.taken * n.every > 0 THEN greatest(o.full_at, p_now) + n.taken * n.every ELSE o.full_at END,
            wake_at = CASE WHEN NOT n.stops AND n.until > p_now AND n.until < 9007199254740991 THEN n.until END
        FROM unnest(p_visits) AS n WHERE o.tid = ANY (ARRAY[n.tid]) RETURNING o.wake_at, o.tid, n.rests
    )
    SELECT min(o.wake_at), array_agg(o.tid) FILTER (WHERE o.rests) INTO v_wake, v_resting FROM visited AS o;
    IF v_resting IS NOT NULL THEN
        v_wake := least(v_wake, rest(turn, gates, p_now, v_resting));
    END IF;
    RETURN v_wake;
END $$;

-- Jobs of these tasks were taken; what their rates allow after that.
CREATE FUNCTION spend_rates(p_now bigint, p_qid integer, p_tasks text[]) RETURNS task_gates
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE task_rules AS k SET full_at = greatest(k.full_at, p_now) + n.jobs * k.every  -- task_rules_pkey
    FROM (SELECT m.task, count(*) AS jobs FROM unnest(p_tasks) AS m (task) GROUP BY m.task) AS n
    WHERE k.qid = p_qid AND k.task = ANY (ARRAY[n.task]) AND k.every IS NOT NULL;
    RETURN closed_tasks(p_now, p_qid);
END $$;

-- What was passed over may be had by another claim: these tenants wake then, if they sleep; when the first of them does.
CREATE FUNCTION wake_passed(p_visits visit[]) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE tenants AS o SET wake_at = least(o.wake_at, n.passed_at)  -- tenants_pkey
    FROM (SELECT m.tid, min(m.passed_at) AS passed_at FROM unnest(p_visits) AS m GROUP BY m.tid) AS n
    WHERE o.tid = ANY (ARRAY[n.tid]) AND NOT o.awake AND NOT o.at_limit;
    RETURN (SELECT min(n.passed_at) FROM unnest(p_visits) AS n);
END $$;

-- Lease jobs of a governed queue: up to ``p_most``, visit by visit. Those that all begin with the same count come in one statement, unless the
-- rate of a task is shared between them. ``p_stopped``: the tenants of jobs of this queue that have just stopped running, which nobody was told
-- yet. Answers as ``claim_v1`` does; the last row also tells how many bytes were taken (``timeout``).
CREATE FUNCTION claim_turns(
    p_now bigint, p_qid integer, p_name text, p_pause bigint, p_holder text, p_most bigint, p_lease_for bigint, p_want smallint,
    p_lost_below integer, p_max_bytes bigint, p_dying boolean, p_suspects boolean, p_ord integer, p_stopped bigint[]
) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = on SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_bound integer := coalesce(p_lost_below, 2147483647);
    v_left bigint := p_most;
    v_room bigint;
    v_bytes bigint := p_max_bytes;
    v_ord integer := p_ord;
    v_places tid[];
    v_owners bigint[];
    v_visits visit[];
    v_done visit[];
    v_some integer;
    v_alone bigint;
    v_chunks bigint;
    v_budget integer := 1000;
    v_moved integer;
    v_passed visit[] := '{}';
    v_next bigint := p_pause;
    s turn_scope := look_at_turns(p_now, p_qid, p_name, p_stopped);
    turn turns := s.turn;
    rule policies := s.rule;
    gates task_gates := s.gates;
    v_width bigint := p_most / rule.chunk + 4;
    v visit;
BEGIN
    IF p_stopped IS NOT NULL AND (s.ruled OR coalesce(rule.running, rule.holders, rule.tenant_running) IS NOT NULL) THEN
        RETURN QUERY SELECT w.* FROM waited_for(ARRAY[p_qid], p_stopped) AS q CROSS JOIN LATERAL woken(q) AS w;
    END IF;
    LOOP
        v_room := least(v_left, rule.running - turn.running, allowed(rule.every, rule.burst, turn.full_at, p_now));
        EXIT WHEN v_room <= 0 OR v_bytes <= 0;
        v_visits := next_tenants(
            turn, rule, p_now, p_holder, s.ruled, CASE WHEN gates.rated IS NULL THEN least(v_width, v_room) ELSE 1 END, v_room, v_alone, v_chunks
        );
        IF rule.holders IS NULL THEN
            turn.low_count := coalesce((v_visits[1]).count, 9223372036854775807);
            turn.low_since := coalesce((v_visits[1]).since, turn.low_since);
            turn.low_tenant := coalesce((v_visits[1]).tenant, '');
        END IF;
        EXIT WHEN v_visits = '{}';
        IF s.ripe AND v_budget > 0 THEN  -- these first, then all over again
            v_moved := promote_turns(p_now, v_visits, gates.closed, v_budget);
            v_budget := v_budget - v_moved;
            CONTINUE WHEN v_moved > 0;
        END IF;
        v_places := '{}';
        v_owners := '{}';
        v_done := '{}';
        FOREACH v IN ARRAY first_jobs(rule, gates, p_now, v_visits, v_room, v_bound) LOOP
            EXIT WHEN v_room <= 0 OR v_bytes <= 0;
            IF v.bytes > v_bytes THEN
                v := fitting(v, v_bytes);
            END IF;
            v_bytes := v_bytes - v.bytes;
            v.rests := v.cost > 0 AND v.taken < least(v.most, v_room) AND v_bytes > 0;
            turn.round := greatest(turn.round, v.count + greatest((v.taken - (NOT v.rests)::integer) / rule.chunk, 0) * rule.chunk);
            v_places := v_places || v.places[1:v.taken];
            v_owners := v_owners || array_fill(v.tid, ARRAY[v.taken]);
            v_room := v_room - v.taken;
            v_left := v_left - v.taken;
            IF p_suspects AND v.cost > 0 THEN
                v.passed_at := passed_over(rule, gates, p_now, v, v_bound);
                v_passed := v_passed || CASE WHEN v.passed_at IS NOT NULL THEN ARRAY[v] END;
            END IF;
            IF p_dying AND v.cost > 0 THEN
                RETURN QUERY SELECT * FROM expire_v1(p_now, doomed(rule, gates, p_now, v));
            END IF;
            v_done := v_done || v;
        END LOOP;
        v_some := cardinality(v_places);
        IF v_some > 0 THEN
            RETURN QUERY SELECT * FROM take(p_now, p_qid, p_name, p_holder, p_lease_for, p_want, v_places, v_owners, v_ord);
            v_ord := v_ord + v_some;
            turn.running := turn.running + v_some;
            turn.full_at := greatest(turn.full_at, p_now) + v_some * rule.every;
            IF gates.rated IS NOT NULL THEN
                gates := spend_rates(p_now, p_qid, (v_done[1]).tasks[1:v_some]);
            END IF;
        END IF;
        turn.low_wake := least(turn.low_wake, end_visits(turn, gates, p_now, v_done));
        v_width := p_most;
        v_alone := NULL;
        v := v_done[1];
        IF v_left > 0 AND cardinality(v_done) = 1 AND gates.rated IS NULL AND v.cost > 0 AND NOT v.rests THEN
            v_chunks := alone_for(turn, rule, v.tid, v_left);
            v_alone := CASE WHEN v_chunks IS NOT NULL THEN v.tid END;
        END IF;
    END LOOP;
    IF v_passed <> '{}' THEN
        turn.low_wake := least(turn.low_wake, wake_passed(v_passed));
    END IF;
    UPDATE turns AS x SET round = turn.round, running = turn.running, full_at = coalesce(turn.full_at, 0),
        low_count = turn.low_count, low_since = turn.low_since, low_wake = turn.low_wake, low_tenant = turn.low_tenant
    WHERE x.qid = p_qid;
    IF v_left > 0 AND v_bytes > 0 THEN
        v_next := least(v_next, next_turn(p_now, rule, turn));
    END IF;
    RETURN NEXT (
        3, NULL, NULL, NULL, NULL, NULL, NULL, 0, CASE WHEN v_passed <> '{}' THEN choose(p_now, p_qid, p_holder, p_lease_for) ELSE 0 END, NULL,
        CASE WHEN v_left > 0 THEN CASE WHEN v_bytes <= 0 THEN 0 ELSE v_next - p_now END END,
        NULL, NULL, p_max_bytes - v_bytes, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, true
    )::claim_row;
END $$;

-- When the first of the tenants asleep wakes, or the queue's rate opens; not before now.
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

-- ``claim_v1`` where at least one of the queues is governed: each of these, and all others together, are given their even share,
-- then what others left, in the order in which they are named.
CREATE FUNCTION claim_parts(
    p_now bigint, p_holder text, p_queues text[], p_limit integer, p_lease_for bigint, p_want smallint, p_lost_below integer,
    p_max_bytes bigint, p_dying boolean, p_suspects boolean, p_pause bigint
) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_qids integer[];
    v_names text[];
    v_plain text[];
    v_left bigint := p_limit;
    v_bytes bigint := p_max_bytes;
    v_next bigint := p_pause;
    v_passed integer := 0;  -- 1: jobs were passed over, 2: and this holder is to make room for them
    v_plenty integer[] := '{}';
    v_ord integer := 0;
    v_share bigint;
    v_got integer;
    v_ids uuid[];
    v_behind boolean;
    c claim_row;
BEGIN
    -- The number of a part is that of its queue, and 0 for those that are not governed.
    SELECT array_agg(x.qid ORDER BY x.ord), array_agg(x.name ORDER BY x.ord) INTO v_qids, v_names FROM (
        SELECT CASE WHEN q.governed THEN q.qid ELSE 0 END AS qid, min(n.ord) AS ord, min(q.name) AS name
        FROM unnest(p_queues) WITH ORDINALITY AS n (name, ord) LEFT JOIN queues AS q ON q.name = n.name
        WHERE coalesce(q.paused_until, 0) <= p_now GROUP BY 1
    ) AS x;
    v_plain := ARRAY(
        SELECT q.name FROM queues AS q WHERE q.name = ANY (p_queues) AND q.paused_until <= p_now AND NOT q.governed
    );
    SELECT bool_or((hear_turns(p_now, q.qid)).behind) INTO v_behind
    FROM (SELECT n FROM unnest(v_qids) AS n WHERE n > 0 ORDER BY n) AS q (qid);
    FOR i IN 1..2 * coalesce(cardinality(v_qids), 0) LOOP
        EXIT WHEN v_left <= 0 OR v_bytes <= 0;
        IF i <= cardinality(v_qids) THEN
            v_share := ceil(v_left::numeric / (cardinality(v_qids) - i + 1));
        ELSE
            CONTINUE WHEN i - cardinality(v_qids) <> ALL (v_plenty);
            v_share := v_left;
        END IF;
        v_got := 0;
        v_ids := '{}';
        IF v_qids[(i - 1) % cardinality(v_qids) + 1] = 0 THEN
            FOR c IN
                SELECT * FROM claim_v1(
                    p_now, p_holder, v_plain, v_share::integer, p_lease_for, p_want, p_lost_below, v_bytes, false
                ) AS x ORDER BY x.kind, x.priority, x.run_at, x.id
            LOOP
                IF c.kind = 1 THEN
                    v_got := v_got + 1;
                    v_ids := v_ids || c.id;
                    c.ord := v_ord + v_got;
                    RETURN NEXT c;
                ELSIF c.kind = 3 THEN
                    v_passed := greatest(v_passed, c.lost);
                    v_next := least(v_next, p_now + c.run_at);
                ELSE
                    RETURN NEXT c;
                END IF;
            END LOOP;
            v_bytes := v_bytes - coalesce((SELECT sum(l.size) FROM leased AS l WHERE l.id = ANY (v_ids)), 0);  -- leased_pkey
        ELSE
            FOR c IN
                SELECT * FROM claim_turns(
                    p_now, v_qids[(i - 1) % cardinality(v_qids) + 1], v_names[(i - 1) % cardinality(v_qids) + 1], NULL, p_holder, v_share,
                    p_lease_for, p_want, p_lost_below, v_bytes, p_dying, p_suspects, v_ord, NULL
                )
            LOOP
                IF c.kind = 3 THEN
                    v_passed := greatest(v_passed, c.lost);
                    v_bytes := v_bytes - c.timeout;
                ELSE
                    v_got := v_got + (c.kind = 1)::integer;
                    RETURN NEXT c;
                END IF;
            END LOOP;
        END IF;
        v_ord := v_ord + v_got;
        v_left := v_left - v_got;
        IF v_got = v_share THEN
            v_plenty := v_plenty || i;
        END IF;
    END LOOP;
    IF v_left > 0 THEN
        FOR i IN 1..coalesce(cardinality(v_qids), 0) LOOP
            IF v_qids[i] > 0 THEN
                SELECT least(v_next, next_turn(p_now, x, t)) INTO v_next
                FROM policies AS x CROSS JOIN turns AS t WHERE x.queue = v_names[i] AND t.qid = v_qids[i];
            END IF;
        END LOOP;
    END IF;
    RETURN NEXT (
        3, NULL, NULL, NULL, NULL, NULL, NULL, 0, v_passed, NULL,
        CASE WHEN v_left > 0 THEN CASE WHEN v_bytes <= 0 OR v_behind THEN 0 ELSE v_next - p_now END END,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, true
    )::claim_row;
END $$;

-- What has been committed before is as safe as commits are, when this has been. A commit waits for the disk only where something was
-- written, if only a word for nobody.
CREATE FUNCTION seal_v1() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_told pg_lsn := pg_logical_emit_message(true, 'headrace', '');  -- an expression, for which no executor is started
BEGIN
END $$;
