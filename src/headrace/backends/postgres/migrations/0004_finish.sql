-- The usual end of leases of one holder: COMPLETED, and nothing else about the job changes. They come in the order of their
-- ids. Answers, as rows of kind 0, only for those that are fenced off, by their number; and rows of kind 4 and 5. ``p_bound``
-- as for ``insert_v1``. With ``p_claims`` the caller goes on to claim: where all of them are of one governed queue and none of a group, ``qid`` and
-- ``tids`` are that queue and their tenants, which nobody is told here.
CREATE TYPE completed AS (answers claim_row[], qid integer, tids bigint[]);
CREATE FUNCTION complete(
    p_at bigint, p_holder text, p_ids uuid[], p_epochs bigint[], p_results bytea[], p_result_ttls bigint[], p_keep boolean,
    p_bound boolean, p_claims boolean
) RETURNS completed LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
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
        c.answers := ARRAY(SELECT told(w.id, w.inbox) FROM take_waiters(ARRAY(SELECT p_ids[o] FROM unnest(v_done) AS o)) AS w);
    END IF;
    IF coalesce(cardinality(v_done), 0) < cardinality(p_ids) THEN
        c.answers := c.answers || ARRAY(
            SELECT settled(n.id, n.ord::integer, NULL) FROM unnest(p_ids) WITH ORDINALITY AS n (id, ord) WHERE n.ord <> ALL (coalesce(v_done, '{}'))
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

CREATE FUNCTION complete_v1(
    p_at bigint, p_holder text, p_ids uuid[], p_epochs bigint[], p_results bytea[], p_result_ttls bigint[], p_keep boolean,
    p_bound boolean DEFAULT false
) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c completed := complete(p_at, p_holder, p_ids, p_epochs, p_results, p_result_ttls, p_keep, p_bound, false);
BEGIN
    RETURN QUERY SELECT * FROM unnest(c.answers);
END $$;

-- What is counted of a job: as in ``deltas``, to which a later version may add columns.
CREATE TYPE counted AS (qid integer, state smallint, jobs bigint, bytes bigint, tenant text);

-- Settlements of any kind. Those that ``complete_v1`` would take, of jobs without a key, are recorded together; they have
-- nothing to do with the others, which follow one by one and in order; jobs that they spawn come last. Answers, as rows of
-- kind 0: those that are fenced off (no attempt), and those that a cancellation overtook (attempt 4); rows of kind 4; and,
-- as kind 5, queues in which a job is to be had.
CREATE FUNCTION finish_v1(
    p_at bigint, p_ids uuid[], p_epochs bigint[], p_holders text[], p_states smallint[], p_delays bigint[],
    p_failed boolean[], p_keep_lost boolean[], p_unbegun boolean[], p_queues text[], p_priorities smallint[], p_masks smallint[],
    p_parameters bytea[], p_vm_states bytea[], p_metadatas bytea[], p_blobs bytea[], p_errors bytea[], p_reasons text[],
    p_results bytea[], p_result_ttls bigint[], p_keeps boolean[], p_spawn_first integer[], p_spawn_count integer[],
    s_names text[], s_ids uuid[], s_queues smallint[], s_tasks text[], s_tenants text[], s_keys text[],
    s_priorities smallint[], s_delays bigint[], s_run_ats bigint[], s_expires bigint[], s_max_attempts integer[],
    s_timeouts bigint[], s_result_ttls bigint[], s_headers bytea[], s_reply_tos text[], s_hold_failed boolean[],
    s_groups text[], s_parameters bytea[], s_vm_states bytea[], s_metadatas bytea[], s_blobs bytea[], p_run_ats bigint[]
) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := clock(p_at);
    v_places leased[];
    v_plain integer[];
    v_plain_ids uuid[];
    v_next integer := 1;
    v_state smallint;
    v_reason text;
    v_qid integer;
    v_keyed boolean;
    v_run_at bigint;
    v_attempt integer;
    v_lost integer;
    v_size integer;
    v_error bytea;
    v_result bytea;
    v_priority smallint;
    v_runs integer := 0;
    v_firsts integer[] := '{}';
    v_lasts integer[] := '{}';
    v_from integer;
    v_to integer;
    v_counted counted[] := '{}';
    v_tenants text[];
    v_ruled_qids integer[];
    v_gids bigint[];
    v_tids bigint[];
    v_gid bigint;
    v_changes integer[];
    v_entered uuid[] := '{}';
    v_entries integer[] := '{}';
    v_called boolean;
    v_kept uuid[] := '{}';
    v_kept_gids bigint[] := '{}';
    v_keeps integer[] := '{}';
    v_named integer[];
    v_spawned_qids integer[];
    v_spawned_gids bigint[];
    v_spawned_ids uuid[];
    v_spawned_ords integer[];
    v_asked uuid[];
    l leased;
BEGIN
    WITH asked AS MATERIALIZED (
        SELECT n.* FROM unnest(p_ids, p_epochs, p_holders) WITH ORDINALITY AS n (id, epoch, holder, ord) ORDER BY n.id, n.ord
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
    IF array_remove(p_queues, NULL) <> '{}' THEN
        PERFORM queue_ids(ARRAY(SELECT DISTINCT q FROM unnest(p_queues) AS q WHERE q IS NOT NULL));
    END IF;
    PERFORM lock_keys(array_agg((v_places[n.ord]).id), array_agg((v_places[n.ord]).qid), array_agg(q.qid))
    FROM unnest(p_queues) WITH ORDINALITY AS n (queue, ord) LEFT JOIN queues AS q ON q.name = n.queue  -- queues_name_key
    WHERE (v_places[n.ord]).keyed HAVING count(*) > 1 OR count(q.qid) > 0;
    WITH plain AS MATERIALIZED (
        SELECT
            n.ord, n.ttl, n.keep, (n.place).run_at, (n.place).id, (n.place).qid, (n.place).epoch, (n.place).attempt,
            (n.place).priority, (n.place).gid, (n.place).tid, (n.place).error, CASE WHEN n.ttl > 0 THEN n.result END AS result,
            (n.place).size + CASE WHEN n.ttl > 0 THEN coalesce(octet_length(n.result), 0) ELSE 0 END AS bytes
        FROM (
            SELECT s.*, v_places[s.ord] AS place FROM unnest(
                p_states, p_failed, p_keep_lost, p_queues, p_priorities, p_masks, p_errors, p_reasons, p_results,
                p_result_ttls, p_keeps, p_spawn_count
            ) WITH ORDINALITY AS s (
                state, failed, keep_lost, queue, priority, mask, error, reason, result, ttl, keep, spawned, ord
            )
        ) AS n
        WHERE (n.place).id IS NOT NULL AND NOT (n.place).keyed AND n.state = 3 AND NOT n.failed AND NOT n.keep_lost
            AND n.queue IS NULL AND n.priority IS NULL AND n.mask = 0 AND n.error IS NULL AND n.reason = '' AND n.spawned = 0
    ), kept AS (
        INSERT INTO ended (
            finished_at, held_until, run_at, id, qid, epoch, attempt, lost, size, state, priority, keyed, reason, error,
            result
        )
        SELECT
            v_now, v_now + p.ttl, p.run_at, p.id, p.qid, p.epoch, p.attempt, NULL, p.bytes, 3, p.priority, false, '', p.error,
            p.result
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
    INTO v_plain, v_plain_ids, v_ruled_qids, v_gids, v_tids FROM plain AS p;
    v_changes := array_fill(0, ARRAY[cardinality(v_gids)]);
    IF v_tids <> '{}' THEN
        PERFORM tell_stopped(v_now, v_ruled_qids, v_tids);
    END IF;
    RETURN QUERY SELECT (told(w.id, w.inbox)).* FROM take_waiters(v_plain_ids) AS w;
    v_asked := ARRAY(SELECT a.id FROM asks AS a WHERE a.id = ANY (p_ids));  -- asks_id
    IF 5 = ANY (p_states) THEN
        v_tenants := tenants_of(p_ids);
    END IF;
    FOR i IN 1..cardinality(p_ids) LOOP
        IF v_plain[v_next] = i THEN
            v_next := v_next + 1;
            CONTINUE;
        END IF;
        l := v_places[i];
        IF l.id IS NULL THEN
            RETURN NEXT settled(p_ids[i], i, NULL);
            CONTINUE;
        END IF;
        v_state := p_states[i];
        v_reason := p_reasons[i];
        IF (l.cancel OR l.id = ANY (v_asked)) AND (v_state IN (0, 2) OR v_state = 4 AND v_reason = 'cancelled') THEN
            IF v_state <> 4 THEN
                RETURN NEXT settled(p_ids[i], i, 4);
            END IF;
            v_state := 4;
            v_reason := asked_reason(l.id);
        END IF;
        v_qid := l.qid;
        v_keyed := l.keyed;
        v_priority := coalesce(p_priorities[i], l.priority);
        v_attempt := l.attempt + p_failed[i]::integer;
        v_lost := CASE WHEN p_keep_lost[i] THEN coalesce(l.lost, 0) ELSE 0 END;
        v_error := coalesce(p_errors[i], l.error);
        v_size := l.size + coalesce(octet_length(v_error), 0) - coalesce(octet_length(l.error), 0);
        v_result := CASE WHEN v_state = 3 AND p_result_ttls[i] > 0 THEN p_results[i] END;
        v_run_at := coalesce(p_run_ats[i], v_now + p_delays[i], l.run_at);
        IF p_masks[i] <> 0 THEN
            v_size := v_size + patch_cells(
                l.id, p_masks[i], p_parameters[i], p_vm_states[i], p_metadatas[i], p_blobs[i]
            );
        END IF;
        IF p_queues[i] IS NOT NULL THEN
            v_qid := (queue_ids(ARRAY[p_queues[i]]))[1];
            IF v_qid <> l.qid AND l.keyed THEN
                v_keyed := move_key(v_now, l.id, l.qid, v_qid);
                IF NOT v_keyed THEN
                    DELETE FROM keys AS k
                    WHERE k.qid = l.qid AND k.key = (SELECT j.key FROM jobs AS j WHERE j.id = l.id) AND k.id = l.id;
                END IF;
            END IF;
        END IF;
        v_counted := v_counted || (l.qid, 1, -1, 0, NULL)::counted;
        IF l.gid IS NOT NULL OR l.tid IS NOT NULL THEN
            v_ruled_qids := v_ruled_qids || l.qid;
            v_gids := v_gids || l.gid;
            v_tids := v_tids || l.tid;
            v_changes := v_changes || i;
            IF l.tid IS NOT NULL THEN
                PERFORM tell_stopped(v_now, ARRAY[l.qid], ARRAY[l.tid]);
            END IF;
        END IF;
        IF v_state = 0 THEN
            v_called := l.gid IS NOT NULL AND v_qid = l.qid AND turns_of(l.qid) = 1;
            v_gid := make_available(
                v_now, l.id, v_qid, v_run_at, CASE WHEN p_unbegun[i] THEN -l.epoch ELSE l.epoch END, v_attempt, v_lost, v_size, v_priority, v_keyed, v_error, v_called
            );
            IF v_gid IS NOT NULL THEN
                v_ruled_qids := v_ruled_qids || v_qid;
                v_gids := v_gids || v_gid;
                v_tids := v_tids || NULL::bigint;
                v_changes := v_changes || i;
                IF v_qid <> l.qid THEN
                    v_entered := v_entered || l.id;
                    v_entries := v_entries || i;
                ELSIF v_called THEN
                    v_kept := v_kept || l.id;
                    v_kept_gids := v_kept_gids || v_gid;
                    v_keeps := v_keeps || i;
                END IF;
            END IF;
            RETURN NEXT woken(v_qid);
        ELSIF v_state = 2 THEN
            INSERT INTO paused (run_at, id, qid, epoch, attempt, lost, size, priority, keyed, error)
            VALUES (
                v_run_at, l.id, v_qid, CASE WHEN p_unbegun[i] THEN -l.epoch ELSE l.epoch END, v_attempt, v_lost, v_size,
                v_priority, v_keyed, v_error
            );
        ELSE
            v_size := v_size + coalesce(octet_length(v_result), 0);
            IF v_keyed THEN
                UPDATE keys AS k SET held_until = CASE WHEN v_state = 3 THEN v_now + p_result_ttls[i] ELSE 0 END,
                    failed = (v_state = 5)
                WHERE k.qid = v_qid AND k.key = (SELECT j.key FROM jobs AS j WHERE j.id = l.id) AND k.id = l.id;
            END IF;
            IF v_state = 3 AND NOT p_keeps[i] THEN
                PERFORM forget_jobs(ARRAY[l.id], ARRAY[v_qid]);
            ELSE
                INSERT INTO ended (
                    finished_at, held_until, run_at, id, qid, epoch, attempt, lost, size, state, priority, keyed, reason,
                    tenant, error, result
                ) VALUES (
                    v_now, CASE WHEN v_state = 3 THEN v_now + p_result_ttls[i] ELSE 0 END, l.run_at, l.id, v_qid, l.epoch,
                    v_attempt, v_lost, v_size, v_state, v_priority, v_keyed, v_reason,
                    CASE WHEN v_state = 5 THEN v_tenants[i] END, v_error, v_result
                );
            END IF;
            RETURN QUERY SELECT (told(w.id, w.inbox)).* FROM take_waiters(ARRAY[l.id]) AS w;
        END IF;
        IF NOT (v_state = 3 AND NOT p_keeps[i]) THEN
            v_counted := v_counted || (
                v_qid, v_state, 1, CASE WHEN v_state > 2 THEN v_size ELSE 0 END, CASE WHEN v_state = 5 THEN v_tenants[i] END
            )::counted;
        END IF;
        IF p_spawn_count[i] > 0 THEN
            IF v_lasts[v_runs] = p_spawn_first[i] - 1 THEN
                v_lasts[v_runs] := v_lasts[v_runs] + p_spawn_count[i];
            ELSE
                v_runs := v_runs + 1;
                v_firsts[v_runs] := p_spawn_first[i];
                v_lasts[v_runs] := p_spawn_first[i] + p_spawn_count[i] - 1;
            END IF;
        END IF;
    END LOOP;
    IF cardinality(v_kept) > 1 AND (SELECT count(DISTINCT n) FROM unnest(v_kept_gids) AS n) < cardinality(v_kept) THEN
        v_entered := v_entered || v_kept;  -- several of a group come back, one after the other
        v_entries := v_entries || v_keeps;
    END IF;
    INSERT INTO deltas (qid, state, jobs, bytes, tenant)
    SELECT n.qid, n.state, sum(n.jobs), sum(n.bytes), n.tenant FROM unnest(v_counted) AS n GROUP BY n.qid, n.state, n.tenant;
    FOR i IN 1..v_runs LOOP  -- one run, unless a settlement is fenced off, and so all of them in the order of their keys
        v_from := v_firsts[i];
        v_to := v_lasts[i];
        PERFORM insert_v1(
            v_now, s_names, s_ids[v_from:v_to], s_queues[v_from:v_to], s_tasks[v_from:v_to], s_tenants[v_from:v_to],
            s_keys[v_from:v_to], s_priorities[v_from:v_to], s_delays[v_from:v_to], s_run_ats[v_from:v_to],
            s_expires[v_from:v_to], s_max_attempts[v_from:v_to], s_timeouts[v_from:v_to], s_result_ttls[v_from:v_to],
            s_headers[v_from:v_to], s_reply_tos[v_from:v_to], s_hold_failed[v_from:v_to], s_groups[v_from:v_to],
            s_parameters[v_from:v_to], s_vm_states[v_from:v_to], s_metadatas[v_from:v_to], s_blobs[v_from:v_to],
            false, false, false
        );
    END LOOP;
    IF s_groups IS NOT NULL AND v_runs > 0 THEN  -- all groups are called together, but those that were spawned come last
        v_named := queue_ids(s_names);
        SELECT array_agg(x.qid ORDER BY x.ord), array_agg(gid_of(x.qid, x.name) ORDER BY x.ord), array_agg(x.id ORDER BY x.ord),
            array_agg(x.ord::integer ORDER BY x.ord)
        INTO v_spawned_qids, v_spawned_gids, v_spawned_ids, v_spawned_ords FROM (
            SELECT v_named[n.queue] AS qid, n.name, n.id, n.ord
            FROM unnest(s_queues, s_groups, s_ids) WITH ORDINALITY AS n (queue, name, id, ord)
            JOIN unnest(v_firsts, v_lasts) AS r (first, last) ON n.ord BETWEEN r.first AND r.last
            WHERE n.name IS NOT NULL
        ) AS x;
    END IF;
    IF v_spawned_gids IS NOT NULL THEN
        IF v_entered = '{}' THEN
            v_changes := array_fill(0, ARRAY[cardinality(v_gids)]);
        END IF;
        v_spawned_ords := ARRAY(
            SELECT cardinality(p_ids) + CASE WHEN c.crossed THEN n.ord ELSE 1 END
            FROM crossed(v_spawned_qids, v_spawned_gids, v_spawned_ids) AS c (crossed) CROSS JOIN unnest(v_spawned_ords) AS n (ord)
            ORDER BY n.ord
        );
        v_ruled_qids := v_ruled_qids || v_spawned_qids;
        v_gids := v_gids || v_spawned_gids;
        v_tids := v_tids || array_fill(NULL::bigint, ARRAY[cardinality(v_spawned_gids)]);
        v_changes := v_changes || v_spawned_ords;
        v_entered := v_entered || v_spawned_ids;
        v_entries := v_entries || v_spawned_ords;
    END IF;
    IF v_ruled_qids <> '{}' THEN
        RETURN QUERY SELECT w.* FROM stopped(
            v_now, v_ruled_qids, v_gids, v_tids, false, true, v_changes, v_entered, v_entries
        ) AS q CROSS JOIN LATERAL woken(q) AS w;
    END IF;
END $$;

-- A job that lies nowhere becomes AVAILABLE; the number of its group, if it has one. With ``p_called`` a job of a group has
-- its turn already, otherwise it stands in line, and the caller has the group called.
CREATE FUNCTION make_available(
    p_now bigint, p_id uuid, p_qid integer, p_run_at bigint, p_epoch bigint, p_attempt integer, p_lost integer, p_size integer,
    p_priority smallint, p_keyed boolean, p_error bytea, p_called boolean
) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_gid bigint;
    v_lane bigint;
BEGIN
    INSERT INTO ready AS y (run_at, lane, id, qid, epoch, attempt, lost, size, priority, keyed, dies_at, gid, error)
    SELECT
        p_run_at,
        CASE
            WHEN j.group_name IS NOT NULL AND NOT p_called THEN -p_qid
            WHEN q.governed THEN lane_of(p_qid, j.tenant, j.task) + (p_run_at > p_now)::integer
            WHEN p_run_at > p_now THEN 0
        END,
        p_id, p_qid, p_epoch, p_attempt, p_lost, p_size, p_priority, p_keyed,
        CASE WHEN j.expires_at IS NOT NULL THEN greatest(j.expires_at, p_run_at) END,
        CASE WHEN j.group_name IS NOT NULL THEN gid_of(p_qid, j.group_name) END, p_error
    FROM jobs AS j LEFT JOIN queues AS q ON q.qid = p_qid WHERE j.id = p_id  -- jobs_pkey, queues_pkey
    RETURNING y.gid, y.lane INTO v_gid, v_lane;
    IF v_lane >= 4611686018427387904 THEN
        INSERT INTO news (qid, kind, tids, jobs, ats, lanes, tenants, tasks)
        SELECT p_qid, 1, ARRAY[tid_of(p_qid, j.tenant)], '{1}', ARRAY[p_run_at], ARRAY[v_lane & -2], ARRAY[j.tenant], ARRAY[j.task]
        FROM jobs AS j WHERE j.id = p_id;
    END IF;
    RETURN v_gid;
END $$;

CREATE FUNCTION settled(p_id uuid, p_ord integer, p_state integer) RETURNS claim_row
LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT (
        0, p_id, NULL, NULL, NULL, NULL, p_ord, p_state, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL
    )::claim_row
$$;

CREATE FUNCTION woken(p_qid integer) RETURNS claim_row LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT (
        5, NULL, name_of(p_qid), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL
    )::claim_row
$$;

-- Bytes in the cells of a job.
CREATE FUNCTION cells_weight(p_id uuid) RETURNS integer LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT weight(e.parameters, e.vm_state, e.metadata, e.blob) FROM entries AS e WHERE e.id = p_id
$$;

-- Replace or clear cells, those that the mask names; by how much the job grows.
CREATE FUNCTION patch_cells(p_id uuid, p_mask smallint, p_parameters bytea, p_vm_state bytea, p_metadata bytea, p_blob bytea)
RETURNS integer LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_before integer := cells_weight(p_id);
BEGIN
    UPDATE patches AS c SET  -- patches_pkey
        mask = c.mask | p_mask,
        parameters = CASE WHEN p_mask & 1 <> 0 THEN p_parameters ELSE c.parameters END,
        vm_state = CASE WHEN p_mask & 2 <> 0 THEN p_vm_state ELSE c.vm_state END,
        metadata = CASE WHEN p_mask & 4 <> 0 THEN p_metadata ELSE c.metadata END,
        blob = CASE WHEN p_mask & 8 <> 0 THEN p_blob ELSE c.blob END
    WHERE c.id = p_id;
    IF NOT FOUND THEN
        INSERT INTO patches (id, mask, parameters, vm_state, metadata, blob)
        VALUES (p_id, p_mask, p_parameters, p_vm_state, p_metadata, p_blob);
    END IF;
    RETURN cells_weight(p_id) - v_before;
END $$;

-- The key goes along to another queue, unless it is taken there; whether it did.
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

-- Nothing is left of these jobs of these queues, which lie nowhere or in ``ended``, but those who wait for them; the caller
-- counts them. With ``p_held_after``, keys that are held beyond that instant outlive them.
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

CREATE FUNCTION turn_v1(
    p_at bigint, p_settled_by text, p_ids uuid[], p_epochs bigint[], p_results bytea[], p_result_ttls bigint[],
    p_keep boolean, p_holder text, p_queues text[], p_limit integer, p_lease_for bigint, p_want smallint,
    p_lost_below integer, p_max_bytes bigint, p_mark_queues text[], p_mark_priorities smallint[], p_mark_run_ats bigint[], p_mark_ids uuid[], p_mark_due bigint
) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
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
