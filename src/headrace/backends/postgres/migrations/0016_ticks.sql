-- The ledger of ticks. ``outcome``: 0 fired, 1 skipped, 2 missed. Each row is updated once, when its job has ended.
-- They are counted like jobs, as state 6 of queue 0, which does not exist.
CREATE TABLE ticks (
    slot bigint NOT NULL,
    run_at bigint NOT NULL,
    planned_at bigint NOT NULL,
    waited bigint,
    ran bigint,
    uid uuid NOT NULL,
    job uuid,
    count integer NOT NULL,
    outcome smallint NOT NULL,
    state text NOT NULL DEFAULT '',
    CONSTRAINT ticks_pkey PRIMARY KEY (uid, slot)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
CREATE INDEX ticks_age ON ticks (planned_at);

-- Whether a job is live. In one statement, as it may change its state meanwhile.
CREATE FUNCTION lives(p_id uuid) RETURNS boolean LANGUAGE sql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT EXISTS (SELECT 1 FROM ready AS y WHERE y.id = p_id) OR EXISTS (SELECT 1 FROM leased AS l WHERE l.id = p_id)
        OR EXISTS (SELECT 1 FROM paused AS p WHERE p.id = p_id)
$$;

-- Lock the schedules of several plans, and jobs that may be cancelled, in the order that all transactions use. Part of
-- ``plan_v1``.
CREATE FUNCTION lock_plans(p_names text[], p_versions bigint[], p_ticks integer[], t_overlaps smallint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_tick integer := 0;
    v_cancelling text[] := '{}';
BEGIN
    PERFORM 1 FROM (SELECT DISTINCT n.name FROM unnest(p_names, p_versions) AS n (name, version) WHERE n.version IS NULL) AS n
    JOIN agenda AS a ON a.name = ANY (ARRAY[n.name]) ORDER BY a.name FOR UPDATE OF a;  -- agenda_pkey
    PERFORM 1 FROM (SELECT DISTINCT n FROM unnest(p_names) AS n) AS n (name)  -- agenda_pkey
    JOIN agenda AS a ON a.name = ANY (ARRAY[n.name]) ORDER BY a.name FOR UPDATE OF a SKIP LOCKED;
    IF 2 = ANY (t_overlaps) THEN
        FOR i IN 1..cardinality(p_names) LOOP
            IF 2 = ANY (t_overlaps[v_tick + 1:v_tick + p_ticks[i]]) THEN
                v_cancelling := v_cancelling || p_names[i];
            END IF;
            v_tick := v_tick + p_ticks[i];
        END LOOP;
        PERFORM lock_keys(array_agg(n.id), array_agg((find_place(n.id)).qid)) FROM (
            SELECT DISTINCT a.last_job FROM unnest(v_cancelling) AS c (name)
            JOIN agenda AS a ON a.name = ANY (ARRAY[c.name]) WHERE a.last_job IS NOT NULL ORDER BY a.last_job
        ) AS n (id) WHERE try_live(n.id, false);
    END IF;
END $$;

-- The ticks of plans that have a job: which plan, which of all ticks, and which of all jobs.
CREATE FUNCTION fires(p_ticks integer[], t_fires boolean[]) RETURNS TABLE (plan bigint, tick bigint, ord bigint) LANGUAGE sql IMMUTABLE AS $$
    SELECT n.plan, t, row_number() OVER (ORDER BY n.plan, t) FROM (
        SELECT p.plan, p.ticks, sum(p.ticks) OVER (ORDER BY p.plan) AS upto FROM unnest(p_ticks) WITH ORDINALITY AS p (ticks, plan)
    ) AS n CROSS JOIN LATERAL generate_series(n.upto - n.ticks + 1, least(n.upto, cardinality(t_fires))) AS t WHERE t_fires[t]
$$;

-- The rows of plans. Where a schedule is its tenant's own, so are the groups of its jobs.
CREATE FUNCTION fired_rows(p_names text[], p_ticks integer[], t_fires boolean[], p_rows job_row[]) RETURNS job_row[]
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    f record;
    r job_row;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM unnest(p_rows) AS n WHERE n.group_name IS NOT NULL) THEN
        RETURN p_rows;
    END IF;
    FOR f IN SELECT x.* FROM fires(p_ticks, t_fires) AS x LOOP
        r := p_rows[f.ord];
        IF r.group_name IS NOT NULL AND EXISTS (  -- schedules_pkey
            SELECT 1 FROM schedules AS s WHERE s.name = p_names[f.plan] AND (s.scoped OR starts_with(s.name, key_scope(s.tenant)))
        ) THEN
            r.group_name := scoped_group(r.tenant, r.group_name);
            p_rows[f.ord] := r;
        END IF;
    END LOOP;
    RETURN p_rows;
END $$;

-- Carry out plans, in order. ``p_ticks``: how many ticks each has. ``t_fires``: which of all ticks have a job; these
-- are ``p_rows``, of the queues ``p_queues``. ``t_overlaps``: 0 allow, 1 skip, 2 cancel. Groups are left to be looked
-- at.
CREATE FUNCTION plan_v1(
    p_at bigint, p_names text[], p_uids uuid[], p_versions bigint[], p_slots bigint[], p_look_ats bigint[], p_ticks integer[],
    t_slots bigint[], t_run_ats bigint[], t_counts integer[], t_overlaps smallint[], t_fires boolean[],
    p_queues text[], p_rows job_row[]
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_tick integer := 0;  -- the last one dealt with, of all
    v_row integer := 0;  -- the row of the last one that has any
    v_some integer[] := '{}';  -- rows that are to be jobs, and their ids
    v_some_ids uuid[] := '{}';
    v_keyed CONSTANT boolean := EXISTS (SELECT 1 FROM unnest(p_rows) AS n WHERE n.key IS NOT NULL);
    v_count integer := 0;
    v_fired integer;
    v_alive boolean;
    v_skips boolean;
    v_new boolean;
    v_known boolean;
    s agenda;
BEGIN
    IF (SELECT coalesce(sum(n), 0) FROM unnest(p_ticks) AS n WHERE n >= 0) <> cardinality(t_slots)
        OR cardinality(t_fires) <> cardinality(t_slots) OR cardinality(array_positions(t_fires, true)) <> cardinality(p_rows)
    THEN
        PERFORM refuse('expected as many slots as the plans have, and a job for each that fires');
    END IF;
    PERFORM refuse(format('%s: expected %s to %s, got %s', x.what, x.least, x.most, x.got)) FROM (
        SELECT 'instant', v, 0, 7258118400000000 FROM unnest(p_slots || p_look_ats || t_slots || t_run_ats) AS v  -- the year 2200
        UNION ALL SELECT 'count', v, 1, 2147483647 FROM unnest(t_counts) AS v
    ) AS x (what, got, least, most) WHERE x.got NOT BETWEEN x.least AND x.most LIMIT 1;
    p_rows := fired_rows(p_names, p_ticks, t_fires, p_rows);
    IF cardinality(p_names) > 1 THEN
        PERFORM lock_plans(p_names, p_versions, p_ticks, t_overlaps);
    END IF;
    FOR i IN 1..cardinality(p_names) LOOP
        IF p_versions[i] IS NULL THEN  -- agenda_pkey
            SELECT a.* INTO s FROM agenda AS a WHERE a.name = p_names[i] AND a.uid = p_uids[i] FOR UPDATE;
        ELSE  -- who has locked it is about to change it, and must not hold up a planner
            SELECT a.* INTO s FROM agenda AS a
            WHERE a.name = p_names[i] AND a.uid = p_uids[i] AND a.version = p_versions[i] FOR UPDATE SKIP LOCKED;
        END IF;
        v_known := FOUND;
        IF v_known AND p_versions[i] IS NOT NULL AND 2 = ANY (t_overlaps[v_tick + 1:v_tick + p_ticks[i]]) THEN
            v_known := try_live(s.last_job, false) IS NOT FALSE;
        END IF;
        v_fired := 0;
        IF NOT v_known THEN
            RETURN NEXT unplanned(i, NULL, NULL);
        END IF;
        FOR t IN v_tick + 1..v_tick + p_ticks[i] LOOP
            v_row := v_row + t_fires[t]::integer;
            CONTINUE WHEN NOT v_known;
            v_alive := false;
            IF t_fires[t] AND t_overlaps[t] > 0 AND s.last_job IS NOT NULL THEN
                IF s.last_job = ANY (v_some_ids) THEN
                    PERFORM insert_some(v_some, v_now, p_queues, p_rows, true);
                    v_some := '{}';
                    v_some_ids := '{}';
                END IF;
                v_alive := lives(s.last_job);
            END IF;
            v_skips := v_alive AND t_overlaps[t] = 1;
            INSERT INTO ticks AS k (slot, run_at, planned_at, uid, job, count, outcome)  -- ticks_pkey
            VALUES (
                t_slots[t], t_run_ats[t], v_now, s.uid, CASE WHEN t_fires[t] AND NOT v_skips THEN (p_rows[v_row]).id END, t_counts[t],
                CASE WHEN NOT t_fires[t] THEN 2 WHEN v_skips THEN 1 ELSE 0 END
            ) ON CONFLICT ON CONSTRAINT ticks_pkey DO UPDATE SET run_at = excluded.run_at, planned_at = excluded.planned_at,
                job = excluded.job, count = excluded.count, outcome = excluded.outcome, state = '', waited = NULL, ran = NULL
            WHERE k.outcome <> 0
            RETURNING k.xmax = 0 INTO v_new;  -- the row is new, and does not take the place of another
            IF NOT FOUND THEN
                RETURN NEXT unplanned(NULL, t, NULL);
                CONTINUE;
            END IF;
            v_count := v_count + v_new::integer;
            IF v_skips THEN
                RETURN NEXT unplanned(NULL, t, 1);
            ELSIF t_fires[t] THEN
                IF v_alive THEN
                    RETURN QUERY SELECT x.* FROM alter_v1(
                        v_now, ARRAY[s.last_job], 1, 'superseded', NULL, ARRAY[0, 1, 2]::smallint[], true, NULL, NULL, true
                    ) AS x WHERE (x.notice).altered IS NULL;
                END IF;
                v_fired := v_fired + 1;
                v_some := v_some || v_row;
                v_some_ids := v_some_ids || (p_rows[v_row]).id;
                IF p_versions[i] IS NOT NULL THEN
                    s.last_slot := t_slots[t];
                    s.last_job := (p_rows[v_row]).id;
                END IF;
                IF v_keyed THEN  -- which key is free depends on what was cancelled before
                    PERFORM insert_some(v_some, v_now, p_queues, p_rows, true);
                    v_some := '{}';
                    v_some_ids := '{}';
                END IF;
            END IF;
        END LOOP;
        v_tick := v_tick + p_ticks[i];
        IF v_known AND p_versions[i] IS NOT NULL THEN
            UPDATE agenda AS a SET slot = p_slots[i], look_at = p_look_ats[i], last_slot = s.last_slot, last_job = s.last_job,
                runs = a.runs + v_fired, version = a.version + 1
            WHERE a.name = s.name;
        ELSIF v_known THEN
            UPDATE agenda AS a SET runs = a.runs + v_fired, version = a.version + 1 WHERE a.name = s.name;
        END IF;
    END LOOP;
    PERFORM insert_some(v_some, v_now, p_queues, p_rows, true);
    IF v_count > 0 THEN
        INSERT INTO deltas (qid, state, jobs, bytes) VALUES (0, 6, v_count, v_count * 100);
    END IF;
END $$;

-- Check what a confined role plans, beside its rows. A schedule does not go back. Each job names the slot that it is of. It
-- enters little more that is missed than it fires, as the history is bounded for all together: two stretches beside each
-- slot that it fires out of turn, and one for each schedule that catches up.
CREATE FUNCTION check_own_plans(
    p_names text[], p_said text[], p_uids uuid[], p_versions bigint[], p_slots bigint[], p_ticks integer[], t_slots bigint[],
    t_fires boolean[], p_rows job_row[]
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_most CONSTANT integer := 2 * coalesce(cardinality(p_rows), 0) + (SELECT count(DISTINCT n) FROM unnest(p_names) AS n);
BEGIN
    PERFORM refuse(format('slot of a schedule: expected none before %s, got %s', a.slot, n.slot))
    FROM unnest(p_names, p_versions, p_slots) AS n (name, version, slot) JOIN agenda AS a ON a.name = ANY (ARRAY[n.name])  -- agenda_pkey
    WHERE a.version < n.version OR (a.version = n.version AND n.slot < coalesce(a.slot, 9223372036854775807)) LIMIT 1;
    IF cardinality(array_positions(t_fires, false)) > v_most THEN
        PERFORM refuse(format('missed slots: expected at most %s beside these jobs, got more', v_most));
    ELSIF 0 > ANY (p_ticks) THEN
        PERFORM refuse('ticks: expected 0 or more of each plan');
    END IF;
    PERFORM refuse_reserved((p_rows[f.ord]).headers, ARRAY[
        format('headrace-slot %s:%s', replace(p_uids[f.plan]::text, '-', ''), t_slots[f.tick]), 'headrace-schedule ' || p_names[f.plan],
        'headrace-schedule ' || p_said[f.plan], 'headrace-delivery at_most_once'
    ]) FROM fires(p_ticks, t_fires) AS f;
END $$;

-- ``plan_v1`` for a confined role, as when it runs a schedule of its own out of turn. Its jobs must fit.
CREATE FUNCTION own_plan_v1(
    p_at bigint, p_names text[], p_uids uuid[], p_versions bigint[], p_slots bigint[], p_look_ats bigint[], p_ticks integer[],
    t_slots bigint[], t_run_ats bigint[], t_counts integer[], t_overlaps smallint[], t_fires boolean[],
    p_queues text[], p_rows job_row[]
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_mine CONSTANT text[] := own_tenants();
    v_names CONSTANT text[] := ARRAY(
        SELECT own_schedule(v_mine, v_mine[1], n.name) FROM unnest(p_names) WITH ORDINALITY AS n (name, ord) ORDER BY n.ord
    );
    v_rows CONSTANT job_row[] := own_rows(v_mine, p_queues, p_rows, true);
    v_now CONSTANT bigint := now_us();
BEGIN
    PERFORM check_own_plans(v_names, p_names, p_uids, p_versions, p_slots, p_ticks, t_slots, t_fires, p_rows);
    IF cardinality(v_rows) > 0 AND (fitting(v_now, queue_ids(p_queues), v_rows, true)).fit IS NOT NULL THEN
        RAISE EXCEPTION 'as many jobs wait as the queue, or the store, takes; nothing was stored'
            USING ERRCODE = 'LL002', HINT = 'Try again when some have run, or have the depth of its policy raised.';
    END IF;
    RETURN QUERY SELECT * FROM plan_v1(
        NULL, v_names, p_uids, p_versions, p_slots, ARRAY(
            SELECT CASE WHEN n.at < v_now THEN v_now ELSE n.at END FROM unnest(p_look_ats) WITH ORDINALITY AS n (at, ord) ORDER BY n.ord
        ), p_ticks, t_slots, t_run_ats, t_counts, t_overlaps, t_fires, p_queues, v_rows
    );
    -- What it named is locked by now: it must be its own, or all is rolled back.
    PERFORM check_own_schedule(v_mine, n, NULL) FROM unnest(v_names) AS n;
    PERFORM check_own(n.id, v_mine) FROM unnest(v_rows) AS n;
END $$;

CREATE TYPE tick_row AS (
    slot bigint, run_at bigint, outcome smallint, planned_at bigint, count integer, job uuid, state text, waited bigint,
    ran bigint
);

-- The ticks of a schedule, latest first.
CREATE FUNCTION history_v1(p_uid uuid, p_before bigint, p_limit integer) RETURNS SETOF tick_row
LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT t.slot, t.run_at, t.outcome, t.planned_at, t.count, t.job, t.state, t.waited, t.ran
    FROM ticks AS t WHERE t.uid = p_uid AND t.slot <= coalesce(p_before - 1, 9223372036854775807)  -- ticks_pkey
    ORDER BY t.slot DESC LIMIT p_limit
$$;

CREATE FUNCTION own_history_v1(p_uid uuid, p_before bigint, p_limit integer) RETURNS SETOF tick_row
LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT h.* FROM history_v1(p_uid, p_before, p_limit) AS h
    WHERE EXISTS (SELECT 1 FROM schedules AS s WHERE s.uid = p_uid AND s.tenant = ANY (own_tenants()))  -- schedules_uid
    ORDER BY h.slot DESC
$$;

-- Note how the jobs of ticks ended. Of two notes on one tick, the last counts.
CREATE FUNCTION note_v1(p_uids uuid[], p_slots bigint[], p_states text[], p_waited bigint[], p_ran bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH mine AS MATERIALIZED (  -- ticks_pkey, in its order
        SELECT t.uid, t.slot FROM (SELECT DISTINCT n.* FROM unnest(p_uids, p_slots) AS n (uid, slot)) AS n
        JOIN ticks AS t ON t.uid = ANY (ARRAY[n.uid]) AND t.slot = ANY (ARRAY[n.slot])
        ORDER BY t.uid, t.slot FOR UPDATE OF t
    ), last AS MATERIALIZED (
        SELECT DISTINCT ON (n.uid, n.slot) n.*
        FROM unnest(p_uids, p_slots, p_states, p_waited, p_ran) WITH ORDINALITY AS n (uid, slot, state, waited, ran, ord)
        ORDER BY n.uid, n.slot, n.ord DESC
    )
    UPDATE ticks AS t SET state = n.state, waited = n.waited, ran = n.ran
    FROM mine AS m JOIN last AS n ON n.uid = m.uid AND n.slot = m.slot
    WHERE t.uid = ANY (ARRAY[m.uid]) AND t.slot = ANY (ARRAY[m.slot]);
END $$;

-- Remove the oldest ticks: those past the age, and the excess. One transaction does this at a time. Locked ticks are
-- left for another time.
CREATE FUNCTION sweep_ticks_v1(p_at bigint, p_age bigint, p_count bigint, p_bytes bigint, p_limit integer, p_dry boolean)
RETURNS TABLE (removed bigint, bytes bigint, kept bigint, more boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_free CONSTANT boolean := p_dry
        OR try_lock('ticks');
    v_ticks bigint;
    v_bytes bigint;
    v_excess bigint;
    v_places tid[] := '{}';
    v_old tid[];
BEGIN
    SELECT x.jobs, x.bytes INTO v_ticks, v_bytes FROM places_v1() AS x WHERE x.state = 6;
    v_excess := greatest(v_ticks - p_count, (v_bytes - p_bytes + 99) / 100, 0);
    IF v_free AND v_excess > 0 THEN
        v_places := ARRAY(  -- ticks_age
            SELECT t.ctid FROM ticks AS t ORDER BY t.planned_at LIMIT least(v_excess, p_limit + 1) FOR UPDATE SKIP LOCKED
        );
    END IF;
    IF v_free AND p_age IS NOT NULL AND cardinality(v_places) <= p_limit THEN
        v_old := ARRAY(  -- ticks_age: one of the two begins with the other
            SELECT t.ctid FROM ticks AS t WHERE t.planned_at <= v_now - p_age
            ORDER BY t.planned_at LIMIT p_limit + 1 FOR UPDATE SKIP LOCKED
        );
        v_places := CASE WHEN cardinality(v_old) > cardinality(v_places) THEN v_old ELSE v_places END;
    END IF;
    more := cardinality(v_places) > p_limit;
    v_places := v_places[1:p_limit];
    removed := cardinality(v_places);
    bytes := removed * 100;
    kept := v_ticks - removed;
    IF removed > 0 AND NOT p_dry THEN
        DELETE FROM ticks AS t WHERE t.ctid = ANY (v_places);
        INSERT INTO deltas (qid, state, jobs, bytes) VALUES (0, 6, -removed, -bytes);
    END IF;
    RETURN NEXT;
END $$;

SELECT seal();
