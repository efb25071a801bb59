-- A worker beats that was not listed. If nobody else is either, all were away: if two or more of a fleet at work went together, that time
-- is noted. Nobody waits: of several that come back at once, one notes it. The workers are few: they are looked through.
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

-- A worker's sign of life. Answers: the numbers of the leases that are lost, and of those that some transaction has in
-- hand; the jobs to cancel; the queues that are paused; the worker's own leases among the first ``p_census`` that expire, and
-- whether any have. The clock
-- is read once what is written is locked: a beat that had to wait tells of the moment in which it got through.
CREATE FUNCTION renew_v1(
    p_at bigint, p_holder text, p_worker text, p_queues text[], p_lease_for bigint, p_ids uuid[], p_epochs bigint[],
    p_ttl bigint, p_slots integer, p_busy integer, p_leaving boolean, p_gap bigint, p_at_work bigint, p_census integer
) RETURNS TABLE (lost integer[], busy integer[], cancels uuid[], paused text[], held uuid[], held_epochs bigint[], held_begun boolean[], overdue boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
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

-- Whether a holder's own beats have come without a gap, and lately: then those whose leases have run out had time to say that they
-- live.
CREATE FUNCTION is_steady(p_now bigint, p_holder text, p_gap bigint, p_steady bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT p_holder IS NULL OR EXISTS (  -- workers_pkey
        SELECT 1 FROM workers AS w
        WHERE w.holder = p_holder AND w.seen_at >= p_now - p_gap AND w.steady_since <= p_now - p_steady
    )
$$;

-- Take back what vanished holders left, and cancel what has expired. Rows of kind 2 (their state in ``attempt``), 4, 5.
CREATE FUNCTION reap_v1(
    p_at bigint, p_limit integer, p_max_lost integer, p_spread bigint, p_holder text, p_gap bigint, p_steady bigint
) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := clock(p_at);
    v_end bigint;
    v_absence absence;
    v_spared boolean;
    v_count integer := 0;
    v_total integer;
    v_state smallint;
    v_reason text;
    v_lost integer;
    v_run_at bigint;
    v_expired claim_row[];
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
        SELECT array_agg(x) INTO v_expired FROM expire_v1(v_now, ARRAY(  -- ready_dying
            SELECT y.ctid FROM ready AS y WHERE y.dies_at IS NOT NULL AND y.dies_at <= v_now
            ORDER BY y.dies_at LIMIT p_limit - v_total
        )) AS x;
    END IF;
    SELECT array_agg(x), array_agg(x.id) FILTER (WHERE x.keyed), array_agg(x.qid) FILTER (WHERE x.keyed)
    INTO v_leases, v_keyed, v_qids FROM (
        SELECT y.* FROM leased AS y WHERE y.lease_until <= v_end ORDER BY y.lease_until, y.id LIMIT p_limit FOR UPDATE SKIP LOCKED
    ) AS x;
    PERFORM lock_keys(v_keyed, v_qids);
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
        v_lost := coalesce(l.lost, 0) + (NOT (l.cancel OR v_spared))::integer;
        IF l.cancel THEN
            v_state := 4;
            v_reason := asked_reason(l.id);
        ELSIF v_lost > p_max_lost AND NOT v_spared THEN
            v_state := 5;
            v_reason := 'lost';
        ELSE
            v_state := 0;
            v_reason := '';
        END IF;
        IF v_state = 0 THEN
            v_run_at := v_now + p_spread * v_count / greatest(v_total, 1);
            v_called := l.gid IS NOT NULL AND turns_of(l.qid) = 1;
            PERFORM make_available(
                v_now, l.id, l.qid, v_run_at, l.epoch, l.attempt, v_lost, l.size, l.priority, l.keyed, l.error, v_called
            );
            IF v_called THEN
                v_kept := v_kept || l.id;
                v_kept_gids := v_kept_gids || l.gid;
                v_keeps := v_keeps || v_count;
            END IF;
            INSERT INTO deltas (qid, state, jobs) VALUES (l.qid, 0, 1);
            RETURN NEXT woken(l.qid);
        ELSE
            PERFORM end_jobs(
                v_now, v_state, v_reason, ARRAY[l.id], ARRAY[l.qid], ARRAY[l.epoch], ARRAY[l.attempt], ARRAY[v_lost],
                ARRAY[l.size], ARRAY[l.priority], ARRAY[l.run_at], ARRAY[l.keyed], ARRAY[l.error]
            );
            RETURN QUERY SELECT (told(w.id, w.inbox)).* FROM take_waiters(ARRAY[l.id]) AS w;
        END IF;
        v_count := v_count + 1;
        RETURN QUERY
        SELECT 2::smallint, l.id, q.name, j.task, v_reason, CASE WHEN l.keyed THEN j.key END, l.epoch, v_state::integer, v_lost,
            l.priority, l.run_at, NULL::bigint, NULL::integer, NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea,
            NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea, NULL::text, NULL::integer, NULL::boolean
        FROM jobs AS j JOIN queues AS q ON q.qid = l.qid WHERE j.id = l.id;
    END LOOP;
    RETURN QUERY SELECT (x).* FROM unnest(v_expired) AS x;
    IF v_ruled_qids <> '{}' THEN
        IF (SELECT count(DISTINCT n) FROM unnest(v_kept_gids) AS n) = cardinality(v_kept) THEN
            v_kept := '{}';  -- otherwise several of a group come back, one after the other
        END IF;
        RETURN QUERY SELECT w.* FROM stopped(
            v_now, v_ruled_qids, v_gids, v_tids, false, true, v_changes, v_kept, v_keeps
        ) AS q CROSS JOIN LATERAL woken(q) AS w;
    END IF;
    IF EXISTS (SELECT 1 FROM asks) THEN
        RETURN QUERY SELECT x.* FROM cancel_asked(v_now, p_limit) AS x;
    END IF;
    -- Groups that somebody has left to others, as in queues that nobody claims from.
    IF EXISTS (SELECT 1 FROM looks) THEN
        RETURN QUERY SELECT w.* FROM call_looks(NULL) AS q CROSS JOIN LATERAL woken(q) AS w;
    END IF;
    PERFORM fold_deltas();
END $$;

-- Asks for jobs that do not run any more: those that wait again are cancelled, but for what somebody has in hand; for the others it
-- is too late. Rows of kind 4 and 5.
CREATE FUNCTION cancel_asked(p_now bigint, p_limit integer) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
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
        ) AS x WHERE x.kind <> 6;
    END IF;
    DELETE FROM asks AS a WHERE a.id = ANY (v_over) AND (a.id = ANY (v_mine) OR a.id <> ALL (v_wait));  -- asks_id
END $$;

-- Add up what transactions have counted, and note which queues they used. One at a time; whoever finds it under way leaves it to
-- the other. Whether it was done.
CREATE FUNCTION fold_deltas() RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_now CONSTANT bigint := now_us();
BEGIN
    IF NOT try_lock('deltas') THEN
        RETURN false;
    END IF;
    WITH gone AS (
        DELETE FROM deltas AS d RETURNING d.*
    ), used AS (
        UPDATE queues AS q SET used_at = v_now, leaving = false FROM (SELECT DISTINCT g.qid FROM gone AS g) AS n  -- queues_pkey
        WHERE q.qid = ANY (ARRAY[n.qid]) AND (q.leaving OR q.used_at < v_now - 3600000000)
    ), shared AS (
        INSERT INTO shares AS s (tenant, jobs, bytes)
        SELECT g.tenant, sum(g.jobs), sum(g.bytes) FROM gone AS g WHERE g.tenant IS NOT NULL GROUP BY g.tenant ORDER BY 1
        ON CONFLICT ON CONSTRAINT shares_pkey DO UPDATE SET jobs = s.jobs + excluded.jobs, bytes = s.bytes + excluded.bytes
    )
    INSERT INTO totals AS t (qid, state, jobs, bytes)
    SELECT g.qid, g.state, sum(g.jobs), sum(g.bytes) FROM gone AS g GROUP BY g.qid, g.state ORDER BY 1, 2
    ON CONFLICT ON CONSTRAINT totals_pkey DO UPDATE SET jobs = t.jobs + excluded.jobs, bytes = t.bytes + excluded.bytes;
    DELETE FROM shares AS s WHERE s.jobs = 0;  -- shares_jobs
    RETURN true;
END $$;

-- Jobs with which no claim or reap can go on, as after an edit past these functions, are set aside: asked for when one has failed, so
-- that it may walk through all that waits and runs. Those that wait become FAILED with the reason 'corrupt'; those that run are
-- counted anew, and a reap ends them; one that lies in two places stays in the one that is further on. Tells how many, and the
-- inboxes that wait for them.
CREATE FUNCTION set_aside_v1(p_at bigint) RETURNS TABLE (id uuid, inbox text) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := clock(p_at);
    v_far CONSTANT bigint := 4611686018427387904;
    v_end CONSTANT integer := 2147483647;
    v_ids uuid[];
    v_qids integer[];
    v_lanes bigint[];
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
        DELETE FROM ready AS y USING bad AS b WHERE y.ctid = b.place AND y.id NOT IN (SELECT t.id FROM twice AS t) RETURNING y.*
    ), counted AS (
        INSERT INTO deltas (qid, state, jobs)
        SELECT n.qid, 0, -count(*) FROM (SELECT g.qid FROM gone AS g UNION ALL SELECT t.qid FROM twice AS t) AS n GROUP BY n.qid
    ), whose AS MATERIALIZED (  -- jobs_pkey
        SELECT g.*, coalesce((SELECT j.tenant FROM jobs AS j WHERE j.id = g.id), '') AS tenant FROM gone AS g
    ), kept AS (
        INSERT INTO ended (
            finished_at, held_until, run_at, id, qid, epoch, attempt, lost, size, state, priority, keyed, reason, tenant, error
        )
        SELECT v_now, 0, w.run_at, w.id, w.qid, CASE WHEN w.epoch BETWEEN -v_far AND v_far THEN w.epoch ELSE v_now END,
            w.attempt, w.lost, w.size, 5, w.priority, w.keyed, 'corrupt', w.tenant, w.error
        FROM whose AS w
    ), weighed AS (
        INSERT INTO deltas (qid, state, jobs, bytes, tenant)
        SELECT w.qid, 5, count(*), sum(w.size), w.tenant FROM whose AS w GROUP BY w.qid, w.tenant
    ), looks AS (
        INSERT INTO looks (qid, gid) SELECT DISTINCT g.qid, g.gid FROM gone AS g WHERE g.gid IS NOT NULL
    )
    SELECT v_found + count(*) + (SELECT count(*) FROM twice), array_agg(g.id), array_agg(g.qid), array_agg(g.lane)
    INTO v_found, v_ids, v_qids, v_lanes FROM gone AS g;
    IF v_ids IS NOT NULL THEN
        PERFORM lock_keys(v_ids, v_qids);
        UPDATE keys AS k SET held_until = 0, failed = true
        FROM unnest(v_ids, v_qids) AS n (id, qid) JOIN jobs AS j ON j.id = n.id
        WHERE k.qid = n.qid AND k.key = j.key AND k.id = n.id;
        PERFORM tell_dropped(v_now, v_qids, v_ids, v_lanes);
    END IF;
    RETURN QUERY SELECT NULL::uuid, NULL::text FROM generate_series(1, v_found);
    RETURN QUERY SELECT w.id, w.inbox FROM take_waiters(v_ids) AS w;
END $$;

-- Of each of these queues, how many of the workers that serve it come before this holder, and how many there are; of very many queues,
-- all workers count.
CREATE FUNCTION ranks_v1(p_holder text, p_queues text[]) RETURNS TABLE (queue text, rank bigint, size bigint)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT q.name, count(*) FILTER (WHERE w.holder < p_holder), count(*)
    FROM unnest(p_queues) AS q (name) JOIN workers AS w
        ON w.listed_until > now_us() AND (cardinality(p_queues) > 50 OR q.name = ANY (w.queues))
    GROUP BY q.name;
END $$;

-- A claim has passed over jobs of a queue that were lost too often: 2, if its holder is the one who makes room for them, else 1. It waits
-- for nobody: while another has the queue in hand, somebody else is just chosen.
CREATE FUNCTION choose(p_now bigint, p_qid integer, p_holder text, p_lease_for bigint) RETURNS integer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
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

-- The same where the queue is still to be found: one of those that were looked at.
CREATE FUNCTION choose_plain(p_now bigint, p_qids integer[], p_bound integer, p_holder text, p_lease_for bigint) RETURNS integer
LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT coalesce(max(choose(p_now, q.qid, p_holder, p_lease_for)), 1) FROM unnest(p_qids) AS q (qid)
    WHERE EXISTS (  -- ready_lost
        SELECT 1 FROM ready AS y WHERE coalesce(y.lane, y.qid) = q.qid AND y.lost > 0 AND y.lost >= p_bound AND y.run_at <= p_now
    )
$$;

-- Who was chosen, and claims one job without a bound, stays so.
CREATE FUNCTION stay_chosen(p_qids integer[], p_holder text, p_until bigint) RETURNS void LANGUAGE sql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    WITH mine AS MATERIALIZED (  -- queues_pkey
        SELECT q.ctid AS place FROM queues AS q WHERE q.qid = ANY (p_qids) AND q.chosen = p_holder FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE queues AS q SET chosen_until = p_until FROM mine AS m WHERE q.ctid = m.place
$$;
