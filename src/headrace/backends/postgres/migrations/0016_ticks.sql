-- What became of the slots of schedules. ``outcome``: 0 fired, 1 skipped, 2 missed. Each is written once more when its job
-- has ended. They are counted as jobs are: as state 6 of queue 0, which there is not.
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

-- Whether a job lives: in one look, as it may move meanwhile.
CREATE FUNCTION lives(p_id uuid) RETURNS boolean LANGUAGE sql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT EXISTS (SELECT 1 FROM ready AS y WHERE y.id = p_id) OR EXISTS (SELECT 1 FROM leased AS l WHERE l.id = p_id)
        OR EXISTS (SELECT 1 FROM paused AS p WHERE p.id = p_id)
$$;

-- Lock the place of a job that waits; false if somebody has it in hand, and none if it does not wait.
CREATE FUNCTION try_waiting(p_id uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    PERFORM 1 FROM ready AS y WHERE y.id = p_id FOR UPDATE SKIP LOCKED;  -- ready_pkey
    IF NOT FOUND THEN
        PERFORM 1 FROM paused AS p WHERE p.id = p_id FOR UPDATE SKIP LOCKED;  -- paused_pkey
    END IF;
    IF FOUND THEN
        RETURN true;
    END IF;
    RETURN CASE
        WHEN EXISTS (SELECT 1 FROM ready AS y WHERE y.id = p_id) OR EXISTS (SELECT 1 FROM paused AS p WHERE p.id = p_id) THEN false
    END;
END $$;

-- A row of kind 8: a plan, by its number in ``epoch``, was not carried out; or of kind 9: a tick did not come to what it was
-- planned for, but to the outcome in ``attempt``, or to nothing, as its slot has fired.
CREATE FUNCTION unplanned(p_kind integer, p_ord integer, p_outcome integer) RETURNS claim_row
LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT (
        p_kind, NULL, NULL, NULL, NULL, NULL, p_ord, p_outcome, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL
    )::claim_row
$$;

-- Lock the schedules of several plans, and what may be cancelled, in the order in which everybody does that. Part of ``plan_v1``.
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
        -- What may be cancelled is locked in the order in which everybody does that.
        FOR i IN 1..cardinality(p_names) LOOP
            IF 2 = ANY (t_overlaps[v_tick + 1:v_tick + p_ticks[i]]) THEN
                v_cancelling := v_cancelling || p_names[i];
            END IF;
            v_tick := v_tick + p_ticks[i];
        END LOOP;
        PERFORM lock_keys(array_agg(n.id), array_agg((find_place(n.id)).qid)) FROM (
            SELECT DISTINCT a.last_job FROM unnest(v_cancelling) AS c (name)
            JOIN agenda AS a ON a.name = ANY (ARRAY[c.name]) WHERE a.last_job IS NOT NULL ORDER BY a.last_job
        ) AS n (id) WHERE try_waiting(n.id);
    END IF;
END $$;

-- Carry out plans, in order. ``p_ticks`` says how many ticks each has; ``t_fires``, which of all ticks have a job, and these
-- are ``p_rows``, for ``p_queues``; ``t_overlaps``: 0 allow, 1 skip, 2 cancel. Groups are left to be looked at, as
-- this goes step by step. Answers rows of kind 4, 7, 8 and 9.
CREATE FUNCTION plan_v1(
    p_at bigint, p_names text[], p_uids uuid[], p_versions bigint[], p_slots bigint[], p_look_ats bigint[], p_ticks integer[],
    t_slots bigint[], t_run_ats bigint[], t_counts integer[], t_overlaps smallint[], t_fires boolean[],
    p_queues text[], p_rows job_row[]
) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
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
    IF cardinality(p_names) > 1 THEN
        PERFORM lock_plans(p_names, p_versions, p_ticks, t_overlaps);
    END IF;
    FOR i IN 1..cardinality(p_names) LOOP
        IF p_versions[i] IS NULL THEN  -- agenda_pkey
            SELECT a.* INTO s FROM agenda AS a WHERE a.name = p_names[i] AND a.uid = p_uids[i] FOR UPDATE;
        ELSE  -- who has it in hand is about to change it; and nobody keeps a planner from the schedules of others
            SELECT a.* INTO s FROM agenda AS a
            WHERE a.name = p_names[i] AND a.uid = p_uids[i] AND a.version = p_versions[i] FOR UPDATE SKIP LOCKED;
        END IF;
        v_known := FOUND;
        IF v_known AND p_versions[i] IS NOT NULL AND 2 = ANY (t_overlaps[v_tick + 1:v_tick + p_ticks[i]]) THEN
            v_known := try_waiting(s.last_job) IS NOT FALSE;
        END IF;
        v_fired := 0;
        IF NOT v_known THEN
            RETURN NEXT unplanned(8, i, NULL);
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
                RETURN NEXT unplanned(9, t, NULL);
                CONTINUE;
            END IF;
            v_count := v_count + v_new::integer;
            IF v_skips THEN
                RETURN NEXT unplanned(9, t, 1);
            ELSIF t_fires[t] THEN
                IF v_alive THEN
                    RETURN QUERY SELECT x.* FROM alter_v1(
                        v_now, ARRAY[s.last_job], 1, 'superseded', NULL, ARRAY[0, 1, 2]::smallint[], true, NULL, NULL, true
                    ) AS x WHERE x.kind <> 6;
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

-- ``plan_v1`` for a role that is confined, as when it runs a schedule of its own out of turn. Its jobs may not be more than fit.
CREATE FUNCTION own_plan_v1(
    p_at bigint, p_names text[], p_uids uuid[], p_versions bigint[], p_slots bigint[], p_look_ats bigint[], p_ticks integer[],
    t_slots bigint[], t_run_ats bigint[], t_counts integer[], t_overlaps smallint[], t_fires boolean[],
    p_queues text[], p_rows job_row[]
) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_mine CONSTANT text[] := own_tenants();
    v_names CONSTANT text[] := ARRAY(
        SELECT own_schedule(v_mine, v_mine[1], n.name) FROM unnest(p_names) WITH ORDINALITY AS n (name, ord) ORDER BY n.ord
    );
    v_rows CONSTANT job_row[] := own_rows(v_mine, p_queues, p_rows);
BEGIN
    IF (fitting(now_us(), queue_ids(p_queues), v_rows, true)).fit IS NOT NULL THEN
        RAISE EXCEPTION 'as many jobs wait as the queue, or the store, takes; nothing was stored'
            USING ERRCODE = 'LL002', HINT = 'Try again when some have run, or have the depth of its policy raised.';
    END IF;
    RETURN QUERY SELECT * FROM plan_v1(
        NULL, v_names, p_uids, p_versions, p_slots, p_look_ats, p_ticks, t_slots, t_run_ats, t_counts, t_overlaps, t_fires,
        p_queues, v_rows
    );
    -- What it named is locked by now, and its own, or nothing of this was.
    PERFORM check_own_schedule(v_mine, n, NULL) FROM unnest(v_names) AS n;
    PERFORM check_own(n.id, v_mine) FROM unnest(v_rows) AS n;
END $$;

-- What became of a schedule's slots, the latest first.
CREATE FUNCTION history_v1(p_uid uuid, p_before bigint, p_limit integer)
RETURNS TABLE (
    slot bigint, run_at bigint, outcome smallint, planned_at bigint, count integer, job uuid, state text, waited bigint,
    ran bigint
) LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT t.slot, t.run_at, t.outcome, t.planned_at, t.count, t.job, t.state, t.waited, t.ran
    FROM ticks AS t WHERE t.uid = p_uid AND t.slot <= coalesce(p_before - 1, 9223372036854775807)  -- ticks_pkey
    ORDER BY t.slot DESC LIMIT p_limit
$$;

CREATE FUNCTION own_history_v1(p_uid uuid, p_before bigint, p_limit integer)
RETURNS TABLE (
    slot bigint, run_at bigint, outcome smallint, planned_at bigint, count integer, job uuid, state text, waited bigint,
    ran bigint
) LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT h.* FROM history_v1(p_uid, p_before, p_limit) AS h
    WHERE EXISTS (SELECT 1 FROM schedules AS s WHERE s.uid = p_uid AND s.tenant = ANY (own_tenants()))  -- schedules_uid
    ORDER BY h.slot DESC
$$;

-- What became of the jobs of ticks; of two notes on one tick the last counts.
CREATE FUNCTION note_v1(p_uids uuid[], p_slots bigint[], p_states text[], p_waited bigint[], p_ran bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
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

-- What there is in the places that can be swept: state 6 are the ticks, 7 the keys that outlive the records of their jobs.
CREATE FUNCTION places_v2() RETURNS TABLE (state smallint, jobs bigint, bytes bigint)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT s.state, coalesce(sum(c.jobs), 0)::bigint, coalesce(sum(c.bytes), 0)::bigint
    FROM (VALUES (3::smallint), (4::smallint), (5::smallint), (6::smallint), (7::smallint)) AS s (state)
    LEFT JOIN (
        SELECT t.state, t.jobs, t.bytes FROM totals AS t UNION ALL SELECT d.state, d.jobs, d.bytes FROM deltas AS d
    ) AS c ON c.state = s.state
    GROUP BY s.state ORDER BY s.state
$$;

-- Remove ticks that were planned longest ago: those of that age, and what is too much. One at a time; whoever finds it under
-- way leaves it to the other. A tick that somebody has in hand is for another time.
CREATE FUNCTION sweep_ticks_v1(p_at bigint, p_age bigint, p_count bigint, p_bytes bigint, p_limit integer, p_dry boolean)
RETURNS TABLE (removed bigint, bytes bigint, kept bigint, more boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off
AS $$
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
    SELECT x.jobs, x.bytes INTO v_ticks, v_bytes FROM places_v2() AS x WHERE x.state = 6;
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

-- As before, and what is new. To save a schedule is to enqueue later, and to plan is to enqueue now: it takes the same right.
CREATE OR REPLACE VIEW rights (part, name) AS
WITH own (part, names) AS (
    VALUES
        ('producer', ARRAY[
            'insert_v1', 'enqueue_v1', 'ask_v1', 'fetch_v1', 'migrations', 'save_v1', 'find_v1', 'due_v1', 'plan_v1',
            'history_v1'
        ]),
        ('worker', ARRAY[
            'claim_v1', 'turn_v1', 'complete_v1', 'complete_bound_v1', 'finish_v1', 'renew_v1', 'reap_v1', 'set_aside_v1', 'ranks_v1',
            'note_v1', 'seal_v1', 'relay_v1'
        ]),
        ('janitor', ARRAY[
            'sweep_v1', 'sweep_results_v1', 'sweep_keys_v1', 'sweep_tenants_v1', 'begin_duty_v1', 'end_duty_v1', 'holders_v1', 'make_day_v1',
            'drop_day_v1', 'settle_day_v1', 'forget_queues_v1', 'alter_v1',
            'configure_v1', 'ask_v1', 'save_policy_v1', 'limit_tenant_v1', 'sweep_ticks_v1'
        ]),
        ('reader', ARRAY[
            'fetch_v1', 'matching_v1', 'stats_v1', 'places_v1', 'workers_v1', 'jobs_v1', 'queues_v1', 'failure_text',
            'own_tenants', 'migrations', 'policies_v1', 'tenants_v1', 'group_v1', 'places_v2', 'find_v1', 'due_v1', 'history_v1'
        ]),
        ('confined producer', ARRAY[
            'own_insert_v1', 'enqueue_v1', 'ask_v1', 'own_fetch_v1', 'migrations', 'own_save_v1', 'own_find_v1', 'own_due_v1',
            'own_plan_v1', 'own_history_v1'
        ]),
        ('confined reader', ARRAY[
            'own_fetch_v1', 'own_matching_v1', 'jobs_v1', 'failure_text', 'own_tenants', 'migrations', 'own_find_v1',
            'own_due_v1', 'own_history_v1'
        ])
)
SELECT p.part, n.name
FROM (
    SELECT o.part, o.names FROM own AS o
    UNION ALL SELECT 'worker', o.names FROM own AS o WHERE o.part = 'producer'
    UNION ALL SELECT 'janitor', o.names FROM own AS o WHERE o.part = 'reader'
) AS p CROSS JOIN unnest(p.names) AS n (name);

SELECT seal();
