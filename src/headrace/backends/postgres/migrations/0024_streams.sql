-- For a store whose claims are answered by windows in Valkey (``backends/streams``). A job that such a window has given
-- out stays in ``ready``: its lease is in Valkey. It comes into ``leased`` only when somebody asks for it here, and most
-- jobs complete before.
--
-- A delivery has an epoch, as a lease has. It is good while the row of the job is in ``ready`` with a lower epoch, and
-- while the epoch is not below the floor. Everything that takes a job back stores its epoch, or moves the row; and when
-- Valkey has lost its memory, the floor is raised above all epochs that it has given out. The floor also says which
-- Valkey is in charge: whatever is asked or settled for a delivery names the floor that its Valkey has, and is refused
-- unless it is the one here.

-- One row. ``id``: what the keys of this store are named by. ``server``: the run of the Valkey that
-- is in charge, none before windows are used, and ``seen_at`` when somebody last saw it at work. ``raised_at``: when the
-- floor was last raised.
CREATE TABLE streams (
    one boolean NOT NULL CONSTRAINT streams_pkey PRIMARY KEY CHECK (one),
    id uuid NOT NULL,
    floor bigint NOT NULL,
    server text,
    seen_at bigint NOT NULL,
    raised_at bigint
);
INSERT INTO streams (one, id, floor, seen_at) VALUES (true, gen_random_uuid(), 0, 0);

-- Queues that a window gives out. No claim takes their jobs: ``look_around`` leaves them out. A claim holds a lock on the
-- table until its end, so ``open_queue_v1`` waits for those that did not see the queue here.
CREATE TABLE windowed (
    qid integer NOT NULL CONSTRAINT windowed_pkey PRIMARY KEY
);

-- What the keys in Valkey are named by. A copy of the store, in another schema or database, has another one.
CREATE FUNCTION name_streams_v1() RETURNS text LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (SELECT left(md5(concat_ws(' ', s.id, current_database(), current_schema())), 16) FROM streams AS s);
END $$;

-- The floor, and what it is to a Valkey that has this one, or none: ``ours``, as it is in charge; ``theirs``, as another
-- one has taken over and was seen at work within half a minute; or ``free`` to be taken over. Who stores a job asks without
-- a server, and no floor is raised before its transaction ends. That may last for a confined role, so it is told none.
CREATE FUNCTION in_charge_v1(p_at bigint, p_server text, p_floor bigint)
RETURNS TABLE (verdict text, floor bigint, raised_at bigint, now bigint) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_confined CONSTANT boolean := own_tenants() IS NOT NULL;
BEGIN
    IF NOT v_confined THEN
        LOCK TABLE streams IN ROW SHARE MODE;
    END IF;
    RETURN QUERY SELECT CASE
        WHEN p_floor > 0 AND s.server = p_server AND s.floor >= p_floor THEN 'ours'
        WHEN p_floor > 0 AND s.server <> p_server AND s.floor > p_floor AND s.seen_at > v_now - 30000000 THEN 'theirs'
        ELSE 'free'
    END, CASE WHEN p_server IS NOT NULL OR NOT v_confined THEN s.floor END, s.raised_at, v_now FROM streams AS s;
END $$;

-- The Valkey in charge is at work. Returns false if one with this floor is not.
CREATE FUNCTION watch_streams_v1(p_at bigint, p_floor bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
BEGIN
    UPDATE streams AS s SET seen_at = v_now WHERE s.floor = p_floor AND s.seen_at < v_now - 2000000;
    RETURN EXISTS (SELECT 1 FROM streams AS s WHERE s.floor = p_floor);
END $$;

-- A Valkey takes over, unless the floor is no longer what it saw: the floor is raised above all epochs given out. This waits
-- until nobody settles by the one before: who settles holds a lock on the table until the end of the transaction; who only
-- reads it does not count. A handler's transaction may last, and whoever settles meanwhile comes behind this call, so it soon
-- gives up, to be made again. The lock comes first: two that had written before would wait for each other. Valkey's clock
-- may be ahead by ten seconds.
CREATE FUNCTION raise_floor_v1(p_at bigint, p_server text, p_seen bigint) RETURNS TABLE (server text, floor bigint, raised_at bigint, now bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET lock_timeout = '200ms' AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
BEGIN
    LOCK TABLE streams IN EXCLUSIVE MODE;
    v_now := clock(p_at);
    UPDATE streams AS s SET
        floor = CASE WHEN s.server IS NULL THEN 1 ELSE greatest(s.floor + 1, v_now + 10000000) END,
        raised_at = CASE WHEN s.server IS NOT NULL THEN v_now END,
        server = p_server,
        seen_at = v_now
    WHERE s.floor = p_seen;
    RETURN QUERY SELECT s.server, s.floor, s.raised_at, v_now FROM streams AS s;
END $$;

-- Deliveries become leases in ``leased``, as far as they are good. ``p_floor``: of the Valkey that gave them out. ``p_left``:
-- how long each lasts from now on. Returns the ids of those.
CREATE FUNCTION take_over(p_now bigint, p_floor bigint, p_ids uuid[], p_epochs bigint[], p_holders text[], p_left bigint[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    v_floor bigint;
    v_taken uuid[];
BEGIN
    LOCK TABLE streams IN ROW SHARE MODE;
    v_floor := (SELECT s.floor FROM streams AS s WHERE s.floor = p_floor);
    WITH given AS MATERIALIZED (
        SELECT n.* FROM unnest(p_ids, p_epochs, p_holders, p_left) AS n (id, epoch, holder, rest) WHERE n.epoch >= v_floor ORDER BY n.id
    ), gone AS (  -- ready_pkey, one probe per id
        DELETE FROM ready AS y USING given AS n WHERE y.id = ANY (ARRAY[n.id]) AND y.epoch < n.epoch AND y.epoch > -n.epoch
        RETURNING y.*, n.epoch AS given_epoch, n.holder, n.rest
    ), held AS (
        INSERT INTO leased (lease_until, run_at, id, epoch, qid, attempt, lost, size, priority, keyed, begun, gid, holder, error)
        SELECT p_now + g.rest, g.run_at, g.id, g.given_epoch, g.qid, g.attempt, nullif(g.lost, 0), g.size, g.priority, g.keyed,
            nullif(g.epoch > 0, false), g.gid, g.holder, g.error
        FROM gone AS g
    ), counted AS (
        INSERT INTO deltas (qid, state, jobs) SELECT c.qid, x.state, x.sign * c.jobs
        FROM (SELECT g.qid, count(*) AS jobs FROM gone AS g GROUP BY g.qid) AS c
        CROSS JOIN (VALUES (0::smallint, -1), (1::smallint, 1)) AS x (state, sign)
    )
    SELECT array_agg(g.id) INTO v_taken FROM gone AS g;
    RETURN coalesce(v_taken, '{}');
END $$;
CREATE FUNCTION take_over_v1(p_at bigint, p_floor bigint, p_ids uuid[], p_epochs bigint[], p_holders text[], p_left bigint[]) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY SELECT n.id FROM unnest(take_over(clock(p_at), p_floor, p_ids, p_epochs, p_holders, p_left)) AS n (id);
END $$;

-- Deliveries that have completed, and nothing else changes: from ``ready`` straight to ``ended``. Returns the numbers of
-- those that it could not settle: jobs with a key, leases, and deliveries that are no longer good.
CREATE FUNCTION complete_given(
    p_now bigint, p_floor bigint, p_ids uuid[], p_epochs bigint[], p_results bytea[], p_result_ttls bigint[], p_keep boolean
) RETURNS integer[] LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_floor bigint;
    v_done integer[];
BEGIN
    LOCK TABLE streams IN ROW SHARE MODE;
    v_floor := (SELECT s.floor FROM streams AS s WHERE s.floor = p_floor);
    WITH gone AS (  -- ready_pkey, one probe per id
        DELETE FROM ready AS y
        USING unnest(p_ids, p_epochs, p_results, p_result_ttls) WITH ORDINALITY AS n (id, epoch, result, ttl, ord)
        WHERE y.id = ANY (ARRAY[n.id]) AND y.epoch < n.epoch AND y.epoch > -n.epoch AND n.epoch >= v_floor AND NOT y.keyed AND y.gid IS NULL
        RETURNING y.*, n.epoch AS given_epoch, n.ord, n.ttl, CASE WHEN n.ttl > 0 THEN n.result END AS result
    ), kept AS (
        INSERT INTO ended (
            finished_at, held_until, run_at, id, qid, epoch, attempt, lost, size, state, priority, keyed, reason, error, result
        )
        SELECT
            p_now, p_now + g.ttl, g.run_at, g.id, g.qid, g.given_epoch, g.attempt, NULL,
            g.size + coalesce(octet_length(g.result), 0), 3, g.priority, false, '', g.error, g.result
        FROM gone AS g WHERE p_keep
    ), forgotten AS (  -- jobs_pkey
        DELETE FROM jobs AS j USING gone AS g WHERE NOT p_keep AND j.id = ANY (ARRAY[g.id])
    ), unpatched AS (  -- patches_pkey
        DELETE FROM patches AS c USING gone AS g WHERE NOT p_keep AND c.id = ANY (ARRAY[g.id])
    ), counted AS (
        INSERT INTO deltas (qid, state, jobs, bytes)
        SELECT c.qid, s.state, s.sign * c.jobs, CASE WHEN s.sign > 0 THEN c.bytes ELSE 0 END
        FROM (
            SELECT g.qid, count(*) AS jobs, sum(g.size + coalesce(octet_length(g.result), 0)) AS bytes FROM gone AS g GROUP BY g.qid
        ) AS c CROSS JOIN (VALUES (0::smallint, -1), (3::smallint, 1)) AS s (state, sign) WHERE p_keep OR s.sign < 0
    )
    SELECT array_agg(g.ord::integer) INTO v_done FROM gone AS g;
    IF cardinality(v_done) = cardinality(p_ids) THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY(SELECT n FROM generate_series(1, cardinality(p_ids)) AS n WHERE n <> ALL (coalesce(v_done, '{}')) ORDER BY n);
END $$;

-- ``complete_v1`` for a holder with deliveries and leases. The ids are sorted. ``p_given``: which are deliveries.
CREATE FUNCTION complete_given_v1(
    p_at bigint, p_holder text, p_ids uuid[], p_epochs bigint[], p_results bytea[], p_result_ttls bigint[], p_keep boolean,
    p_floor bigint, p_given uuid[]
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_all CONSTANT boolean := cardinality(p_given) = cardinality(p_ids);
    v_rest integer[];
BEGIN
    IF v_all THEN
        v_rest := complete_given(v_now, p_floor, p_ids, p_epochs, p_results, p_result_ttls, p_keep);
    ELSE
        v_rest := ARRAY(SELECT n FROM generate_series(1, cardinality(p_ids)) AS n);
    END IF;
    IF cardinality(v_rest) < cardinality(p_ids)
        AND EXISTS (SELECT 1 FROM waiters AS w WHERE w.id >= p_ids[1] AND w.id <= p_ids[cardinality(p_ids)])  -- waiters_pkey
    THEN
        RETURN QUERY SELECT * FROM tell_waiters(ARRAY(
            SELECT p_ids[n] FROM generate_series(1, cardinality(p_ids)) AS n WHERE n <> ALL (v_rest)
        ));
    END IF;
    IF v_rest = '{}' THEN
        RETURN;
    END IF;
    PERFORM take_over(
        v_now, p_floor, array_agg(p_ids[n]), array_agg(p_epochs[n]), array_agg(p_holder), array_agg(0::bigint)
    ) FROM unnest(v_rest) AS n WHERE p_ids[n] = ANY (p_given);
    RETURN QUERY
    SELECT a.* FROM complete_v1(
        v_now, p_holder, ARRAY(SELECT p_ids[n] FROM unnest(v_rest) AS n), ARRAY(SELECT p_epochs[n] FROM unnest(v_rest) AS n),
        ARRAY(SELECT p_results[n] FROM unnest(v_rest) AS n), ARRAY(SELECT p_result_ttls[n] FROM unnest(v_rest) AS n), p_keep
    ) AS x CROSS JOIN LATERAL (
        SELECT s.* FROM settled(v_rest[((x.notice).settled).number], ((x.notice).settled).state) AS s
        WHERE ((x.notice).settled).number IS NOT NULL
        UNION ALL SELECT x.* WHERE ((x.notice).settled).number IS NULL
    ) AS a;
END $$;

-- ``finish_v1``, where these deliveries are settled.
CREATE FUNCTION finish_given_v1(
    p_at bigint, p_settled settlement_row[], p_names text[], p_rows job_row[], p_floor bigint, p_ids uuid[], p_epochs bigint[],
    p_holders text[]
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
BEGIN
    PERFORM take_over(v_now, p_floor, p_ids, p_epochs, p_holders, array_fill(0::bigint, ARRAY[cardinality(p_ids)]));
    RETURN QUERY SELECT * FROM finish_v1(v_now, p_settled, p_names, p_rows);
END $$;

-- Whether ``claim_v1`` must give out the jobs of this queue, because it has rules, a pause, or groups to be looked at.
CREATE FUNCTION is_odd(p_now bigint, q queues) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    RETURN q.governed OR q.paused_until > p_now OR EXISTS (SELECT 1 FROM looks AS k WHERE k.qid = q.qid)  -- looks_qid
        OR EXISTS (SELECT 1 FROM policies AS p WHERE p.queue IN (q.name, '') AND p.depth IS NOT NULL);  -- policies_pkey
END $$;

-- The same of a job: it has an expiry, a group, several losses or many bytes, or a number that scripts do not count exactly.
CREATE FUNCTION is_odd(y ready, p_most_bytes integer) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT y.dies_at IS NOT NULL OR y.gid IS NOT NULL OR y.lost > 1 OR y.size > p_most_bytes
        OR y.epoch NOT BETWEEN -9007199254740991 AND 9007199254740990 OR y.run_at < -9007199254740991
$$;

-- A window gives out the jobs of this queue from now on. Returns false if it must not. The table is not read before it is
-- locked: two that had read it would wait for each other.
CREATE FUNCTION open_queue_v1(p_at bigint, p_floor bigint, p_queue text) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    q queues;
BEGIN
    SELECT x.* INTO q FROM queues AS x WHERE x.name = p_queue;  -- queues_name_key
    IF q.qid IS NULL OR is_odd(clock(p_at), q) THEN
        RETURN false;
    END IF;
    PERFORM set_config('lock_timeout', '1s', true);
    LOCK TABLE windowed IN ACCESS EXCLUSIVE MODE;
    LOCK TABLE streams IN ROW SHARE MODE;
    IF NOT EXISTS (SELECT 1 FROM streams AS s WHERE s.floor = p_floor) THEN
        RETURN false;
    END IF;
    INSERT INTO windowed (qid) VALUES (q.qid) ON CONFLICT ON CONSTRAINT windowed_pkey DO NOTHING;
    RETURN true;
END $$;

-- Claims take the jobs of this queue from now on. Its deliveries become leases. Returns false if another Valkey is in charge.
CREATE FUNCTION shut_queue_v1(
    p_at bigint, p_floor bigint, p_queue text, p_ids uuid[], p_epochs bigint[], p_holders text[], p_left bigint[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    LOCK TABLE streams IN ROW SHARE MODE;
    IF NOT EXISTS (SELECT 1 FROM streams AS s WHERE s.floor = p_floor) THEN
        RETURN false;
    END IF;
    PERFORM take_over(clock(p_at), p_floor, p_ids, p_epochs, p_holders, p_left);
    DELETE FROM windowed AS w USING queues AS q WHERE q.name = p_queue AND w.qid = q.qid;  -- queues_name_key, windowed_pkey
    RETURN true;
END $$;

-- The jobs of a queue that are in line, after a mark, and those that are due by ``p_until``, from an instant on: what a
-- window can hold; nothing if another Valkey is in charge. ``odd``: only ``claim_v1`` can give it out. The last row has
-- no id: whether the queue is such a queue, the clock, and when the first job that was not reached is due.
CREATE TYPE candidate AS (id uuid, priority smallint, run_at bigint, odd boolean, now bigint);
CREATE FUNCTION candidates_v1(
    p_at bigint, p_floor bigint, p_queue text, p_limit integer, p_priority smallint, p_run_at bigint, p_id uuid,
    p_until bigint, p_most_bytes integer
) RETURNS SETOF candidate LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_first CONSTANT spot := first_spot();
    v_qid integer;
    v_odd boolean := false;
    v_next bigint;
    q queues;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM streams AS s WHERE s.floor = p_floor) THEN
        RETURN;
    END IF;
    PERFORM name_queues(ARRAY[p_queue]);
    SELECT x.* INTO q FROM queues AS x WHERE x.name = p_queue;  -- queues_name_key
    v_qid := q.qid;
    v_odd := v_qid IS NOT NULL AND is_odd(v_now, q);
    IF NOT v_odd THEN
        RETURN QUERY
        SELECT y.id, y.priority, y.run_at, is_odd(y, p_most_bytes), v_now
        FROM ready AS y  -- ready_line
        WHERE y.qid = v_qid AND y.lane IS NULL AND (y.priority, y.run_at, y.id) > (
            coalesce(p_priority, v_first.priority), coalesce(p_run_at, v_first.run_at), coalesce(p_id, v_first.id)
        ) ORDER BY y.qid, y.priority, y.run_at, y.id LIMIT p_limit;
        RETURN QUERY
        SELECT y.id, y.priority, y.run_at, is_odd(y, p_most_bytes), v_now
        FROM ready AS y WHERE y.qid = v_qid AND y.lane = 0 AND y.run_at <= v_now + p_until  -- ready_later
        ORDER BY y.qid, y.run_at, y.id LIMIT p_limit;
        SELECT y.run_at INTO v_next FROM ready AS y WHERE y.qid = v_qid AND y.lane = 0 AND y.run_at > v_now + p_until  -- ready_later
        ORDER BY y.qid, y.run_at LIMIT 1;
    END IF;
    RETURN NEXT (NULL, NULL, v_next, v_odd, v_now)::candidate;
END $$;

-- The names of the workers that are listed, and ``''`` for others, by holder; and the clock. Holders are secrets: only who
-- was told of one can ask for it.
CREATE FUNCTION workers_of_v1(p_at bigint, p_holders text[]) RETURNS TABLE (holder text, worker text, now bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
BEGIN
    RETURN QUERY SELECT n.holder, coalesce(w.worker, ''), v_now FROM unnest(p_holders) AS n (holder)
    LEFT JOIN workers AS w ON w.holder = n.holder AND w.listed_until > v_now;  -- workers_pkey
END $$;

-- For how long the oldest due job of each queue has been due, without those that were given out: pairs of the number of
-- its queue and a job. Queues of which none was given out are left out.
CREATE FUNCTION oldest_waiting_v1(p_at bigint, p_queues text[], p_numbers integer[], p_given uuid[])
RETURNS TABLE (queue text, age bigint) LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
BEGIN
    RETURN QUERY
    SELECT q.name, v_now - least((  -- ready_line, two probes per priority, of at most 1,000, and one per job that was given out
        WITH RECURSIVE level (priority) AS (
            SELECT (SELECT min(y.priority) FROM ready AS y WHERE y.qid = q.qid AND y.lane IS NULL)
            UNION ALL
            SELECT (SELECT min(y.priority) FROM ready AS y WHERE y.qid = q.qid AND y.lane IS NULL AND y.priority > l.priority)
            FROM level AS l WHERE l.priority IS NOT NULL
        )
        SELECT min(x.run_at) FROM (
            SELECT (
                SELECT y.run_at FROM ready AS y
                WHERE y.qid = q.qid AND y.lane IS NULL AND y.priority = l.priority AND y.id <> ALL (g.ids)
                ORDER BY y.run_at, y.id LIMIT 1
            ) AS run_at
            FROM level AS l WHERE l.priority IS NOT NULL LIMIT 1000
        ) AS x WHERE x.run_at <= v_now
    ), (  -- ready_later
        SELECT y.run_at FROM ready AS y WHERE y.qid = q.qid AND y.lane = 0 AND y.run_at <= v_now AND y.id <> ALL (g.ids)
        ORDER BY y.run_at LIMIT 1
    )) FROM (
        SELECT p_queues[x.number] AS queue, array_agg(x.id) AS ids FROM unnest(p_numbers, p_given) AS x (number, id) GROUP BY x.number
    ) AS g JOIN queues AS q ON q.name = g.queue;  -- queues_name_key
END $$;

-- Of each of these queues, the jobs that are delayed, and those of them that are due within ``p_horizon``, counted up to a
-- number; and when the first of them is due.
CREATE FUNCTION delayed_v1(p_at bigint, p_queues text[], p_horizon bigint, p_cap integer)
RETURNS TABLE (queue text, delayed bigint, next_at bigint, soon bigint)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
BEGIN
    RETURN QUERY
    SELECT q.name, (  -- ready_later
        SELECT count(*) FROM (SELECT 1 FROM ready AS y WHERE y.qid = q.qid AND y.lane = 0 AND y.run_at > v_now LIMIT p_cap) AS few
    ), (
        SELECT y.run_at FROM ready AS y WHERE y.qid = q.qid AND y.lane = 0 AND y.run_at > v_now ORDER BY y.run_at LIMIT 1
    ), (
        SELECT count(*) FROM (
            SELECT 1 FROM ready AS y WHERE y.qid = q.qid AND y.lane = 0 AND y.run_at > v_now AND y.run_at <= v_now + p_horizon LIMIT p_cap
        ) AS few
    ) FROM queues AS q WHERE q.name = ANY (p_queues);  -- queues_name_key
END $$;

-- These jobs, as far as they wait, for a window.
CREATE FUNCTION feed_v1(p_ids uuid[]) RETURNS TABLE (
    id uuid, task text, parameters bytea, vm_state bytea, metadata bytea, blob bytea, epoch bigint, tenant text, key text, priority smallint,
    run_at bigint, enqueued_at bigint, attempt integer, lost integer, max_attempts integer, timeout bigint, result_ttl bigint, headers bytea,
    error bytea, size integer
) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = on SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY  -- ready_pkey; ``contents``; patches_pkey
    SELECT
        y.id, j.task,
        CASE WHEN (y.patch).mask & 1 <> 0 THEN (y.patch).parameters ELSE j.parameters END,
        CASE WHEN (y.patch).mask & 2 <> 0 THEN (y.patch).vm_state ELSE j.vm_state END,
        CASE WHEN (y.patch).mask & 4 <> 0 THEN (y.patch).metadata ELSE j.metadata END,
        CASE WHEN (y.patch).mask & 8 <> 0 THEN (y.patch).blob ELSE j.blob END,
        y.epoch, j.tenant, CASE WHEN y.keyed THEN j.key END, y.priority, y.run_at, j.enqueued_at, y.attempt, y.lost, j.max_attempts,
        j.timeout, j.result_ttl, j.headers, y.error, y.size
    FROM (
        SELECT y.*, n.ord, CASE WHEN y.epoch <> 0 THEN (SELECT c FROM patches AS c WHERE c.id = ANY (ARRAY[y.id])) END AS patch
        FROM unnest(p_ids) WITH ORDINALITY AS n (id, ord) JOIN ready AS y ON y.id = ANY (ARRAY[n.id])
        WHERE y.dies_at IS NULL AND y.gid IS NULL AND y.lost <= 1 OFFSET 0
    ) AS y JOIN contents(p_ids) AS j ON j.id = y.id ORDER BY y.ord;
END $$;

SELECT seal();
