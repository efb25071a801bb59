-- Find and lock a job. One that changes its state meanwhile is looked for again. One that keeps changing, or is in no
-- table, is an error.
CREATE FUNCTION lock_place(p_id uuid) RETURNS place LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_place place;
BEGIN
    FOR look IN 1..100 LOOP
        SELECT 0, y.id, y.qid, y.priority, y.run_at, y.epoch, y.attempt, y.lost, y.size, y.keyed, y.error, NULL, false, NULL, NULL,
            y.lane, y.gid
        INTO v_place FROM ready AS y WHERE y.id = p_id FOR UPDATE;
        EXIT WHEN FOUND;
        SELECT 1, l.id, l.qid, l.priority, l.run_at, l.epoch, l.attempt, coalesce(l.lost, 0), l.size, l.keyed, l.error, l.holder,
            l.cancel OR asked_for(l.id), NULL, NULL, NULL, l.gid
        INTO v_place FROM leased AS l WHERE l.id = p_id FOR UPDATE;
        EXIT WHEN FOUND;
        SELECT 2, p.id, p.qid, p.priority, p.run_at, p.epoch, p.attempt, p.lost, p.size, p.keyed, p.error, NULL, false, NULL, NULL,
            NULL, NULL
        INTO v_place FROM paused AS p WHERE p.id = p_id FOR UPDATE;
        EXIT WHEN FOUND;
        SELECT e.state, e.id, e.qid, e.priority, e.run_at, e.epoch, e.attempt, coalesce(e.lost, 0), e.size, e.keyed, e.error, NULL, false,
            e.held_until, e.result, NULL, NULL
        INTO v_place FROM ended AS e WHERE e.id = p_id FOR UPDATE;
        EXIT WHEN FOUND;
        PERFORM 1 FROM jobs AS j WHERE j.id = p_id;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END LOOP;
    IF v_place.id IS NULL THEN
        RAISE EXCEPTION 'job % lies in no place', p_id USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN v_place;
END $$;

-- Find a job without a lock.
CREATE FUNCTION find_place(p_id uuid) RETURNS place LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_place place;
BEGIN
    SELECT e.state, e.id, e.qid, e.priority, e.run_at, e.epoch, e.attempt, e.lost, e.size, e.keyed, NULL, e.holder, e.cancel,
        e.held_until, NULL, NULL, NULL
    INTO v_place FROM entries AS e WHERE e.id = p_id;
    RETURN v_place;
END $$;

-- Find a job, and lock it if it waits. Others that end, hold or sweep it must not wait for a transaction that may last.
CREATE FUNCTION lock_waiting(p_id uuid) RETURNS place LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_place place;
BEGIN
    LOOP
        v_place := find_place(p_id);
        IF v_place.id IS NULL OR v_place.state NOT IN (0, 2) THEN
            RETURN v_place;
        END IF;
        PERFORM 1 FROM ready AS y WHERE y.id = p_id FOR UPDATE;  -- ready_pkey
        IF NOT FOUND THEN
            PERFORM 1 FROM paused AS p WHERE p.id = p_id FOR UPDATE;  -- paused_pkey
        END IF;
        IF FOUND THEN
            RETURN lock_place(p_id);
        END IF;
    END LOOP;
END $$;

-- Whether the cancellation of a running job was requested in ``asks``.
CREATE FUNCTION asked_for(p_id uuid) RETURNS boolean LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS
    'SELECT EXISTS (SELECT 1 FROM asks AS a WHERE a.id = p_id)';  -- asks_id

-- The reason of a job whose cancellation was requested.
CREATE FUNCTION asked_reason(p_id uuid) RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT CASE WHEN bool_or(a.superseded) THEN 'superseded' ELSE 'cancelled' END FROM asks AS a WHERE a.id = p_id  -- asks_id
$$;

-- Wait for transactions that are ending these jobs, without keeping a lock: each is released at once, by a
-- subtransaction that fails.
CREATE FUNCTION let_pass(p_ids uuid[]) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    c_let_go CONSTANT text := 'LL000';
    v_free uuid[];
    v_id uuid;
BEGIN
    BEGIN
        v_free := ARRAY(  -- leased_pkey
            SELECT l.id FROM unnest(p_ids) AS n (id) JOIN leased AS l ON l.id = ANY (ARRAY[n.id]) FOR KEY SHARE OF l SKIP LOCKED
        );
        RAISE EXCEPTION USING ERRCODE = c_let_go;
    EXCEPTION WHEN SQLSTATE 'LL000' THEN
        NULL;
    END;
    FOREACH v_id IN ARRAY ARRAY(
        SELECT l.id FROM unnest(p_ids) AS n (id) JOIN leased AS l ON l.id = ANY (ARRAY[n.id]) WHERE l.id <> ALL (v_free)
    ) LOOP
        BEGIN
            PERFORM 1 FROM leased AS l WHERE l.id = v_id FOR KEY SHARE;
            RAISE EXCEPTION USING ERRCODE = c_let_go;
        EXCEPTION WHEN SQLSTATE 'LL000' THEN
            NULL;
        END;
    END LOOP;
END $$;

-- Take a job out of its table.
CREATE FUNCTION leave_place(p_now bigint, p place) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_tenant text;
BEGIN
    IF p.lane >= 4611686018427387904 THEN
        PERFORM tell_dropped(p_now, ARRAY[p.qid], ARRAY[p.id], ARRAY[p.lane]);
    END IF;
    CASE
        WHEN p.state = 0 THEN DELETE FROM ready AS y WHERE y.id = p.id;
        WHEN p.state = 1 THEN DELETE FROM leased AS l WHERE l.id = p.id;
        WHEN p.state = 2 THEN DELETE FROM paused AS x WHERE x.id = p.id;
        ELSE DELETE FROM ended AS e WHERE e.id = p.id RETURNING e.tenant INTO v_tenant;
    END CASE;
    INSERT INTO deltas (qid, state, jobs, bytes, tenant)
    VALUES (p.qid, p.state, -1, CASE WHEN p.state > 2 THEN -p.size ELSE 0 END, v_tenant);
END $$;

-- A job that was taken out of its table becomes AVAILABLE or PAUSED. Returns its group, if it waits there.
CREATE FUNCTION enter_place(p_now bigint, p place, p_state smallint, p_called boolean DEFAULT false) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    v_gid CONSTANT bigint := make_waiting(p_now, p, p_state, p_called);
BEGIN
    INSERT INTO deltas (qid, state, jobs) VALUES (p.qid, p_state, 1);
    RETURN CASE WHEN NOT p_called THEN v_gid END;
END $$;

-- The steps below are part of ``alter_v1``.
--
-- Lock the jobs, then their keys, in the order that all transactions use.
CREATE FUNCTION lock_meant(p_ids uuid[], p_kind integer, p_to integer, p_bound boolean) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    v_places place[];
BEGIN
    IF p_bound AND p_kind = 7 THEN
        PERFORM let_pass(p_ids);
    ELSIF cardinality(p_ids) > 1 OR p_kind = 5 THEN
        v_places := ARRAY(
            SELECT CASE WHEN p_bound THEN lock_waiting(n.id) ELSE lock_place(n.id) END
            FROM (SELECT DISTINCT m FROM unnest(p_ids) AS m ORDER BY m) AS n (id)
        );
        PERFORM lock_keys(array_agg(x.id), array_agg(x.qid), array_agg(p_to)) FROM unnest(v_places) AS x
        WHERE NOT p_bound OR x.state IN (0, 2);
        IF p_kind IN (10, 11) THEN  -- these are called one after the other
            PERFORM lock_groups(array_agg(x.gid)) FROM unnest(v_places) AS x;
        END IF;
    END IF;
END $$;

-- Request the cancellation of a running job.
CREATE FUNCTION ask_to_stop(p_id uuid, p_reason text, p_bound boolean) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
BEGIN
    IF p_bound THEN
        INSERT INTO asks (id, superseded) SELECT p_id, p_reason = 'superseded' WHERE NOT asked_for(p_id);
    ELSE
        UPDATE leased AS l SET cancel = true WHERE l.id = p_id;
    END IF;
END $$;

-- Requeue a job, as if it were new, unless another has its key. Returns whether it was, and its group.
CREATE FUNCTION requeue_job(p_now bigint, p place, p_key text, OUT changed boolean, OUT gid bigint) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
BEGIN
    IF p_key IS NOT NULL THEN
        PERFORM release_key(p_now, p.qid, p_key);
        INSERT INTO keys AS k (qid, key, id) VALUES (p.qid, p_key, p.id)
        ON CONFLICT ON CONSTRAINT keys_pkey DO UPDATE SET id = excluded.id, held_until = NULL, failed = false
        WHERE (k.id = excluded.id OR k.held_until <= p_now) AND k.alone_until IS NULL;
    END IF;
    changed := p_key IS NULL OR FOUND;
    IF changed THEN
        PERFORM leave_place(p_now, p);
        UPDATE jobs AS j SET expires_at = NULL WHERE j.id = p.id AND j.expires_at IS NOT NULL;
        DELETE FROM asks AS a WHERE a.id = p.id;
        p.size := p.size - coalesce(octet_length(p.result), 0) - coalesce(octet_length(p.error), 0);
        p.error := NULL;
        p.attempt := 0;
        p.lost := 0;
        p.run_at := p_now;
        gid := enter_place(p_now, p, 0::smallint);
    END IF;
END $$;

-- Move a job to another queue, unless its key is taken there. Returns whether it moved, and its group there.
CREATE FUNCTION move_job(p_now bigint, p place, p_key text, p_to integer, OUT changed boolean, OUT gid bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    changed := p_to <> p.qid;
    IF changed AND p_key IS NOT NULL THEN
        changed := move_key(p_now, p.id, p.qid, p_to);
    END IF;
    IF changed THEN
        PERFORM leave_place(p_now, p);
        p.qid := p_to;
        gid := enter_place(p_now, p, p.state);
    END IF;
END $$;

-- A waiting job becomes due at another time. If it may have been given out by a window that was lost (``0024_streams``),
-- its epoch tells so from now on, as its new time does not.
CREATE FUNCTION put_off(p place, p_run_at bigint) RETURNS place LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    IF p.epoch <= 0 AND EXISTS (  -- jobs_pkey
        SELECT 1 FROM streams AS s JOIN jobs AS j ON j.id = p.id WHERE p.run_at < s.floor AND j.enqueued_at <= s.raised_at
    ) THEN
        p.epoch := greatest(-p.epoch, 1);
    END IF;
    p.run_at := p_run_at;
    RETURN p;
END $$;

-- Hold a result from now on for this long, if it still is held. Returns whether it is.
CREATE FUNCTION hold_result(p_now bigint, p place, p_key text, p_ttl bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
BEGIN
    IF (p.held_until > p_now) IS NOT TRUE THEN
        RETURN false;
    END IF;
    UPDATE ended AS e SET held_until = p_now + p_ttl WHERE e.id = p.id;
    UPDATE keys AS k SET held_until = p_now + p_ttl WHERE k.qid = p.qid AND k.key = p_key AND k.id = p.id AND k.alone_until IS NULL;
    RETURN true;
END $$;

-- Change jobs one by one. Kinds: 1 cancel, 2 pause, 3 resume, 4 requeue, 5 move, 6 reprioritise, 7 watch, 8 hold, 9
-- delete, 10 reschedule by a delay, 11 reschedule to an instant. Conditions are checked again once a job is locked.
--
-- ``p_bound``: the transaction may last, so groups are left to be looked at, and nothing is locked that others wait
-- for: the cancellation of running jobs is only requested, and watched jobs are not locked. A watch then takes two
-- calls, each in its own transaction: the second waits for transactions that ended the job without seeing the first.
CREATE FUNCTION alter_v1(
    p_at bigint, p_ids uuid[], p_kind integer, p_text text, p_number bigint, p_applies smallint[], p_strict boolean,
    p_queue text, p_states smallint[], p_bound boolean DEFAULT false, p_reason text DEFAULT NULL
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now bigint := clock(p_at);
    v_id uuid;
    v_after integer;
    v_changed boolean;
    v_key text;
    v_to integer;
    v_qid integer;
    v_gid bigint;
    v_gids bigint[] := '{}';
    v_qids integer[] := '{}';
    v_change integer := 0;
    v_changes integer[] := '{}';
    v_entered uuid[] := '{}';
    v_entries integer[] := '{}';
    v_gone uuid[] := '{}';
    v_gone_qids integer[] := '{}';
    p place;
BEGIN
    IF p_kind = 7 THEN  -- hints may be lost, so a watch may be; claims pass over a locked job
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    v_to := CASE WHEN p_kind = 5 THEN (queue_ids(ARRAY[p_text]))[1] END;
    PERFORM lock_meant(p_ids, p_kind, v_to, p_bound);
    FOREACH v_id IN ARRAY p_ids LOOP
        p := CASE WHEN NOT p_bound THEN lock_place(v_id) WHEN p_kind = 7 THEN find_place(v_id) ELSE lock_waiting(v_id) END;
        CONTINUE WHEN p IS NULL OR p.id IS NULL OR p_queue IS NOT NULL AND p.qid IS DISTINCT FROM qid_of(p_queue);
        CONTINUE WHEN p.state <> ALL (p_states);
        CONTINUE WHEN p_reason <> coalesce((SELECT e.reason FROM ended AS e WHERE p.state > 2 AND e.id = v_id), '');  -- ended_pkey
        CONTINUE WHEN p_strict AND (p.state <> ALL (p_applies) OR (p_kind = 1 AND p.cancel));
        v_after := p.state;
        v_changed := p.state = ANY (p_applies);
        v_qid := p.qid;
        v_gid := NULL;
        v_change := v_change + 1;
        IF v_changed AND p.gid IS NOT NULL AND p.state = 0 AND p_kind < 10 THEN
            v_gids := v_gids || p.gid;
            v_qids := v_qids || p.qid;
            v_changes := v_changes || v_change;
        END IF;
        SELECT j.key INTO v_key FROM jobs AS j WHERE j.id = v_id AND p.keyed;
        IF NOT v_changed THEN
            NULL;
        ELSIF p_kind = 1 AND p.state = 1 THEN
            PERFORM ask_to_stop(v_id, p_text, p_bound);
            RETURN NEXT told('holder:' || p.holder, NULL);
        ELSIF p_kind = 1 THEN
            PERFORM leave_place(v_now, p);
            PERFORM end_jobs(v_now, 4::smallint, p_text, ARRAY[p]);
            RETURN QUERY SELECT * FROM tell_waiters(ARRAY[v_id]);
            v_after := 4;
        ELSIF p_kind IN (2, 3) THEN
            v_after := CASE WHEN p_kind = 2 THEN 2 ELSE 0 END;
            PERFORM leave_place(v_now, p);
            v_gid := enter_place(v_now, p, v_after::smallint);
            IF v_after = 0 THEN
                RETURN NEXT woken(p.qid);
            END IF;
        ELSIF p_kind = 4 THEN
            SELECT r.changed, r.gid INTO v_changed, v_gid FROM requeue_job(v_now, p, v_key) AS r;
            IF v_changed THEN
                RETURN NEXT woken(p.qid);
                v_after := 0;
            END IF;
        ELSIF p_kind = 5 THEN
            SELECT m.changed, m.gid INTO v_changed, v_gid FROM move_job(v_now, p, v_key, v_to) AS m;
            IF v_changed THEN
                v_qid := v_to;
                RETURN NEXT woken(v_to);
            END IF;
        ELSIF p_kind = 6 THEN
            PERFORM leave_place(v_now, p);
            p.priority := p_number;
            v_gid := enter_place(v_now, p, p.state, coalesce(p.lane, 0) >= 0);
        ELSIF p_kind = 7 THEN
            PERFORM watch(v_now, v_id, p_text);
        ELSIF p_kind = 8 THEN
            v_changed := hold_result(v_now, p, v_key, p_number);
        ELSIF p_kind = 9 THEN
            PERFORM leave_place(v_now, p);
            v_gone := v_gone || v_id;
            v_gone_qids := v_gone_qids || p.qid;
            v_after := NULL;
        ELSIF p_kind IN (10, 11) THEN
            PERFORM leave_place(v_now, p);
            p := put_off(p, CASE WHEN p_kind = 10 THEN v_now + p_number ELSE p_number END);
            PERFORM enter_place(v_now, p, p.state, coalesce(p.lane, 0) >= 0);
            IF p.state = 0 THEN
                RETURN NEXT woken(p.qid);
            END IF;
            IF p.gid IS NOT NULL THEN
                RETURN QUERY SELECT w.* FROM call_groups(ARRAY[p.qid], ARRAY[p.gid]) AS q CROSS JOIN LATERAL woken(q) AS w;
            END IF;
        END IF;
        IF v_gid IS NOT NULL THEN
            v_gids := v_gids || v_gid;
            v_qids := v_qids || v_qid;
            v_changes := v_changes || v_change;
            v_entered := v_entered || v_id;
            v_entries := v_entries || v_change;
        END IF;
        RETURN NEXT altered((v_id, p.state, v_after, v_changed, name_of(v_qid), v_key)::altered_row);
    END LOOP;
    IF v_gone <> '{}' THEN
        PERFORM forget_jobs(v_gone, v_gone_qids);
        PERFORM tell_waiters(v_gone);
    END IF;
    IF v_gids <> '{}' AND p_bound THEN
        INSERT INTO looks (qid, gid) SELECT DISTINCT n.* FROM unnest(v_qids, v_gids) AS n;
        RETURN QUERY SELECT w.* FROM (SELECT DISTINCT n FROM unnest(v_qids) AS n) AS q (qid) CROSS JOIN LATERAL woken(q.qid) AS w;
    ELSIF v_gids <> '{}' THEN
        RETURN QUERY SELECT w.* FROM call_in_order(v_qids, v_gids, v_changes, v_entered, v_entries) AS q CROSS JOIN LATERAL woken(q) AS w;
    END IF;
END $$;

-- Cells as they were seen, and what is to come in their place, where something is.
CREATE TYPE swap_row AS (
    id uuid, seen_parameters bytea, seen_vm_state bytea, seen_metadata bytea, seen_blob bytea, seen_result bytea,
    parameters bytea, vm_state bytea, metadata bytea, blob bytea, result bytea
);

-- Lock the row that says where a job waits, or, with ``p_running``, where it runs. False: somebody else has locked it. NULL: there
-- is none.
CREATE FUNCTION try_live(p_id uuid, p_running boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    PERFORM 1 FROM ready AS y WHERE y.id = p_id FOR UPDATE SKIP LOCKED;  -- ready_pkey
    IF NOT FOUND AND p_running THEN
        PERFORM 1 FROM leased AS l WHERE l.id = p_id FOR UPDATE SKIP LOCKED;  -- leased_pkey
    END IF;
    IF NOT FOUND THEN
        PERFORM 1 FROM paused AS p WHERE p.id = p_id FOR UPDATE SKIP LOCKED;  -- paused_pkey
    END IF;
    IF FOUND THEN
        RETURN true;
    END IF;
    RETURN CASE WHEN EXISTS (SELECT 1 FROM ready AS y WHERE y.id = p_id) OR EXISTS (SELECT 1 FROM paused AS p WHERE p.id = p_id)
        OR p_running AND EXISTS (SELECT 1 FROM leased AS l WHERE l.id = p_id) THEN false END;
END $$;

-- Replace cells that are still as they were seen; whether that was done. What a patch hides is dropped: it counts no more. A
-- run that replaces a cell at the same time wins, before or after. A job that somebody has in hand is left alone: a batch has
-- many jobs in hand itself, so waiting would end in deadlocks.
CREATE FUNCTION swap_cells(s swap_row) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_mask smallint;
    v_grown integer := weight(s.parameters, s.vm_state, s.metadata, s.blob)
        - weight(
            CASE WHEN s.parameters IS NOT NULL THEN s.seen_parameters END, CASE WHEN s.vm_state IS NOT NULL THEN s.seen_vm_state END,
            CASE WHEN s.metadata IS NOT NULL THEN s.seen_metadata END, CASE WHEN s.blob IS NOT NULL THEN s.seen_blob END
        );
BEGIN
    PERFORM 1 FROM jobs AS j WHERE j.id = s.id FOR NO KEY UPDATE SKIP LOCKED;  -- jobs_pkey
    IF NOT FOUND OR (v_grown <> 0 AND try_live(s.id, true) IS FALSE) THEN
        RETURN false;
    END IF;
    SELECT c.mask INTO v_mask FROM patches AS c WHERE c.id = s.id FOR NO KEY UPDATE SKIP LOCKED;  -- patches_pkey
    IF NOT FOUND AND EXISTS (SELECT FROM patches AS c WHERE c.id = s.id) THEN
        RETURN false;
    END IF;
    IF s.result IS NOT NULL THEN
        PERFORM 1 FROM ended AS e WHERE e.id = s.id FOR NO KEY UPDATE SKIP LOCKED;  -- ended_pkey
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    PERFORM 1 FROM entries AS e WHERE e.id = s.id
        AND (s.seen_parameters IS NULL OR e.parameters = s.seen_parameters) AND (s.seen_vm_state IS NULL OR e.vm_state = s.seen_vm_state)
        AND (s.seen_metadata IS NULL OR e.metadata = s.seen_metadata) AND (s.seen_blob IS NULL OR e.blob = s.seen_blob)
        AND (s.seen_result IS NULL OR e.result = s.seen_result);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_mask := coalesce(v_mask, 0);
    UPDATE jobs AS j SET
        parameters = CASE WHEN v_mask & 1 = 0 THEN coalesce(s.parameters, j.parameters) END,
        vm_state = CASE WHEN v_mask & 2 = 0 THEN coalesce(s.vm_state, j.vm_state) END,
        metadata = CASE WHEN v_mask & 4 = 0 THEN coalesce(s.metadata, j.metadata) END,
        blob = CASE WHEN v_mask & 8 = 0 THEN coalesce(s.blob, j.blob) END
    WHERE j.id = s.id;
    UPDATE patches AS c SET
        parameters = CASE WHEN v_mask & 1 <> 0 THEN coalesce(s.parameters, c.parameters) END,
        vm_state = CASE WHEN v_mask & 2 <> 0 THEN coalesce(s.vm_state, c.vm_state) END,
        metadata = CASE WHEN v_mask & 4 <> 0 THEN coalesce(s.metadata, c.metadata) END,
        blob = CASE WHEN v_mask & 8 <> 0 THEN coalesce(s.blob, c.blob) END
    WHERE c.id = s.id;
    UPDATE patches AS c SET object_hour = oldest_hour(c.parameters, c.vm_state, c.metadata, c.blob) WHERE c.id = s.id;
    IF v_grown <> 0 THEN
        UPDATE ready AS y SET size = y.size + v_grown WHERE y.id = s.id;  -- ready_pkey
        IF NOT FOUND THEN
            UPDATE leased AS l SET size = l.size + v_grown WHERE l.id = s.id;  -- leased_pkey
        END IF;
        IF NOT FOUND THEN
            UPDATE paused AS p SET size = p.size + v_grown WHERE p.id = s.id;  -- paused_pkey
        END IF;
    END IF;
    IF s.result IS NOT NULL THEN
        UPDATE ended AS e SET result = s.result WHERE e.id = s.id AND e.result = s.seen_result;  -- ended_pkey
        RETURN FOUND;
    END IF;
    RETURN true;
END $$;
CREATE FUNCTION swap_cells_v1(p_swaps swap_row[]) RETURNS SETOF boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    s swap_row;
BEGIN
    FOREACH s IN ARRAY p_swaps LOOP
        RETURN NEXT swap_cells(s);
    END LOOP;
END $$;
