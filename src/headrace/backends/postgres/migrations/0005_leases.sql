-- A worker beats that was not listed. If no other is listed, the whole fleet was absent: note it, as ``Backend.renew``
-- says. Of several workers that return at once, one does, and nobody waits. Workers are few, so they are scanned.
CREATE FUNCTION note_absence(p_now bigint, p_gap bigint, p_at_work bigint) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    v_listed bigint;
    v_seen bigint[];
BEGIN
    SELECT max(x.listed_until), array_agg(x.seen_at ORDER BY x.seen_at DESC) INTO v_listed, v_seen FROM (
        SELECT w.listed_until, w.seen_at FROM workers AS w ORDER BY w.listed_until DESC, w.holder COLLATE "C" DESC LIMIT 2
    ) AS x;
    IF v_listed > p_now OR NOT try_lock('absence') THEN
        RETURN;
    END IF;
    INSERT INTO absence (one, at_work_since) VALUES (true, p_now) ON CONFLICT (one) DO NOTHING;
    UPDATE absence AS a SET begins = v_seen[1], ends = p_now
    WHERE v_seen[1] - v_seen[2] <= p_gap AND v_seen[1] - a.at_work_since >= p_at_work;
    UPDATE absence AS a SET at_work_since = p_now;
END $$;

-- A beat. ``p_progress``: of each lease, NULL if there is nothing new. Answers: the numbers of lost leases, and of leases
-- that another transaction has locked; jobs to cancel; paused queues; the worker's own leases among the first
-- ``p_census`` to expire, and whether any lease has expired. The clock is read again after each lock: a beat that had to
-- wait counts from the moment it got through.
CREATE FUNCTION renew_v1(
    p_at bigint, p_holder text, p_worker text, p_queues text[], p_lease_for bigint, p_ids uuid[], p_epochs bigint[],
    p_ttl bigint, p_slots integer, p_busy integer, p_leaving boolean, p_gap bigint, p_at_work bigint, p_census integer,
    p_progress bytea[] DEFAULT NULL
) RETURNS TABLE (
    lost integer[], busy integer[], cancels uuid[], paused text[], held uuid[], held_epochs bigint[], held_begun boolean[],
    overdue boolean
) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := clock(p_at);
    v_listed bigint;
    v_mine uuid[];
BEGIN
    IF p_leaving THEN
        DELETE FROM workers AS w WHERE w.holder = p_holder;
    ELSE
        SELECT w.listed_until INTO v_listed FROM workers AS w WHERE w.holder = p_holder FOR UPDATE;  -- workers_pkey
        v_now := clock(p_at);
        IF v_listed IS NULL OR v_listed <= v_now THEN
            PERFORM note_absence(v_now, p_gap, p_at_work);
        END IF;
        INSERT INTO workers AS w (holder, worker, queues, slots, busy, started_at, seen_at, listed_until, steady_since)
        VALUES (p_holder, p_worker, p_queues, p_slots, p_busy, v_now, v_now, v_now + p_ttl, v_now)
        ON CONFLICT (holder) DO UPDATE SET worker = excluded.worker, queues = excluded.queues, slots = excluded.slots,
            busy = excluded.busy, seen_at = excluded.seen_at, listed_until = excluded.listed_until,
            steady_since = CASE WHEN excluded.seen_at - w.seen_at <= p_gap THEN w.steady_since ELSE excluded.seen_at END;
    END IF;
    v_mine := ARRAY(  -- leased_pkey, one probe per id
        SELECT l.id FROM unnest(p_ids, p_epochs) AS n (id, epoch)
        JOIN leased AS l ON l.id = ANY (ARRAY[n.id]) AND l.epoch = n.epoch AND l.holder = p_holder
        FOR UPDATE OF l SKIP LOCKED
    );
    v_now := clock(p_at);
    UPDATE leased AS l SET lease_until = v_now + p_lease_for FROM unnest(v_mine) AS m (id) WHERE l.id = ANY (ARRAY[m.id]);
    IF p_progress IS NOT NULL THEN
        UPDATE leased AS l SET progress = n.progress FROM unnest(p_ids, p_epochs, p_progress) AS n (id, epoch, progress)
        WHERE n.id = ANY (v_mine) AND octet_length(n.progress) <= 1024 AND l.id = ANY (ARRAY[n.id]) AND l.epoch = n.epoch;
    END IF;
    SELECT
        array_agg(n.ord::integer ORDER BY n.ord) FILTER (WHERE l.id IS NULL),
        array_agg(n.ord::integer ORDER BY n.ord) FILTER (WHERE l.id <> ALL (v_mine))
    INTO lost, busy
    FROM unnest(p_ids, p_epochs) WITH ORDINALITY AS n (id, epoch, ord)
    LEFT JOIN leased AS l ON l.id = ANY (ARRAY[n.id]) AND l.epoch = n.epoch AND l.holder = p_holder;
    SELECT array_agg(x.id) INTO cancels FROM (  -- leased_cancel; leased_pkey, for each that is asked for
        SELECT l.id FROM leased AS l WHERE l.holder = p_holder AND l.cancel
        UNION SELECT l.id FROM asks AS a JOIN leased AS l ON l.id = ANY (ARRAY[a.id]) WHERE l.holder = p_holder
    ) AS x;
    SELECT array_agg(q.name) INTO paused FROM queues AS q WHERE q.name = ANY (p_queues) AND q.paused_until > v_now;
    IF p_census > 0 THEN  -- leased_until, from its head
        SELECT array_agg(f.id), array_agg(f.epoch), array_agg(coalesce(f.begun, false)) INTO held, held_epochs, held_begun FROM (
            SELECT l.id, l.epoch, l.begun, l.holder FROM leased AS l ORDER BY l.lease_until LIMIT p_census
        ) AS f WHERE f.holder = p_holder;
        overdue := EXISTS (SELECT 1 FROM leased AS l WHERE l.lease_until <= v_now);
    END IF;
    RETURN NEXT;
END $$;

-- Whether this holder has beaten lately and without a gap. Then others had time to renew their leases too.
CREATE FUNCTION is_steady(p_now bigint, p_holder text, p_gap bigint, p_steady bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT p_holder IS NULL OR EXISTS (  -- workers_pkey
        SELECT 1 FROM workers AS w
        WHERE w.holder = p_holder AND w.seen_at >= p_now - p_gap AND w.steady_since <= p_now - p_steady
    )
$$;

-- Take back jobs whose lease has expired, and cancel expired jobs.
CREATE FUNCTION reap_v1(
    p_at bigint, p_limit integer, p_max_lost integer, p_spread bigint, p_holder text, p_gap bigint, p_steady bigint
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_now bigint := clock(p_at);
    v_end bigint;
    v_absence absence;
    v_spared boolean;
    v_count integer := 0;
    v_total integer;
    v_state smallint;
    v_reason text;
    p place;
    v_expired answer[];
    v_leases leased[];
    v_keyed uuid[];
    v_qids integer[];
    v_ruled_qids integer[] := '{}';
    v_gids bigint[] := '{}';
    v_tids bigint[] := '{}';
    v_changes integer[] := '{}';
    v_kept uuid[] := '{}';
    v_kept_gids bigint[] := '{}';
    v_keeps integer[] := '{}';
    v_called boolean;
    l leased;
BEGIN
    v_end := CASE WHEN is_steady(v_now, p_holder, p_gap, p_steady) THEN v_now ELSE -9223372036854775808 END;
    DELETE FROM workers AS w WHERE w.listed_until <= v_end;
    SELECT count(*) INTO v_total FROM (SELECT 1 FROM leased AS x WHERE x.lease_until <= v_end LIMIT p_limit) AS n;  -- leased_until
    SELECT * INTO v_absence FROM absence;
    IF p_limit > v_total THEN
        SELECT array_agg(x) INTO v_expired FROM expire(v_now, ARRAY(  -- ready_dying
            SELECT y.ctid FROM ready AS y WHERE y.dies_at IS NOT NULL AND y.dies_at <= v_now
            ORDER BY y.dies_at LIMIT p_limit - v_total
        )) AS x;
    END IF;
    SELECT array_agg(x), array_agg(x.id) FILTER (WHERE x.keyed), array_agg(x.qid) FILTER (WHERE x.keyed)
    INTO v_leases, v_keyed, v_qids FROM (
        SELECT y.* FROM leased AS y WHERE y.lease_until <= v_end ORDER BY y.lease_until, y.id LIMIT p_limit FOR UPDATE SKIP LOCKED
    ) AS x;
    IF v_keyed IS NOT NULL THEN
        PERFORM lock_keys(v_keyed, v_qids);
    END IF;
    FOREACH l IN ARRAY coalesce(v_leases, '{}') LOOP
        DELETE FROM leased AS x WHERE x.id = l.id;
        l.cancel := l.cancel OR asked_for(l.id);
        INSERT INTO deltas (qid, state, jobs) VALUES (l.qid, 1, -1);
        IF l.gid IS NOT NULL OR l.tid IS NOT NULL THEN
            v_ruled_qids := v_ruled_qids || l.qid;
            v_gids := v_gids || l.gid;
            v_tids := v_tids || l.tid;
            v_changes := v_changes || v_count;
            IF l.tid IS NOT NULL THEN
                PERFORM tell_stopped(v_now, ARRAY[l.qid], ARRAY[l.tid]);
            END IF;
        END IF;
        v_spared := coalesce(v_absence.begins < l.lease_until AND l.lease_until <= v_absence.ends, false);
        p := place_of(l);
        p.lost := p.lost + (NOT (l.cancel OR v_spared))::integer;
        IF l.cancel THEN
            v_state := 4;
            v_reason := asked_reason(l.id);
        ELSIF p.lost > p_max_lost AND NOT v_spared THEN
            v_state := 5;
            v_reason := 'lost';
        ELSE
            v_state := 0;
            v_reason := '';
        END IF;
        IF v_state = 0 THEN
            p.run_at := v_now + p_spread * v_count / greatest(v_total, 1);
            v_called := l.gid IS NOT NULL AND group_running_of(l.qid) = 1;
            PERFORM make_waiting(v_now, p, v_state, v_called);
            IF v_called THEN
                v_kept := v_kept || l.id;
                v_kept_gids := v_kept_gids || l.gid;
                v_keeps := v_keeps || v_count;
            END IF;
            INSERT INTO deltas (qid, state, jobs) VALUES (l.qid, 0, 1);
            RETURN NEXT woken(l.qid);
        ELSE
            PERFORM end_jobs(v_now, v_state, v_reason, ARRAY[p]);
            RETURN QUERY SELECT * FROM tell_waiters(ARRAY[l.id]);
        END IF;
        v_count := v_count + 1;
        RETURN QUERY
        SELECT a.* FROM jobs AS j JOIN queues AS q ON q.qid = l.qid CROSS JOIN LATERAL reaped(
            (l.id, q.name, j.task, v_state, p.lost, v_reason, CASE WHEN l.keyed THEN j.key END)::reaped_row
        ) AS a WHERE j.id = l.id;
    END LOOP;
    RETURN QUERY SELECT (x).* FROM unnest(v_expired) AS x;
    IF v_ruled_qids <> '{}' THEN
        IF (SELECT count(DISTINCT n) FROM unnest(v_kept_gids) AS n) = cardinality(v_kept) THEN
            v_kept := '{}';  -- otherwise several of one group come back, one after the other
        END IF;
        RETURN QUERY SELECT w.* FROM stopped(
            v_now, v_ruled_qids, v_gids, v_tids, false, true, v_changes, v_kept, v_keeps
        ) AS q CROSS JOIN LATERAL woken(q) AS w;
    END IF;
    IF EXISTS (SELECT 1 FROM asks) THEN
        RETURN QUERY SELECT x.* FROM cancel_asked(v_now, p_limit) AS x;
    END IF;
    -- Groups that were left to be looked at, in queues that nobody claims from.
    IF EXISTS (SELECT 1 FROM looks) THEN
        RETURN QUERY SELECT w.* FROM call_looks(NULL) AS q CROSS JOIN LATERAL woken(q) AS w;
    END IF;
    PERFORM fold_deltas();
END $$;

-- Requests to cancel jobs that no longer run: jobs that wait are cancelled, unless somebody has locked them. For ended
-- jobs it is too late.
CREATE FUNCTION cancel_asked(p_now bigint, p_limit integer) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_over uuid[] := ARRAY(  -- asks_id, leased_pkey
        SELECT DISTINCT a.id FROM asks AS a WHERE NOT EXISTS (SELECT 1 FROM leased AS l WHERE l.id = a.id) ORDER BY a.id LIMIT p_limit
    );
    v_wait uuid[];
    v_mine uuid[];
BEGIN
    v_wait := ARRAY(  -- ready_pkey, paused_pkey
        SELECT y.id FROM unnest(v_over) AS n (id) JOIN ready AS y ON y.id = ANY (ARRAY[n.id])
        UNION ALL SELECT p.id FROM unnest(v_over) AS n (id) JOIN paused AS p ON p.id = ANY (ARRAY[n.id])
    );
    IF v_wait <> '{}' THEN
        v_mine := ARRAY(
            SELECT y.id FROM unnest(v_wait) AS n (id) JOIN ready AS y ON y.id = ANY (ARRAY[n.id]) ORDER BY y.id
            FOR UPDATE OF y SKIP LOCKED
        ) || ARRAY(
            SELECT p.id FROM unnest(v_wait) AS n (id) JOIN paused AS p ON p.id = ANY (ARRAY[n.id]) ORDER BY p.id
            FOR UPDATE OF p SKIP LOCKED
        );
        RETURN QUERY SELECT x.* FROM (
            SELECT r.reason, array_agg(m.id) AS ids FROM unnest(v_mine) AS m (id) CROSS JOIN LATERAL asked_reason(m.id) AS r (reason)
            GROUP BY r.reason
        ) AS g CROSS JOIN LATERAL alter_v1(
            p_now, g.ids, 1, g.reason, NULL, '{0,2}'::smallint[], true, NULL, NULL, true
        ) AS x WHERE (x.notice).altered IS NULL;
    END IF;
    DELETE FROM asks AS a WHERE a.id = ANY (v_over) AND (a.id = ANY (v_mine) OR a.id <> ALL (v_wait));  -- asks_id
END $$;

-- Add up a bounded number of ``deltas``, and note which queues were used. One transaction does this at a time. It
-- begins anywhere: if there are very many, it would else walk over what the last ones deleted. False: there are more,
-- or another is doing it.
CREATE FUNCTION fold_deltas() RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    c_most CONSTANT bigint := 20000;
    c_step CONSTANT bigint := 100;  -- pages
    c_pages CONSTANT bigint := 2000;
    v_now CONSTANT bigint := now_us();
    v_pages CONSTANT bigint := pg_relation_size('deltas') / current_setting('block_size')::bigint;
    v_page bigint := CASE WHEN v_pages > c_pages THEN floor(random() * v_pages) ELSE 0 END;
    v_seen bigint := 0;
    v_found bigint := 0;
    v_some bigint;
BEGIN
    IF NOT try_lock('deltas') THEN
        RETURN false;
    END IF;
    WHILE v_seen < v_pages AND v_seen < c_pages AND v_found < c_most LOOP
        WITH gone AS (  -- by place in the heap
            DELETE FROM deltas AS d
            WHERE d.ctid >= format('(%s,0)', v_page)::tid AND d.ctid < format('(%s,0)', v_page + c_step)::tid RETURNING d.*
        ), used AS (
            UPDATE queues AS q SET used_at = v_now, leaving = false FROM (SELECT DISTINCT g.qid FROM gone AS g) AS n  -- queues_pkey
            WHERE q.qid = ANY (ARRAY[n.qid]) AND (q.leaving OR q.used_at < v_now - 3600000000)
        ), shared AS (
            INSERT INTO shares AS s (tenant, jobs, bytes)
            SELECT g.tenant, sum(g.jobs), sum(g.bytes) FROM gone AS g WHERE g.tenant IS NOT NULL GROUP BY g.tenant ORDER BY 1
            ON CONFLICT ON CONSTRAINT shares_pkey DO UPDATE SET jobs = s.jobs + excluded.jobs, bytes = s.bytes + excluded.bytes
        ), summed AS (
            INSERT INTO totals AS t (qid, state, jobs, bytes)
            SELECT coalesce(g.qid, -1), g.state, sum(g.jobs), sum(g.bytes) FROM gone AS g
            GROUP BY GROUPING SETS ((g.qid, g.state), (g.state)) ORDER BY 1, 2
            ON CONFLICT ON CONSTRAINT totals_pkey DO UPDATE SET jobs = t.jobs + excluded.jobs, bytes = t.bytes + excluded.bytes
        )
        SELECT count(*) INTO v_some FROM gone AS g;
        v_found := v_found + v_some;
        v_seen := v_seen + c_step;
        v_page := CASE WHEN v_page + c_step < v_pages THEN v_page + c_step ELSE 0 END;
    END LOOP;
    DELETE FROM shares AS s WHERE s.jobs = 0;  -- shares_jobs
    RETURN v_seen >= v_pages;
END $$;

-- Set aside jobs that make claims or reaps fail, as after an edit behind our back. Called after such a failure, so it
-- may scan all live jobs. Those that wait become FAILED (``corrupt``). Those that run get usable counts, and a reap
-- ends them. One that is in two tables stays in the later one. Answers one row of NULLs per job, then hints for those
-- who wait for them.
CREATE FUNCTION set_aside_v1(p_at bigint) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    v_now bigint := clock(p_at);
    v_far CONSTANT bigint := 4611686018427387904;
    v_end CONSTANT integer := 2147483647;
    v_ids uuid[];
    v_qids integer[];
    v_lanes bigint[];
    v_jobs place[];
    v_found bigint;
BEGIN
    UPDATE leased AS l SET
        lost = CASE WHEN l.lost = v_end THEN v_end / 2 ELSE l.lost END, attempt = least(l.attempt, v_end / 2),
        epoch = CASE WHEN l.epoch BETWEEN -v_far AND v_far THEN l.epoch ELSE v_now END
    WHERE l.lost = v_end OR l.attempt = v_end OR l.epoch NOT BETWEEN -v_far AND v_far;
    GET DIAGNOSTICS v_found = ROW_COUNT;
    WITH twice AS (
        DELETE FROM ready AS y
        WHERE EXISTS (SELECT 1 FROM leased AS l WHERE l.id = y.id) OR EXISTS (SELECT 1 FROM paused AS p WHERE p.id = y.id)
            OR EXISTS (SELECT 1 FROM ended AS e WHERE e.id = y.id)
        RETURNING y.*
    ), bad AS (
        SELECT y.ctid AS place FROM ready AS y
        WHERE y.epoch NOT BETWEEN -v_far AND v_far OR y.run_at < -v_far
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM ready AS y USING bad AS b WHERE y.ctid = b.place AND y.id NOT IN (SELECT t.id FROM twice AS t)
        RETURNING y.*, place_of(y) AS job
    ), counted AS (
        INSERT INTO deltas (qid, state, jobs)
        SELECT n.qid, 0, -count(*) FROM (SELECT g.qid FROM gone AS g UNION ALL SELECT t.qid FROM twice AS t) AS n GROUP BY n.qid
    ), looks AS (
        INSERT INTO looks (qid, gid) SELECT DISTINCT g.qid, g.gid FROM gone AS g WHERE g.gid IS NOT NULL
    )
    SELECT v_found + count(*) + (SELECT count(*) FROM twice), array_agg(g.id), array_agg(g.qid), array_agg(g.lane), array_agg(g.job)
    INTO v_found, v_ids, v_qids, v_lanes, v_jobs FROM gone AS g;
    IF v_ids IS NOT NULL THEN
        PERFORM end_jobs(v_now, 5::smallint, 'corrupt', v_jobs);
        UPDATE ended AS e SET epoch = v_now WHERE e.id = ANY (v_ids) AND e.epoch NOT BETWEEN -v_far AND v_far;  -- ended_pkey
        PERFORM tell_dropped(v_now, v_qids, v_ids, v_lanes);
    END IF;
    RETURN QUERY SELECT (NULL::answer).* FROM generate_series(1, v_found);
    RETURN QUERY SELECT * FROM tell_waiters(v_ids);
END $$;

-- For each of these queues: how many of its workers come before this holder, and how many there are. If the queues are
-- very many, all workers count.
CREATE FUNCTION ranks_v1(p_holder text, p_queues text[]) RETURNS TABLE (queue text, rank bigint, size bigint)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT q.name, count(*) FILTER (WHERE w.holder < p_holder), count(*)
    FROM unnest(p_queues) AS q (name) JOIN workers AS w
        ON w.listed_until > now_us() AND (cardinality(p_queues) > 50 OR q.name = ANY (w.queues))
    GROUP BY q.name;
END $$;

-- A claim passed over jobs on their last chance: 2 if its holder is chosen to make room for them, else 1. It waits for
-- nobody: if the row is locked, another holder is being chosen.
CREATE FUNCTION choose(p_now bigint, p_qid integer, p_holder text, p_lease_for bigint) RETURNS integer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    v_chosen text;
    v_until bigint;
BEGIN
    SELECT q.chosen, q.chosen_until INTO v_chosen, v_until FROM queues AS q WHERE q.qid = p_qid;  -- queues_pkey
    IF v_until > p_now THEN
        RETURN 1 + (v_chosen = p_holder)::integer;
    ELSIF v_chosen = p_holder AND v_until + p_lease_for > p_now THEN
        RETURN 1;
    END IF;
    WITH free AS MATERIALIZED (
        SELECT q.ctid AS place FROM queues AS q WHERE q.qid = p_qid AND q.chosen_until <= p_now FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE queues AS q SET chosen = p_holder, chosen_until = p_now + p_lease_for FROM free AS f WHERE q.ctid = f.place;
    RETURN 1 + FOUND::integer;
END $$;

-- The same for the queues among these that have such a job.
CREATE FUNCTION choose_plain(p_now bigint, p_qids integer[], p_bound integer, p_holder text, p_lease_for bigint) RETURNS integer
LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT coalesce(max(choose(p_now, q.qid, p_holder, p_lease_for)), 1) FROM unnest(p_qids) AS q (qid)
    WHERE EXISTS (  -- ready_lost
        SELECT 1 FROM ready AS y WHERE coalesce(y.lane, y.qid) = q.qid AND y.lost > 0 AND y.lost + 0 >= p_bound AND y.run_at <= p_now
    )
$$;

-- A chosen holder that claims one job without the bound stays chosen.
CREATE FUNCTION stay_chosen(p_qids integer[], p_holder text, p_until bigint) RETURNS void LANGUAGE sql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    WITH mine AS MATERIALIZED (  -- queues_pkey
        SELECT q.ctid AS place FROM queues AS q WHERE q.qid = ANY (p_qids) AND q.chosen = p_holder FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE queues AS q SET chosen_until = p_until FROM mine AS m WHERE q.ctid = m.place
$$;
