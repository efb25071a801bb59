-- Where a job lies, and all that travels with it.
CREATE TYPE place AS (
    state smallint, id uuid, qid integer, priority smallint, run_at bigint, epoch bigint, attempt integer, lost integer,
    size integer, keyed boolean, error bytea, holder text, cancel boolean, held_until bigint, result bytea, lane bigint,
    gid bigint
);

-- The job's place, locked. A job that moves meanwhile is looked for again, since each statement sees what has been
-- committed; one that moves faster than that, or lies nowhere, is told as an error rather than looked for without end.
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

-- The job's place, and nothing is locked.
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

-- The job's place, locked if it waits. Whoever ends, keeps or sweeps it must not wait for a transaction that may last.
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

-- Whether this running job is to be cancelled by the word of somebody who has not touched it.
CREATE FUNCTION asked_for(p_id uuid) RETURNS boolean LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS
    'SELECT EXISTS (SELECT 1 FROM asks AS a WHERE a.id = p_id)';  -- asks_id

-- What a job ends with whose cancellation was asked for.
CREATE FUNCTION asked_reason(p_id uuid) RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT CASE WHEN bool_or(a.superseded) THEN 'superseded' ELSE 'cancelled' END FROM asks AS a WHERE a.id = p_id  -- asks_id
$$;

-- Whoever is ending these jobs just now is waited for, and none of them is kept: what is locked in here is let go at once.
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

-- The job lies nowhere now.
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

-- The job, which lies nowhere, becomes AVAILABLE or PAUSED; the number of its group, if it stands in line there.
CREATE FUNCTION enter_place(p_now bigint, p place, p_state smallint, p_called boolean DEFAULT false) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    v_gid bigint;
BEGIN
    IF p_state = 0 THEN
        v_gid := make_available(
            p_now, p.id, p.qid, p.run_at, p.epoch, p.attempt, p.lost, p.size, p.priority, p.keyed, p.error, p_called
        );
    ELSE
        INSERT INTO paused (run_at, id, qid, epoch, attempt, lost, size, priority, keyed, error)
        VALUES (p.run_at, p.id, p.qid, p.epoch, p.attempt, p.lost, p.size, p.priority, p.keyed, p.error);
    END IF;
    INSERT INTO deltas (qid, state, jobs) VALUES (p.qid, p_state, 1);
    RETURN CASE WHEN NOT p_called THEN v_gid END;
END $$;

-- The steps below are part of ``alter_v1``.
--
-- Lock the jobs that are meant, and their keys, in the order in which everybody does that.
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

-- A running job is asked to stop.
CREATE FUNCTION ask_to_stop(p_id uuid, p_reason text, p_bound boolean) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
BEGIN
    IF p_bound THEN
        INSERT INTO asks (id, superseded) SELECT p_id, p_reason = 'superseded' WHERE NOT asked_for(p_id);
    ELSE
        UPDATE leased AS l SET cancel = true WHERE l.id = p_id;
    END IF;
END $$;

-- A job that has ended waits again, as if it were new, unless another has its key: whether it does, and its group.
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

-- A job goes to another queue, unless its key is taken there: whether it does, and its group there.
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

-- A result is held for another while, from now on, if it still is: whether it is.
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

-- Change jobs one by one, in order. Kinds of change: 1 cancel, 2 pause, 3 resume, 4 requeue, 5 move, 6 reprioritise, 7 watch,
-- 8 hold, 9 delete, 10 put off, 11 put to an instant. Answers, as rows of kind 6: the state before in ``epoch``, that after in ``attempt`` (none: gone),
-- whether it changed in ``lost``; and rows of kind 4, 5, and 7: a holder to be told. What the jobs were chosen for is looked
-- at again once they are locked. ``p_bound``: this transaction may last, so groups are left to be looked at, and nothing is locked that
-- others wait for: jobs that run are only asked to be cancelled, and those that are watched not locked at all. A watch then takes two
-- calls, each in a transaction of its own: whoever ended the job without seeing the first has been waited for by the second.
CREATE FUNCTION alter_v1(
    p_at bigint, p_ids uuid[], p_kind integer, p_text text, p_number bigint, p_applies smallint[], p_strict boolean,
    p_queue text, p_states smallint[], p_bound boolean DEFAULT false, p_reason text DEFAULT NULL
) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
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
    p place;
BEGIN
    IF p_kind = 7 THEN  -- hints may be lost, so a watch may too; claims pass over the jobs until this has committed
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    v_to := CASE WHEN p_kind = 5 THEN (queue_ids(ARRAY[p_text]))[1] END;
    PERFORM lock_meant(p_ids, p_kind, v_to, p_bound);
    FOREACH v_id IN ARRAY p_ids LOOP
        p := CASE WHEN NOT p_bound THEN lock_place(v_id) WHEN p_kind = 7 THEN find_place(v_id) ELSE lock_waiting(v_id) END;
        CONTINUE WHEN p IS NULL OR p.id IS NULL;
        CONTINUE WHEN p_queue IS NOT NULL AND p.qid IS DISTINCT FROM qid_of(p_queue);
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
            RETURN NEXT noted(7, v_id, p.holder);
        ELSIF p_kind = 1 THEN
            PERFORM leave_place(v_now, p);
            PERFORM end_jobs(
                v_now, 4::smallint, p_text, ARRAY[v_id], ARRAY[p.qid], ARRAY[p.epoch], ARRAY[p.attempt], ARRAY[p.lost],
                ARRAY[p.size], ARRAY[p.priority], ARRAY[p.run_at], ARRAY[p.keyed], ARRAY[p.error]
            );
            RETURN QUERY SELECT (told(w.id, w.inbox)).* FROM take_waiters(ARRAY[v_id]) AS w;
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
            PERFORM forget_jobs(ARRAY[v_id], ARRAY[p.qid]);
            PERFORM take_waiters(ARRAY[v_id]);
            v_after := NULL;
        ELSIF p_kind IN (10, 11) THEN
            PERFORM leave_place(v_now, p);
            p.run_at := CASE WHEN p_kind = 10 THEN v_now + p_number ELSE p_number END;
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
        RETURN NEXT altered(v_id, name_of(v_qid), v_key, p.state, v_after, v_changed);
    END LOOP;
    IF v_gids <> '{}' AND p_bound THEN
        INSERT INTO looks (qid, gid) SELECT DISTINCT n.* FROM unnest(v_qids, v_gids) AS n;
        RETURN QUERY SELECT w.* FROM (SELECT DISTINCT n FROM unnest(v_qids) AS n) AS q (qid) CROSS JOIN LATERAL woken(q.qid) AS w;
    ELSIF v_gids <> '{}' THEN
        RETURN QUERY SELECT w.* FROM call_in_order(v_qids, v_gids, v_changes, v_entered, v_entries) AS q
        CROSS JOIN LATERAL woken(q) AS w;
    END IF;
END $$;

-- A row of kind 6.
CREATE FUNCTION altered(p_id uuid, p_queue text, p_key text, p_before integer, p_after integer, p_changed boolean) RETURNS claim_row
LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT (
        6, p_id, p_queue, NULL, NULL, p_key, p_before, p_after, p_changed::integer, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL
    )::claim_row
$$;

CREATE FUNCTION noted(p_kind integer, p_id uuid, p_name text) RETURNS claim_row
LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT (
        p_kind, p_id, p_name, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL
    )::claim_row
$$;
