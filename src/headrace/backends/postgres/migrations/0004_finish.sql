-- The usual end of leases of one holder: COMPLETED, and nothing else changes. The ids are sorted. Only settlements that
-- are fenced off are answered. ``p_bound`` as in ``insert_v1``. ``p_claims``: a claim follows. If all jobs with rules
-- are of one governed queue, without groups, ``qid`` and ``tids`` are that queue and their tenants, and the claim
-- counts them as stopped.
CREATE TYPE completed AS (answers answer[], qid integer, tids bigint[]);
CREATE FUNCTION complete(
    p_at bigint, p_holder text, p_ids uuid[], p_epochs bigint[], p_results bytea[], p_result_ttls bigint[], p_keep boolean,
    p_bound boolean, p_claims boolean
) RETURNS completed LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := clock(p_at);
    v_done integer[];
    v_keyed uuid[];
    v_qids integer[];
    v_ruled_qids integer[];
    v_gids bigint[];
    v_tids bigint[];
    c completed;
BEGIN
    IF p_keep THEN
        WITH gone AS (  -- leased_pkey, one probe per id
            DELETE FROM leased AS l
            USING unnest(p_ids, p_epochs, p_results, p_result_ttls) WITH ORDINALITY AS n (id, epoch, result, ttl, ord)
            WHERE l.id = ANY (ARRAY[n.id]) AND l.epoch = n.epoch AND l.holder = p_holder
            RETURNING l.*, n.ord, n.ttl, CASE WHEN n.ttl > 0 THEN n.result END AS result
        ), kept AS (
            INSERT INTO ended (
                finished_at, held_until, run_at, id, qid, epoch, attempt, lost, size, state, priority, keyed, reason, error,
                result
            )
            SELECT
                v_now, v_now + g.ttl, g.run_at, g.id, g.qid, g.epoch, g.attempt, NULL,
                g.size + coalesce(octet_length(g.result), 0), 3, g.priority, g.keyed, '', g.error, g.result
            FROM gone AS g
        ), counted AS (
            INSERT INTO deltas (qid, state, jobs, bytes)
            SELECT c.qid, s.state, s.sign * c.jobs, CASE WHEN s.sign > 0 THEN c.bytes ELSE 0 END
            FROM (
                SELECT g.qid, count(*) AS jobs, sum(g.size + coalesce(octet_length(g.result), 0)) AS bytes
                FROM gone AS g GROUP BY g.qid
            ) AS c CROSS JOIN (VALUES (1::smallint, -1), (3::smallint, 1)) AS s (state, sign)
        )
        SELECT
            array_agg(g.ord::integer), array_agg(g.qid) FILTER (WHERE g.keyed), array_agg(g.id) FILTER (WHERE g.keyed),
            array_agg(g.qid) FILTER (WHERE g.gid IS NOT NULL OR g.tid IS NOT NULL),
            array_agg(g.gid) FILTER (WHERE g.gid IS NOT NULL OR g.tid IS NOT NULL),
            array_agg(g.tid) FILTER (WHERE g.gid IS NOT NULL OR g.tid IS NOT NULL)
        INTO v_done, v_qids, v_keyed, v_ruled_qids, v_gids, v_tids FROM gone AS g;
        IF v_keyed IS NOT NULL THEN
            PERFORM lock_keys(v_keyed, v_qids);
            -- ended_pkey, jobs_pkey, keys_pkey.
            UPDATE keys AS k SET held_until = v_now + m.ttl, failed = false FROM (
                SELECT e.id, e.qid, j.key, p_result_ttls[o] AS ttl FROM unnest(v_done) AS o
                JOIN ended AS e ON e.id = ANY (ARRAY[p_ids[o]]) AND e.keyed JOIN jobs AS j ON j.id = ANY (ARRAY[e.id]) OFFSET 0
            ) AS m WHERE k.qid = ANY (ARRAY[m.qid]) AND k.key = ANY (ARRAY[m.key]) AND k.id = m.id;
        END IF;
    ELSE
        WITH gone AS (  -- leased_pkey, one probe per id
            DELETE FROM leased AS l
            USING unnest(p_ids, p_epochs) WITH ORDINALITY AS n (id, epoch, ord)
            WHERE l.id = ANY (ARRAY[n.id]) AND l.epoch = n.epoch AND l.holder = p_holder
            RETURNING l.id, l.qid, l.epoch, l.keyed, l.gid, l.tid, n.ord
        ), forgotten AS (  -- jobs_pkey
            DELETE FROM jobs AS j USING gone AS g WHERE NOT g.keyed AND j.id = ANY (ARRAY[g.id])
        ), unpatched AS (  -- patches_pkey
            DELETE FROM patches AS c USING gone AS g WHERE c.id = ANY (ARRAY[g.id])
        ), counted AS (
            INSERT INTO deltas (qid, state, jobs) SELECT g.qid, 1, -count(*) FROM gone AS g GROUP BY g.qid
        )
        SELECT
            array_agg(g.ord::integer), array_agg(g.qid) FILTER (WHERE g.keyed), array_agg(g.id) FILTER (WHERE g.keyed),
            array_agg(g.qid) FILTER (WHERE g.gid IS NOT NULL OR g.tid IS NOT NULL),
            array_agg(g.gid) FILTER (WHERE g.gid IS NOT NULL OR g.tid IS NOT NULL),
            array_agg(g.tid) FILTER (WHERE g.gid IS NOT NULL OR g.tid IS NOT NULL)
        INTO v_done, v_qids, v_keyed, v_ruled_qids, v_gids, v_tids FROM gone AS g;
        IF v_keyed IS NOT NULL THEN
            PERFORM forget_jobs(v_keyed, v_qids);
        END IF;
    END IF;
    IF EXISTS (SELECT 1 FROM waiters AS w WHERE w.id >= p_ids[1] AND w.id <= p_ids[cardinality(p_ids)]) THEN  -- waiters_pkey
        c.answers := ARRAY(SELECT w FROM tell_waiters(ARRAY(SELECT p_ids[o] FROM unnest(v_done) AS o)) AS w);
    END IF;
    IF coalesce(cardinality(v_done), 0) < cardinality(p_ids) THEN
        c.answers := c.answers || ARRAY(
            SELECT settled(n, NULL) FROM generate_series(1, cardinality(p_ids)) AS n WHERE n <> ALL (coalesce(v_done, '{}'))
        );
    END IF;
    IF p_claims AND array_remove(v_gids, NULL) = '{}' AND v_tids[1] IS NOT NULL
        AND cardinality(array_remove(v_ruled_qids, v_ruled_qids[1])) = 0
    THEN
        c.qid := v_ruled_qids[1];
        c.tids := v_tids;
    ELSIF v_ruled_qids IS NOT NULL THEN
        c.answers := c.answers || ARRAY(SELECT woken(q) FROM stopped(v_now, v_ruled_qids, v_gids, v_tids, p_bound) AS q);
    END IF;
    RETURN c;
END $$;

-- ``complete`` without a claim.
CREATE FUNCTION complete_v1(
    p_at bigint, p_holder text, p_ids uuid[], p_epochs bigint[], p_results bytea[], p_result_ttls bigint[], p_keep boolean,
    p_bound boolean DEFAULT false
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c completed := complete(p_at, p_holder, p_ids, p_epochs, p_results, p_result_ttls, p_keep, p_bound, false);
BEGIN
    RETURN QUERY SELECT * FROM unnest(c.answers);
END $$;

-- A row of ``deltas``.
CREATE TYPE counted AS (qid integer, state smallint, jobs bigint, bytes bigint, tenant text);

-- A settlement, as clients send it. ``mask``: the cells that are replaced. ``queue``: the queue that the job moves to.
-- ``spawned``: how many of the rows that are sent along it spawns.
CREATE TYPE settlement_row AS (
    id uuid, epoch bigint, holder text, state smallint, delay bigint, run_at bigint, failed_attempt boolean,
    keep_lost boolean, unbegun boolean, queue text, priority smallint, mask smallint, parameters bytea, vm_state bytea,
    metadata bytea, blob bytea, error bytea, reason text, result bytea, result_ttl bigint, keep boolean, spawned integer
);

-- The steps below are part of ``finish_v1``, and rely on its settings.
--
-- End these leases. Returns each, or NULL if it is no longer held. Keys that several of the jobs, or a move, may write
-- are locked.
CREATE FUNCTION take_leases(p_settled settlement_row[]) RETURNS leased[] LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_places leased[];
BEGIN
    WITH asked AS MATERIALIZED (
        SELECT n.id, n.epoch, n.holder, n.ordinality AS ord FROM unnest(p_settled) WITH ORDINALITY AS n ORDER BY n.id, n.ordinality
    ), gone AS (  -- leased_pkey, one probe per id
        DELETE FROM leased AS d USING asked AS n
        WHERE d.id = ANY (ARRAY[n.id]) AND d.epoch = n.epoch AND d.holder = n.holder
        RETURNING d AS place, n.ord
    ), answers AS (
        SELECT DISTINCT ON (x.ord) x.ord, x.place FROM (
            SELECT g.ord, g.place, 0 AS rank FROM gone AS g UNION ALL SELECT n.ord, NULL, 1 FROM asked AS n
        ) AS x ORDER BY x.ord, x.rank
    )
    SELECT array_agg(a.place ORDER BY a.ord) INTO v_places FROM answers AS a;
    IF EXISTS (SELECT 1 FROM unnest(p_settled) AS s WHERE s.queue IS NOT NULL) THEN
        PERFORM queue_ids(ARRAY(SELECT DISTINCT s.queue FROM unnest(p_settled) AS s WHERE s.queue IS NOT NULL));
    END IF;
    PERFORM lock_keys(array_agg((v_places[n.ordinality]).id), array_agg((v_places[n.ordinality]).qid), array_agg(q.qid))
    FROM unnest(p_settled) WITH ORDINALITY AS n LEFT JOIN queues AS q ON q.name = n.queue  -- queues_name_key
    WHERE (v_places[n.ordinality]).keyed HAVING count(*) > 1 OR count(q.qid) > 0;
    RETURN v_places;
END $$;

-- Record plain completions of jobs without a key together. Returns their numbers and ids, and the queues, groups and
-- tenants of those with rules.
CREATE FUNCTION settle_plain(
    p_now bigint, p_settled settlement_row[], p_places leased[],
    OUT ords integer[], OUT ids uuid[], OUT qids integer[], OUT gids bigint[], OUT tids bigint[]
) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    WITH plain AS MATERIALIZED (
        SELECT
            n.ord, n.result_ttl, n.keep, (n.place).run_at, (n.place).id, (n.place).qid, (n.place).epoch, (n.place).attempt,
            (n.place).priority, (n.place).gid, (n.place).tid, (n.place).error, CASE WHEN n.result_ttl > 0 THEN n.result END AS result,
            (n.place).size + CASE WHEN n.result_ttl > 0 THEN coalesce(octet_length(n.result), 0) ELSE 0 END AS bytes
        FROM (
            SELECT s.ordinality AS ord, p_places[s.ordinality] AS place, s.result, s.result_ttl, s.keep
            FROM unnest(p_settled) WITH ORDINALITY AS s
            WHERE s.state = 3 AND NOT s.failed_attempt AND NOT s.keep_lost AND s.queue IS NULL AND s.priority IS NULL AND s.mask = 0
                AND s.error IS NULL AND s.reason = '' AND s.spawned = 0
        ) AS n WHERE (n.place).id IS NOT NULL AND NOT (n.place).keyed
    ), kept AS (
        INSERT INTO ended (
            finished_at, held_until, run_at, id, qid, epoch, attempt, lost, size, state, priority, keyed, reason, error,
            result
        )
        SELECT
            p_now, p_now + p.result_ttl, p.run_at, p.id, p.qid, p.epoch, p.attempt, NULL, p.bytes, 3, p.priority, false, '',
            p.error, p.result
        FROM plain AS p WHERE p.keep
    ), forgotten AS (  -- jobs_pkey
        DELETE FROM jobs AS j USING plain AS p WHERE NOT p.keep AND j.id = ANY (ARRAY[p.id])
    ), unpatched AS (  -- patches_pkey
        DELETE FROM patches AS c USING plain AS p WHERE NOT p.keep AND c.id = ANY (ARRAY[p.id])
    ), counted AS (
        INSERT INTO deltas (qid, state, jobs, bytes)
        SELECT p.qid, 1, -count(*), 0 FROM plain AS p GROUP BY p.qid
        UNION ALL
        SELECT p.qid, 3, count(*), sum(p.bytes) FROM plain AS p WHERE p.keep GROUP BY p.qid
    )
    SELECT
        array_agg(p.ord::integer ORDER BY p.ord), array_agg(p.id),
        coalesce(array_agg(p.qid) FILTER (WHERE p.gid IS NOT NULL OR p.tid IS NOT NULL), '{}'),
        coalesce(array_agg(p.gid) FILTER (WHERE p.gid IS NOT NULL OR p.tid IS NOT NULL), '{}'),
        coalesce(array_agg(p.tid) FILTER (WHERE p.gid IS NOT NULL OR p.tid IS NOT NULL), '{}')
    INTO ords, ids, qids, gids, tids FROM plain AS p;
END $$;

-- Where a job is after its lease: its queue, size and group, and whether it is called there.
CREATE TYPE new_place AS (qid integer, size integer, gid bigint, called boolean);
-- Store a job as its settlement says; a cancellation has changed ``s.state`` and ``s.reason`` already.
CREATE FUNCTION place_settled(p_now bigint, s settlement_row, l leased, p_tenant text) RETURNS new_place
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    job place := place_of(l);
    v_result CONSTANT bytea := CASE WHEN s.state = 3 AND s.result_ttl > 0 THEN s.result END;
    v_held_until CONSTANT bigint := CASE WHEN s.state = 3 THEN p_now + s.result_ttl ELSE 0 END;
    p new_place;
BEGIN
    job.priority := coalesce(s.priority, l.priority);
    job.attempt := l.attempt + s.failed_attempt::integer;
    job.lost := CASE WHEN s.keep_lost THEN job.lost ELSE 0 END;
    job.error := coalesce(s.error, l.error);
    job.size := l.size + coalesce(octet_length(job.error), 0) - coalesce(octet_length(l.error), 0);
    IF s.mask <> 0 THEN
        job.size := job.size + patch_cells(l.id, s.mask, s.parameters, s.vm_state, s.metadata, s.blob);
    END IF;
    IF s.queue IS NOT NULL THEN
        job.qid := (queue_ids(ARRAY[s.queue]))[1];
        IF job.qid <> l.qid AND l.keyed THEN
            job.keyed := move_key(p_now, l.id, l.qid, job.qid);
            IF NOT job.keyed THEN
                DELETE FROM keys AS k
                WHERE k.qid = l.qid AND k.key = (SELECT j.key FROM jobs AS j WHERE j.id = l.id) AND k.id = l.id;
            END IF;
        END IF;
    END IF;
    p.qid := job.qid;
    p.size := job.size + coalesce(octet_length(v_result), 0);
    IF s.state IN (0, 2) THEN
        job.epoch := CASE WHEN s.unbegun THEN -l.epoch ELSE l.epoch END;
        job.run_at := coalesce(s.run_at, p_now + s.delay, l.run_at);
        p.called := s.state = 0 AND l.gid IS NOT NULL AND p.qid = l.qid AND group_running_of(l.qid) = 1;
        p.gid := make_waiting(p_now, job, s.state, p.called);
        RETURN p;
    END IF;
    IF job.keyed THEN
        UPDATE keys AS k SET held_until = v_held_until, failed = (s.state = 5)
        WHERE k.qid = p.qid AND k.key = (SELECT j.key FROM jobs AS j WHERE j.id = l.id) AND k.id = l.id;
    END IF;
    IF s.state = 3 AND NOT s.keep THEN
        PERFORM forget_jobs(ARRAY[l.id], ARRAY[p.qid]);
    ELSE
        INSERT INTO ended (
            finished_at, held_until, run_at, id, qid, epoch, attempt, lost, size, state, priority, keyed, reason, tenant, error, result
        ) VALUES (
            p_now, v_held_until, l.run_at, l.id, p.qid, l.epoch, job.attempt, job.lost, p.size, s.state, job.priority, job.keyed, s.reason,
            CASE WHEN s.state = 5 THEN p_tenant END, job.error, v_result
        );
    END IF;
    RETURN p;
END $$;

-- For ``stopped``: queues, groups and tenants of jobs that have stopped running or wait in a group; ``steps``: the
-- settlement that each comes from; ``entered``: jobs that came into a group, and by which settlement (``entries``).
CREATE TYPE ruled AS (qids integer[], gids bigint[], tids bigint[], steps integer[], entered uuid[], entries integer[]);
-- The same with the groups of spawned jobs, which come last.
CREATE FUNCTION with_spawned(g ruled, p_after integer, p_names text[], p_rows job_row[]) RETURNS ruled
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_named CONSTANT integer[] := queue_ids(p_names);
    s ruled;
BEGIN
    SELECT array_agg(x.qid ORDER BY x.ord), array_agg(gid_of(x.qid, x.name) ORDER BY x.ord), array_agg(x.id ORDER BY x.ord),
        array_agg(x.ord::integer ORDER BY x.ord)
    INTO s.qids, s.gids, s.entered, s.entries FROM (
        SELECT v_named[n.queue] AS qid, n.group_name AS name, n.id, n.ordinality AS ord
        FROM unnest(p_rows) WITH ORDINALITY AS n WHERE n.group_name IS NOT NULL
    ) AS x;
    IF g.entered = '{}' THEN
        g.steps := array_fill(0, ARRAY[cardinality(g.gids)]);
    END IF;
    s.steps := ARRAY(
        SELECT p_after + CASE WHEN c.crossed THEN n.ord ELSE 1 END
        FROM crossed(s.qids, s.gids, s.entered) AS c (crossed) CROSS JOIN unnest(s.entries) AS n (ord)
        ORDER BY n.ord
    );
    RETURN (
        g.qids || s.qids, g.gids || s.gids, g.tids || array_fill(NULL::bigint, ARRAY[cardinality(s.gids)]), g.steps || s.steps,
        g.entered || s.entered, g.entries || s.steps
    );
END $$;

-- Settlements of any kind. Plain completions of jobs without a key are recorded together; they do not affect the
-- others, which follow one by one. Spawned jobs come last: ``p_rows``, of the queues ``p_names``, in the order of the
-- settlements. Answers settlements that are fenced off, and those that a cancellation overtook. Refuses a settlement that
-- spawns more than clients may, as that would take long.
CREATE FUNCTION finish_v1(p_at bigint, p_settled settlement_row[], p_names text[], p_rows job_row[])
RETURNS SETOF answer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now bigint := clock(p_at);
    v_places leased[] := take_leases(p_settled);
    v_ids uuid[] := ARRAY(SELECT n.id FROM unnest(p_settled) AS n);
    v_asked uuid[] := ARRAY(SELECT a.id FROM asks AS a WHERE a.id = ANY (v_ids));  -- asks_id
    v_tenants text[];
    v_plain record := settle_plain(v_now, p_settled, v_places);
    v_next integer := 1;
    v_row integer := 0;
    v_spawned job_row[] := '{}';
    v_counted counted[] := '{}';
    v_kept uuid[] := '{}';
    v_kept_gids bigint[] := '{}';
    v_keeps integer[] := '{}';
    v_qids integer[] := v_plain.qids;
    v_gids bigint[] := v_plain.gids;
    v_tids bigint[] := v_plain.tids;
    v_steps integer[] := array_fill(0, ARRAY[cardinality(v_gids)]);
    v_entered uuid[] := '{}';
    v_entries integer[] := '{}';
    g ruled;
    s settlement_row;
    l leased;
    p new_place;
BEGIN
    IF EXISTS (SELECT 1 FROM unnest(p_settled) AS n WHERE n.spawned > 500) THEN
        PERFORM refuse('spawn: expected at most 500 jobs of each settlement');
    END IF;
    IF v_tids <> '{}' THEN
        PERFORM tell_stopped(v_now, v_qids, v_tids);
    END IF;
    RETURN QUERY SELECT * FROM tell_waiters(v_plain.ids);
    IF EXISTS (SELECT 1 FROM unnest(p_settled) AS n WHERE n.state = 5) THEN
        v_tenants := tenants_of(v_ids);
    END IF;
    FOR i IN 1..cardinality(p_settled) LOOP
        IF (v_plain.ords)[v_next] = i THEN
            v_next := v_next + 1;
            CONTINUE;
        END IF;
        s := p_settled[i];
        l := v_places[i];
        v_row := v_row + s.spawned;
        IF l.id IS NULL THEN
            RETURN NEXT settled(i, NULL);
            CONTINUE;
        END IF;
        IF (l.cancel OR l.id = ANY (v_asked)) AND (s.state IN (0, 2) OR s.state = 4 AND s.reason = 'cancelled') THEN
            IF s.state <> 4 THEN
                RETURN NEXT settled(i, 4);
            END IF;
            s.state := 4;
            s.reason := asked_reason(l.id);
        END IF;
        IF l.tid IS NOT NULL THEN
            PERFORM tell_stopped(v_now, ARRAY[l.qid], ARRAY[l.tid]);
        END IF;
        p := place_settled(v_now, s, l, v_tenants[i]);
        v_counted := v_counted || (l.qid, 1, -1, 0, NULL)::counted;
        IF NOT (s.state = 3 AND NOT s.keep) THEN
            v_counted := v_counted || (
                p.qid, s.state, 1, CASE WHEN s.state > 2 THEN p.size ELSE 0 END, CASE WHEN s.state = 5 THEN v_tenants[i] END
            )::counted;
        END IF;
        IF l.gid IS NOT NULL OR l.tid IS NOT NULL THEN
            v_qids := v_qids || l.qid;
            v_gids := v_gids || l.gid;
            v_tids := v_tids || l.tid;
            v_steps := v_steps || i;
        END IF;
        IF p.gid IS NOT NULL THEN
            v_qids := v_qids || p.qid;
            v_gids := v_gids || p.gid;
            v_tids := v_tids || NULL::bigint;
            v_steps := v_steps || i;
            IF p.qid <> l.qid THEN
                v_entered := v_entered || l.id;
                v_entries := v_entries || i;
            ELSIF p.called THEN
                v_kept := v_kept || l.id;
                v_kept_gids := v_kept_gids || p.gid;
                v_keeps := v_keeps || i;
            END IF;
        END IF;
        IF s.state = 0 THEN
            RETURN NEXT woken(p.qid);
        ELSIF s.state > 2 THEN
            RETURN QUERY SELECT * FROM tell_waiters(ARRAY[l.id]);
        END IF;
        IF s.spawned > 0 THEN
            v_spawned := v_spawned || p_rows[v_row - s.spawned + 1:v_row];
        END IF;
    END LOOP;
    IF cardinality(v_kept) > 1 AND (SELECT count(DISTINCT n) FROM unnest(v_kept_gids) AS n) < cardinality(v_kept) THEN
        v_entered := v_entered || v_kept;  -- several of one group come back, one after the other
        v_entries := v_entries || v_keeps;
    END IF;
    INSERT INTO deltas (qid, state, jobs, bytes, tenant)
    SELECT n.qid, n.state, sum(n.jobs), sum(n.bytes), n.tenant FROM unnest(v_counted) AS n GROUP BY n.qid, n.state, n.tenant;
    g := (v_qids, v_gids, v_tids, v_steps, v_entered, v_entries);
    IF cardinality(v_spawned) > 0 THEN
        PERFORM insert_v1(v_now, p_names, v_spawned, false, false, false);
        IF EXISTS (SELECT 1 FROM unnest(v_spawned) AS n WHERE n.group_name IS NOT NULL) THEN
            g := with_spawned(g, cardinality(p_settled), p_names, v_spawned);
        END IF;
    END IF;
    IF g.qids <> '{}' THEN
        RETURN QUERY SELECT w.* FROM stopped(v_now, g.qids, g.gids, g.tids, false, true, g.steps, g.entered, g.entries) AS q
        CROSS JOIN LATERAL woken(q) AS w;
    END IF;
END $$;

-- A job that was taken out of its table becomes AVAILABLE or PAUSED. Returns its group, if it is AVAILABLE. ``p_called``: it
-- is called there already; otherwise it waits, and the caller calls the group.
CREATE FUNCTION make_waiting(p_now bigint, p place, p_state smallint, p_called boolean) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_gid bigint;
    v_lane bigint;
BEGIN
    IF p_state = 2 THEN
        INSERT INTO paused (run_at, id, qid, epoch, attempt, lost, size, priority, keyed, error)
        VALUES (p.run_at, p.id, p.qid, p.epoch, p.attempt, p.lost, p.size, p.priority, p.keyed, p.error);
        RETURN NULL;
    END IF;
    INSERT INTO ready AS y (run_at, lane, id, qid, epoch, attempt, lost, size, priority, keyed, dies_at, gid, error)
    SELECT
        p.run_at,
        CASE
            WHEN j.group_name IS NOT NULL AND NOT p_called THEN -p.qid
            WHEN q.governed THEN lane_of(tid_of(p.qid, j.tenant)) + (p.run_at > p_now)::integer
            WHEN p.run_at > p_now THEN 0
        END,
        p.id, p.qid, p.epoch, p.attempt, p.lost, p.size, p.priority, p.keyed,
        CASE WHEN j.expires_at IS NOT NULL THEN greatest(j.expires_at, p.run_at) END,
        CASE WHEN j.group_name IS NOT NULL THEN gid_of(p.qid, j.group_name) END, p.error
    FROM jobs AS j LEFT JOIN queues AS q ON q.qid = p.qid WHERE j.id = p.id  -- jobs_pkey, queues_pkey
    RETURNING y.gid, y.lane INTO v_gid, v_lane;
    IF v_lane >= 4611686018427387904 THEN
        INSERT INTO news (qid, kind, tids, jobs, ats, tenants)
        SELECT p.qid, 1, ARRAY[tid_of(p.qid, j.tenant)], '{1}', ARRAY[p.run_at], ARRAY[j.tenant] FROM jobs AS j WHERE j.id = p.id;
    END IF;
    RETURN v_gid;
END $$;

-- The hint that a job of this queue may be claimable.
CREATE FUNCTION woken(p_qid integer) RETURNS answer LANGUAGE sql STABLE AS 'SELECT told(''queue:'' || name_of(p_qid), NULL)';

-- Bytes in the cells of a stored job.
CREATE FUNCTION cells_weight(p_id uuid) RETURNS integer LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT weight(e.parameters, e.vm_state, e.metadata, e.blob) FROM entries AS e WHERE e.id = p_id
$$;

-- Replace or clear the cells in the mask. Returns by how much the job grows.
CREATE FUNCTION patch_cells(p_id uuid, p_mask smallint, p_parameters bytea, p_vm_state bytea, p_metadata bytea, p_blob bytea)
RETURNS integer LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_before integer := cells_weight(p_id);
    v_hour CONSTANT integer := oldest_hour(p_parameters, p_vm_state, p_metadata, p_blob);
BEGIN
    UPDATE patches AS c SET  -- patches_pkey
        mask = c.mask | p_mask,
        parameters = CASE WHEN p_mask & 1 <> 0 THEN p_parameters ELSE c.parameters END,
        vm_state = CASE WHEN p_mask & 2 <> 0 THEN p_vm_state ELSE c.vm_state END,
        metadata = CASE WHEN p_mask & 4 <> 0 THEN p_metadata ELSE c.metadata END,
        blob = CASE WHEN p_mask & 8 <> 0 THEN p_blob ELSE c.blob END,
        object_hour = least(c.object_hour, v_hour)
    WHERE c.id = p_id;
    IF NOT FOUND THEN
        INSERT INTO patches (id, mask, parameters, vm_state, metadata, blob, object_hour)
        VALUES (p_id, p_mask, p_parameters, p_vm_state, p_metadata, p_blob, v_hour);
    END IF;
    RETURN cells_weight(p_id) - v_before;
END $$;

-- Move the key to another queue, unless it is taken there. Returns whether it moved.
CREATE FUNCTION move_key(p_now bigint, p_id uuid, p_from integer, p_to integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_key text;
BEGIN
    SELECT j.key INTO v_key FROM jobs AS j WHERE j.id = p_id;
    PERFORM release_key(p_now, p_to, v_key);
    INSERT INTO keys AS k (qid, key, id) VALUES (p_to, v_key, p_id)
    ON CONFLICT ON CONSTRAINT keys_pkey DO UPDATE SET id = excluded.id, held_until = NULL, failed = false
    WHERE k.held_until <= p_now AND k.alone_until IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM keys AS k WHERE k.qid = p_from AND k.key = v_key AND k.id = p_id;
    RETURN true;
END $$;

-- Remove everything about these jobs, which are in ``ended`` or in no table, except their waiters. The caller counts
-- them. Keys that are held after ``p_held_after`` outlive them.
CREATE FUNCTION forget_jobs(p_ids uuid[], p_qids integer[], p_held_after bigint DEFAULT NULL) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM lock_keys(p_ids, p_qids);
    WITH gone AS (  -- jobs_pkey
        DELETE FROM jobs AS j USING unnest(p_ids, p_qids) AS n (id, qid) WHERE j.id = ANY (ARRAY[n.id]) RETURNING j.id, j.key, n.qid
    ), unpatched AS (  -- patches_pkey
        DELETE FROM patches AS c USING unnest(p_ids) AS n (id) WHERE c.id = ANY (ARRAY[n.id])
    ), places AS (  -- ended_pkey
        DELETE FROM ended AS e USING unnest(p_ids) AS n (id) WHERE e.id = ANY (ARRAY[n.id])
    ), alone AS (  -- keys_pkey
        UPDATE keys AS k SET alone_until = k.held_until FROM gone AS g
        WHERE k.qid = ANY (ARRAY[g.qid]) AND k.key = ANY (ARRAY[g.key]) AND k.id = g.id AND k.held_until > p_held_after
            AND k.alone_until IS NULL
        RETURNING k.qid
    ), counted AS (
        INSERT INTO deltas (qid, state, jobs) SELECT a.qid, 7, count(*) FROM alone AS a GROUP BY a.qid
    )
    DELETE FROM keys AS k USING gone AS g  -- keys_pkey
    WHERE k.qid = ANY (ARRAY[g.qid]) AND k.key = ANY (ARRAY[g.key]) AND k.id = g.id AND k.alone_until IS NULL
        AND (k.held_until > p_held_after) IS NOT TRUE;
END $$;

-- Plain completions, and the next claim, in one trip.
CREATE FUNCTION complete_and_claim_v1(
    p_at bigint, p_settled_by text, p_ids uuid[], p_epochs bigint[], p_results bytea[], p_result_ttls bigint[],
    p_keep boolean, p_holder text, p_queues text[], p_limit integer, p_lease_for bigint, p_want smallint,
    p_lost_below integer, p_max_bytes bigint, p_mark_queues text[], p_mark_priorities smallint[], p_mark_run_ats bigint[], p_mark_ids uuid[], p_mark_due bigint
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c completed := complete(p_at, p_settled_by, p_ids, p_epochs, p_results, p_result_ttls, p_keep, false, true);
BEGIN
    IF c.answers <> '{}' THEN
        RETURN QUERY SELECT * FROM unnest(c.answers);
    END IF;
    RETURN QUERY SELECT * FROM claim_v1(
        p_at, p_holder, p_queues, p_limit, p_lease_for, p_want, p_lost_below, p_max_bytes, true,
        p_mark_queues, p_mark_priorities, p_mark_run_ats, p_mark_ids, p_mark_due, c.qid, c.tids
    );
END $$;
