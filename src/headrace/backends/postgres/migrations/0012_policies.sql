-- How many jobs wait (AVAILABLE or PAUSED) in these queues and in all, and how many deltas are not added up. In one
-- statement, as others may be adding up. If there are many deltas, the caller adds them up.
CREATE FUNCTION waiting_in(p_qids integer[], OUT jobs bigint[], OUT whole bigint, OUT deltas bigint) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = on SET enable_hashjoin = on AS $$
BEGIN
    WITH recent AS MATERIALIZED (
        SELECT d.qid, sum(d.jobs) FILTER (WHERE d.state IN (0, 2)) AS jobs, count(*) AS deltas FROM deltas AS d GROUP BY d.qid
    ), known AS (  -- totals_pkey
        SELECT n.ord, coalesce(r.jobs, 0) + (
            SELECT coalesce(sum(t.jobs), 0) FROM totals AS t WHERE t.qid = n.qid AND t.state IN (0, 2)
        ) AS jobs
        FROM unnest(p_qids) WITH ORDINALITY AS n (qid, ord) LEFT JOIN recent AS r ON r.qid = n.qid
    )
    SELECT ARRAY(SELECT k.jobs::bigint FROM known AS k ORDER BY k.ord), coalesce(sum(r.jobs), 0) + (
        SELECT coalesce(sum(t.jobs), 0) FROM totals AS t WHERE t.qid = -1 AND t.state IN (0, 2)
    ), coalesce(sum(r.deltas), 0)
    INTO jobs, whole, deltas FROM recent AS r;
END $$;

-- How many jobs may wait in these queues, and how many more there is room for; NULL where nothing limits them. The same
-- of the store. Transactions that do not last (see ``p_bound`` of ``insert_v1``) go one after the other.
CREATE FUNCTION rooms_of(
    p_qids integer[], p_bound boolean, OUT depths bigint[], OUT rooms bigint[], OUT depth bigint, OUT room bigint
) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    w record;
BEGIN
    depth := (SELECT p.depth FROM policies AS p WHERE p.queue = '');  -- policies_pkey
    depths := ARRAY(
        SELECT p.depth FROM unnest(p_qids) WITH ORDINALITY AS n (qid, ord)
        LEFT JOIN policies AS p ON p.queue = ANY (ARRAY[name_of(n.qid)]) ORDER BY n.ord
    );
    IF NOT p_bound THEN  -- locks_pkey; the store first
        PERFORM 1 FROM locks AS l WHERE l.name = ANY (ARRAY(
            SELECT 'depth' WHERE depth IS NOT NULL
            UNION SELECT 'depth ' || (n.qid & 63) FROM unnest(p_qids, depths) AS n (qid, depth) WHERE n.depth IS NOT NULL
        )) ORDER BY l.name FOR NO KEY UPDATE;
    END IF;
    IF depth IS NULL AND array_remove(depths, NULL) = '{}' THEN
        rooms := depths;
        RETURN;
    END IF;
    w := waiting_in(p_qids);
    rooms := ARRAY(SELECT x.depth - x.jobs FROM unnest(depths, w.jobs) WITH ORDINALITY AS x (depth, jobs, ord) ORDER BY x.ord);
    room := depth - w.whole;
    IF w.deltas > 1000 AND NOT p_bound THEN
        PERFORM fold_deltas();
    END IF;
END $$;

-- Before rows are copied, ``p_jobs`` for each of these queues: the clock, the numbers of the queues, and whether the rows
-- may be copied. They may if they all fit, and no queue is governed.
CREATE FUNCTION begin_bulk(p_at bigint, p_names text[], p_jobs bigint[], OUT now bigint, OUT qids integer[], OUT fits boolean)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_rooms record;
BEGIN
    now := coalesce(p_at, now_us());
    qids := queue_ids(p_names);
    fits := true;
    IF EXISTS (SELECT 1 FROM policies AS p WHERE p.queue = ANY (p_names || ''::text)) THEN  -- policies_pkey
        v_rooms := rooms_of(qids, false);
        fits := NOT EXISTS (SELECT 1 FROM queues AS q WHERE q.qid = ANY (qids) AND q.governed) AND (  -- queues_pkey
            SELECT bool_or(n.jobs > n.room) IS NOT TRUE AND (sum(n.jobs) > v_rooms.room) IS NOT TRUE
            FROM unnest(p_jobs, v_rooms.rooms) AS n (jobs, room)
        );
    END IF;
END $$;

-- The numbers of the rows that fit; NULL if all do. A row that will not become a job takes no room, and an
-- operation needs none in the store. ``rooms``, per queue without room: two bigints, how many may wait and how many do;
-- a byte more if the store is full.
CREATE FUNCTION fitting(
    p_now bigint, p_qids integer[], p_rows job_row[], p_bound boolean, OUT fit integer[], OUT rooms bytea[]
) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_rooms bigint[];
    v_depths bigint[];
    v_room bigint;
    v_depth bigint;
    v_full boolean;
    v_some integer[] := '{}';
    v_ids uuid[] := '{}';
    v_keys text[] := '{}';
    r record;
BEGIN
    SELECT n.depths, n.rooms, n.depth, n.room INTO v_depths, v_rooms, v_depth, v_room FROM rooms_of(p_qids, p_bound) AS n;
    SELECT bool_or(c.jobs > v_rooms[c.queue]) OR sum(c.jobs) > v_room INTO v_full
    FROM (SELECT n.queue, count(*) AS jobs FROM unnest(p_rows) AS n GROUP BY n.queue) AS c;
    IF v_full IS NOT TRUE THEN
        RETURN;
    END IF;
    FOR r IN
        SELECT
            n.ordinality::integer AS ord, n.id, n.queue, n.queue || ' ' || n.key AS key,
            EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = n.id) OR EXISTS (  -- jobs_pkey, keys_pkey
                SELECT 1 FROM keys AS k WHERE k.qid = p_qids[n.queue] AND k.key = n.key
                    AND (
                        k.held_until IS NULL AND NOT (
                            coalesce(n.key_until, 0) = 2 AND EXISTS (SELECT 1 FROM leased AS l WHERE l.id = k.id)
                        )
                        OR k.held_until > p_now AND coalesce(n.key_until, 0) = 0 OR k.failed AND n.hold_failed
                    )
            ) AS known
        FROM unnest(p_rows) WITH ORDINALITY AS n ORDER BY n.ordinality
    LOOP
        IF r.known OR r.id = ANY (v_ids) OR r.key = ANY (v_keys) THEN
            v_some := v_some || r.ord;
        ELSIF (v_rooms[r.queue] <= 0) IS NOT TRUE AND (
            (v_room <= 0) IS NOT TRUE OR v_depth > 0 AND name_of(p_qids[r.queue]) = 'headrace.operations'
        ) THEN
            v_some := v_some || r.ord;
            v_rooms[r.queue] := v_rooms[r.queue] - 1;
            v_room := v_room - 1;
            v_ids := v_ids || r.id;
            v_keys := v_keys || r.key;
        END IF;
    END LOOP;
    IF cardinality(v_some) = cardinality(p_rows) THEN
        RETURN;
    END IF;
    fit := v_some;
    rooms := ARRAY(
        SELECT CASE WHEN v_room <= 0 THEN int8send(v_depth) || int8send(v_depth - v_room) || '\x01'::bytea
            ELSE int8send(n.depth) || int8send(n.depth - n.room) END
        FROM unnest(v_depths, v_rooms) WITH ORDINALITY AS n (depth, room, ord) ORDER BY n.ord
    );
END $$;

-- Make a queue governed, if it is not, and lock its turns. Running jobs are counted at once, except those that somebody
-- is ending.
CREATE FUNCTION govern(p_queue text) RETURNS integer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_qid integer := (queue_ids(ARRAY[p_queue]))[1];
BEGIN
    INSERT INTO policies (queue) VALUES (p_queue) ON CONFLICT DO NOTHING;
    INSERT INTO turns (qid) VALUES (v_qid) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        UPDATE queues AS q SET governed = true WHERE q.qid = v_qid;
        WITH held AS MATERIALIZED (
            SELECT l.id FROM leased AS l WHERE l.qid = v_qid AND l.tid IS NULL FOR UPDATE SKIP LOCKED
        ), counted AS (
            UPDATE leased AS l SET tid = tid_of(v_qid, j.tenant)
            FROM held AS h JOIN jobs AS j ON j.id = ANY (ARRAY[h.id]) WHERE l.id = ANY (ARRAY[h.id])
            RETURNING l.tid, j.tenant
        ), known AS (
            INSERT INTO tenants (tid, qid, tenant, running)
            SELECT c.tid, v_qid, c.tenant, count(*) FROM counted AS c GROUP BY c.tid, c.tenant
        )
        UPDATE turns AS t SET running = (SELECT count(*) FROM counted) WHERE t.qid = v_qid;
    ELSE
        PERFORM 1 FROM turns AS t WHERE t.qid = v_qid FOR NO KEY UPDATE;
    END IF;
    RETURN v_qid;
END $$;

-- Read ``news``, then wake a tenant, because its rules have changed. The turns are locked.
CREATE FUNCTION wake_tenant(p_now bigint, p_qid integer, p_tid bigint) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM hear_turns(p_now, p_qid);
    UPDATE tenants AS o SET at_limit = false, wake_at = least(o.wake_at, p_now) WHERE o.tid = p_tid AND NOT o.awake;  -- tenants_pkey
    UPDATE turns AS t SET low_wake = least(t.low_wake, p_now) WHERE t.qid = p_qid;
END $$;

-- The same for all tenants: the first at once, the others with the claims that follow. ``p_rates``: the rate of tenants
-- has changed, so their burst is saved up.
CREATE FUNCTION wake_all(p_now bigint, p_qid integer, p_rates boolean) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    turn turns := hear_turns(p_now, p_qid);
BEGIN
    turn.stir_rates := p_rates OR turn.stir_rates AND turn.stir_from IS NOT NULL;
    turn.stir_from := -1;
    turn.stir_at := p_now;
    PERFORM stir(turn);
END $$;

-- Replace the policy of a queue if its version is the expected one. Returns whether it was.
CREATE FUNCTION save_policy_v1(
    p_at bigint, p_queue text, p_expect bigint, p_running bigint, p_every bigint, p_burst bigint, p_tenant_running bigint,
    p_tenant_every bigint, p_tenant_burst bigint, p_tasks text[], p_task_everys bigint[], p_task_bursts bigint[],
    p_tenant_workers bigint, p_tenant_batch bigint, p_ageing bigint, p_group_running bigint, p_depth bigint, p_governs boolean
) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_qid integer;
    old policies;
BEGIN
    SELECT p.* INTO old FROM policies AS p WHERE p.queue = p_queue FOR UPDATE;
    IF coalesce(old.version, 0) <> p_expect THEN
        RETURN false;
    END IF;
    INSERT INTO policies AS p (
        queue, version, running, every, burst, tenant_running, tenant_every, tenant_burst, tenant_workers, tenant_batch,
        ageing, group_running, depth
    ) VALUES (
        p_queue, p_expect + 1, p_running, p_every, p_burst, p_tenant_running, p_tenant_every, p_tenant_burst,
        p_tenant_workers, p_tenant_batch, p_ageing, p_group_running, p_depth
    ) ON CONFLICT (queue) DO UPDATE SET
        version = excluded.version, running = excluded.running, every = excluded.every, burst = excluded.burst,
        tenant_running = excluded.tenant_running, tenant_every = excluded.tenant_every, tenant_burst = excluded.tenant_burst,
        tenant_workers = excluded.tenant_workers, tenant_batch = excluded.tenant_batch, ageing = excluded.ageing,
        group_running = excluded.group_running, depth = excluded.depth
    WHERE p.version = p_expect;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_qid := qid_of(p_queue);
    IF coalesce(old.group_running, 1) <> p_group_running THEN  -- before the turns, as everybody does
        PERFORM lock_all_groups();
    END IF;
    IF p_governs OR EXISTS (SELECT 1 FROM turns AS t WHERE t.qid = v_qid) THEN
        v_qid := govern(p_queue);
        PERFORM wake_all(v_now, v_qid, (old.tenant_every, old.tenant_burst) IS DISTINCT FROM (p_tenant_every, p_tenant_burst));
        PERFORM change_rates(v_qid, old, p_every, p_burst, p_tasks, p_task_everys, p_task_bursts);
        PERFORM forget_rules(v_now, v_qid);
    END IF;
    IF coalesce(old.group_running, 1) <> p_group_running THEN
        INSERT INTO looks (gid, qid) SELECT DISTINCT y.gid, v_qid FROM ready AS y WHERE y.gid IS NOT NULL AND y.qid = v_qid;
        PERFORM call_looks(ARRAY[v_qid]);
    END IF;
    RETURN true;
END $$;

-- New and changed rates of a queue and of its tasks start with their full burst.
CREATE FUNCTION change_rates(
    p_qid integer, old policies, p_every bigint, p_burst bigint, p_tasks text[], p_task_everys bigint[], p_task_bursts bigint[]
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    IF (old.every, old.burst) IS DISTINCT FROM (p_every, p_burst) THEN
        UPDATE turns AS t SET full_at = 0 WHERE t.qid = p_qid;
    END IF;
    UPDATE task_rules AS k SET every = NULL, burst = NULL, full_at = 0 WHERE k.qid = p_qid AND k.task <> ALL (p_tasks);
    INSERT INTO task_rules AS k (qid, task, every, burst)
    SELECT p_qid, n.task, n.every, n.burst FROM unnest(p_tasks, p_task_everys, p_task_bursts) AS n (task, every, burst)
    ON CONFLICT (qid, task) DO UPDATE SET every = excluded.every, burst = excluded.burst, full_at = CASE
        WHEN (k.every, k.burst) IS DISTINCT FROM (excluded.every, excluded.burst) THEN 0
        ELSE k.full_at
    END;
END $$;

-- Remove rules that say nothing, a bounded number at a time. Returns whether there may be more.
CREATE FUNCTION forget_rules(p_now bigint, p_qid integer) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    c_most CONSTANT integer := 1000;
    v_gone integer;
BEGIN
    DELETE FROM task_rules AS k WHERE k.qid = p_qid AND k.every IS NULL AND k.paused_until <= p_now;
    DELETE FROM tenant_rules AS u WHERE u.ctid = ANY (ARRAY(  -- tenant_rules_over
        SELECT o.ctid FROM tenant_rules AS o
        WHERE o.qid = p_qid AND o.every IS NULL AND o.running IS NULL AND o.paused_until <= p_now ORDER BY o.paused_until LIMIT c_most
    ));
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    RETURN v_gone = c_most;
END $$;

-- Up to which tenant and lane sweeps have looked. One sweeps at a time.
CREATE TABLE swept (
    tid bigint NOT NULL DEFAULT -1,
    lane bigint NOT NULL DEFAULT -1,
    sole boolean NOT NULL DEFAULT true CONSTRAINT swept_pkey PRIMARY KEY CHECK (sole)
);

-- Remove idle tenants and empty lanes among the next ones; and, each time this starts over, pauses that have ended.
-- Queues whose turns are locked are left for another time.
CREATE FUNCTION sweep_tenants_v1(
    p_at bigint, p_limit integer, p_dry boolean, OUT removed bigint, OUT bytes bigint, OUT kept bigint, OUT more boolean
) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_from swept;
    v_tids bigint[];
    v_lanes bigint[];
    v_idle bigint[];
    v_qid integer;
BEGIN
    removed := 0;
    bytes := 0;
    kept := 0;
    more := false;
    IF NOT p_dry AND NOT EXISTS (SELECT 1 FROM relay AS r WHERE r.until > now_us()) THEN
        DELETE FROM bells;  -- nobody listens
    END IF;
    INSERT INTO swept DEFAULT VALUES ON CONFLICT DO NOTHING;
    SELECT s.* INTO v_from FROM swept AS s FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_tids := ARRAY(SELECT o.tid FROM tenants AS o WHERE o.tid > v_from.tid ORDER BY o.tid LIMIT p_limit);  -- tenants_pkey
    v_lanes := ARRAY(SELECT l.lane FROM lanes AS l WHERE l.lane > v_from.lane ORDER BY l.lane LIMIT p_limit);  -- lanes_pkey
    more := cardinality(v_tids) = p_limit OR cardinality(v_lanes) = p_limit;
    FOR v_qid IN
        SELECT t.qid FROM turns AS t WHERE t.qid = ANY (ARRAY(
            SELECT o.qid FROM unnest(v_tids) AS n (tid) JOIN tenants AS o ON o.tid = ANY (ARRAY[n.tid])
            UNION SELECT l.qid FROM unnest(v_lanes) AS n (lane) JOIN lanes AS l ON l.lane = ANY (ARRAY[n.lane])
            UNION SELECT g.qid FROM turns AS g WHERE v_from.tid < 0 AND (  -- tenant_rules_over
                SELECT min(u.paused_until) FROM tenant_rules AS u WHERE u.qid = g.qid AND u.every IS NULL AND u.running IS NULL
            ) <= v_now
            UNION SELECT k.qid FROM task_rules AS k WHERE v_from.tid < 0 AND k.every IS NULL AND k.paused_until <= v_now
        )) ORDER BY t.qid FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        CONTINUE WHEN (hear_turns(v_now, v_qid)).behind;
        v_idle := ARRAY(
            SELECT o.tid FROM unnest(v_tids) AS n (tid) JOIN tenants AS o ON o.tid = ANY (ARRAY[n.tid])
            WHERE o.qid = v_qid AND o.jobs <= 0 AND o.running <= 0 AND o.full_at <= v_now AND NOT o.awake
                AND NOT has_jobs(o.tid)
        );
        removed := removed + cardinality(v_idle);
        IF NOT p_dry THEN
            DELETE FROM tenants AS o WHERE o.tid = ANY (v_idle);
            DELETE FROM lanes AS l WHERE l.lane = ANY (v_lanes) AND l.qid = v_qid
                AND NOT EXISTS (SELECT 1 FROM ready AS y WHERE y.lane = ANY (ARRAY[l.lane, l.lane + 1]));
            more := forget_rules(v_now, v_qid) OR more;
        END IF;
    END LOOP;
    IF NOT p_dry THEN
        UPDATE swept AS s SET
            tid = CASE WHEN cardinality(v_tids) = p_limit THEN v_tids[p_limit] ELSE -1 END,
            lane = CASE WHEN cardinality(v_lanes) = p_limit THEN v_lanes[p_limit] ELSE -1 END;
    END IF;
END $$;

-- Replace the limit of a tenant in a queue. Without bounds, it is removed.
CREATE FUNCTION limit_tenant_v1(p_at bigint, p_queue text, p_tenant text, p_running bigint, p_every bigint, p_burst bigint)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_qid integer := govern(p_queue);
    v_tid bigint := tid_of(v_qid, p_tenant);
    v_changed boolean;
BEGIN
    PERFORM wake_tenant(v_now, v_qid, v_tid);
    SELECT (u.every, u.burst) IS DISTINCT FROM (p_every, p_burst) INTO v_changed FROM tenant_rules AS u WHERE u.tid = v_tid;
    INSERT INTO tenant_rules AS u (tid, qid, tenant, running, every, burst)
    VALUES (v_tid, v_qid, p_tenant, p_running, p_every, p_burst)
    ON CONFLICT (tid) DO UPDATE SET running = excluded.running, every = excluded.every, burst = excluded.burst;
    IF coalesce(v_changed, p_every IS NOT NULL) THEN
        UPDATE tenants AS o SET full_at = 0 WHERE o.tid = v_tid;
    END IF;
    PERFORM forget_rules(v_now, v_qid);
END $$;

-- Pause a queue, or a tenant or task in it, or resume it.
CREATE FUNCTION pause_v1(p_at bigint, p_queue text, p_tenant text, p_task text, p_paused boolean, p_lasts bigint)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_until CONSTANT bigint := CASE WHEN NOT p_paused THEN 0 ELSE coalesce(v_now + p_lasts, 9007199254740991) END;
    v_qid integer;
BEGIN
    IF p_tenant IS NULL AND p_task IS NULL THEN
        v_qid := (queue_ids(ARRAY[p_queue]))[1];
        UPDATE queues AS q SET paused_until = v_until WHERE q.qid = v_qid;
        RETURN;
    END IF;
    v_qid := govern(p_queue);
    IF p_tenant IS NOT NULL THEN
        PERFORM wake_tenant(v_now, v_qid, tid_of(v_qid, p_tenant));
        INSERT INTO tenant_rules AS u (tid, qid, tenant, paused_until)
        VALUES (tid_of(v_qid, p_tenant), v_qid, p_tenant, v_until)
        ON CONFLICT (tid) DO UPDATE SET paused_until = excluded.paused_until;
    ELSE
        PERFORM wake_all(v_now, v_qid, false);
        INSERT INTO task_rules AS k (qid, task, paused_until) VALUES (v_qid, p_task, v_until)
        ON CONFLICT (qid, task) DO UPDATE SET paused_until = excluded.paused_until;
    END IF;
    PERFORM forget_rules(v_now, v_qid);
END $$;

-- The policies of these queues, or of all, by name, and what they hold back.
CREATE FUNCTION policies_v1(p_at bigint, p_queues text[])
RETURNS TABLE (
    queue text, version bigint, running bigint, every bigint, burst bigint, tenant_running bigint, tenant_every bigint,
    tenant_burst bigint, tenant_workers bigint, tenant_batch bigint, ageing bigint, group_running bigint, depth bigint, governed boolean,
    opens_at bigint, tasks text[], task_everys bigint[], task_bursts bigint[], task_opens bigint[], task_pauses bigint[]
) LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_now CONSTANT bigint := clock(p_at);
BEGIN
    RETURN QUERY
    SELECT
        p.queue, p.version, p.running, p.every, p.burst, p.tenant_running, p.tenant_every, p.tenant_burst, p.tenant_workers, p.tenant_batch,
        p.ageing, p.group_running, p.depth, t.qid IS NOT NULL,
        CASE WHEN allowed(p.every, p.burst, t.full_at, v_now) = 0 THEN t.full_at - (p.burst - 1) * p.every END,
        k.tasks, k.everys, k.bursts, k.opens, k.pauses
    FROM policies AS p LEFT JOIN queues AS q ON q.name = p.queue LEFT JOIN turns AS t ON t.qid = q.qid
    CROSS JOIN LATERAL (
        SELECT
            array_agg(k.task::text) AS tasks, array_agg(k.every) AS everys, array_agg(k.burst) AS bursts,
            array_agg(CASE WHEN allowed(k.every, k.burst, k.full_at, v_now) = 0 THEN k.full_at - (k.burst - 1) * k.every END) AS opens,
            array_agg(CASE WHEN k.paused_until > v_now THEN k.paused_until END) AS pauses
        FROM (SELECT k.* FROM task_rules AS k WHERE k.qid = t.qid ORDER BY k.task) AS k
    ) AS k
    WHERE p_queues IS NULL OR p.queue = ANY (p_queues)
    ORDER BY p.queue COLLATE "C";
END $$;

-- What ``news`` tells of tenants, for a look: the jobs that came, that stopped running, and that went in another way. Of
-- news that no claim has read for long, a bounded number; and of jobs that are not in lanes yet.
CREATE FUNCTION unheard(p_qid integer) RETURNS TABLE (tid bigint, tenant text, came bigint, stopped bigint, went bigint)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    c_most CONSTANT bigint := 5000;
    v_entries bigint := 0;
    v_upto bigint;
    r record;
BEGIN
    FOR r IN SELECT n.seq, cardinality(n.tids) AS entries FROM news AS n WHERE n.qid = p_qid ORDER BY n.qid, n.seq LOOP  -- news_qid
        v_upto := r.seq;
        v_entries := v_entries + r.entries;
        EXIT WHEN v_entries >= c_most;
    END LOOP;
    RETURN QUERY
    SELECT x.tid, max(x.tenant), coalesce(sum(x.jobs) FILTER (WHERE x.kind = 1), 0)::bigint,
        coalesce(sum(x.jobs) FILTER (WHERE x.kind = 2), 0)::bigint, coalesce(sum(x.jobs) FILTER (WHERE x.kind = 3), 0)::bigint
    FROM (
        SELECT n.kind, e.tid, e.jobs, e.tenant FROM news AS n  -- news_qid
        CROSS JOIN LATERAL unnest(n.tids, n.jobs, n.tenants) AS e (tid, jobs, tenant) WHERE n.qid = p_qid AND n.seq <= v_upto
        UNION ALL
        SELECT 1, tid_of(p_qid, j.tenant), count(*), j.tenant  -- ready_line, ready_later, jobs_pkey
        FROM (
            (SELECT y.id FROM ready AS y WHERE y.qid = p_qid AND y.lane IS NULL LIMIT 1000)
            UNION ALL (SELECT y.id FROM ready AS y WHERE y.qid = p_qid AND y.lane = 0 LIMIT 1000)
        ) AS y JOIN jobs AS j ON j.id = y.id GROUP BY j.tenant
    ) AS x GROUP BY x.tid;
END $$;

-- The tenants of a governed queue, by name; or those with these names. What is unheard is counted in, and left for claims
-- to read. Only those of which there is more than a name.
CREATE FUNCTION tenants_v1(p_at bigint, p_queue text, p_names text[], p_after text, p_limit integer)
RETURNS TABLE (
    tenant text, waiting bigint, running bigint, own boolean, most bigint, every bigint, burst bigint, paused_until bigint,
    opens_at bigint, workers text[]
) LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_qid integer := (SELECT q.qid FROM queues AS q WHERE q.name = p_queue AND q.governed);
    v_round bigint := (SELECT t.round FROM turns AS t WHERE t.qid = v_qid);
    v_after CONSTANT text := coalesce(p_after, '');
    rule policies;
BEGIN
    IF v_qid IS NULL THEN
        RETURN;
    END IF;
    SELECT p.* INTO rule FROM policies AS p WHERE p.queue = p_queue;
    RETURN QUERY
    WITH told AS MATERIALIZED (
        SELECT u.* FROM unheard(v_qid) AS u
    ), named AS MATERIALIZED (  -- tenant_names_pkey, tenant_rules_name; some of those that are told of may have nothing left
        SELECT tid_of(v_qid, n) AS tid, n COLLATE "C" AS name FROM unnest(p_names) AS n WHERE n > v_after COLLATE "C" OR p_after IS NULL
        UNION (
            SELECT n.tid, n.tenant FROM tenant_names AS n
            WHERE p_names IS NULL AND n.qid = v_qid AND (n.tenant > v_after OR p_after IS NULL)
            ORDER BY n.qid, n.tenant LIMIT p_limit + (SELECT count(*) FROM told AS d WHERE d.went + d.stopped > 0)
        )
        UNION (
            SELECT u.tid, u.tenant FROM tenant_rules AS u
            WHERE p_names IS NULL AND u.qid = v_qid AND (u.tenant > v_after OR p_after IS NULL)
            ORDER BY u.qid, u.tenant LIMIT p_limit
        )
        UNION SELECT d.tid, d.tenant COLLATE "C" FROM told AS d
            WHERE p_names IS NULL AND d.came > d.went AND (d.tenant COLLATE "C" > v_after OR p_after IS NULL)
    ), wanted AS (  -- tenants_pkey, tenant_rules_pkey
        SELECT
            x.tid, x.name::text, u.running AS most, u.every, u.burst, u.paused_until, o.full_at,
            coalesce(u.every, rule.tenant_every) AS pace, CASE WHEN u.every IS NULL THEN rule.tenant_burst ELSE u.burst END AS jump,
            coalesce(o.jobs, 0) + coalesce(d.came - d.went, 0) AS waiting,
            coalesce(o.running, 0) - coalesce(d.stopped, 0) AS running
        FROM named AS x LEFT JOIN told AS d ON d.tid = x.tid
        LEFT JOIN tenants AS o ON o.tid = ANY (ARRAY[x.tid]) LEFT JOIN tenant_rules AS u ON u.tid = ANY (ARRAY[x.tid])
        WHERE u.tid IS NOT NULL OR o.tid IS NOT NULL AND d.tid IS NULL OR o.count > v_round OR o.full_at > v_now
            OR coalesce(o.jobs, 0) + d.came > d.went OR coalesce(o.running, 0) > d.stopped OR d.tid IS NOT NULL AND has_jobs(x.tid)
        ORDER BY x.name LIMIT p_limit
    )
    SELECT
        n.name, greatest(n.waiting, 0)::bigint, greatest(n.running, 0)::bigint, n.every IS NOT NULL OR n.most IS NOT NULL,
        n.most, n.every, n.burst, CASE WHEN n.paused_until > v_now THEN n.paused_until END,
        CASE WHEN allowed(n.pace, n.jump, n.full_at, v_now) = 0 THEN n.full_at - (n.jump - 1) * n.pace END,
        ARRAY(  -- leased_tenant, workers_pkey
            SELECT w.worker FROM holders_of(n.tid) AS h
            JOIN workers AS w ON w.holder = ANY (ARRAY[h]) AND w.listed_until > v_now ORDER BY w.worker COLLATE "C"
        )
    FROM wanted AS n
    ORDER BY n.name COLLATE "C";
END $$;

-- The called jobs of a group, and how many wait. What was left to be looked at is looked at first.
CREATE FUNCTION group_v1(p_queue text, p_group text, p_cap integer, OUT called uuid[], OUT waiting bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_qid integer := qid_of(p_queue);
    v_gid bigint := gid_of(v_qid, p_group);
BEGIN
    PERFORM lock_groups(ARRAY[v_gid]);
    PERFORM call_looks(ARRAY[v_qid]);
    called := ARRAY(  -- leased_group, ready_called
        SELECT l.id FROM leased AS l WHERE l.gid = v_gid
        UNION ALL SELECT y.id FROM ready AS y WHERE y.gid = v_gid AND coalesce(y.lane, 0) >= 0 ORDER BY 1
    );
    SELECT count(*) INTO waiting FROM (  -- ready_group
        SELECT 1 FROM ready AS y WHERE y.gid = v_gid AND y.lane < 0 LIMIT p_cap
    ) AS few;
END $$;
