-- Jobs on their way to and from other stores. A leg that is not here is closed.
CREATE TABLE legs (
    leg text COLLATE "C" NOT NULL CONSTRAINT legs_pkey PRIMARY KEY
);

-- What departed. ``job`` is the parcel, until it is confirmed; ``queue`` and ``key`` are set if the job had the key.
CREATE TABLE departed (
    leg text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    queue text,
    key text,
    job record_row,
    held_until bigint NOT NULL DEFAULT 0,
    begun boolean NOT NULL DEFAULT false,
    inboxes text[],
    CONSTRAINT departed_pkey PRIMARY KEY (leg, id)
);
CREATE INDEX departed_parcels ON departed (leg, id) WHERE inboxes IS NOT NULL;
CREATE INDEX departed_keys ON departed (leg, queue, key) WHERE key IS NOT NULL;

CREATE TABLE arrived (
    leg text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    CONSTRAINT arrived_pkey PRIMARY KEY (leg, id)
);

CREATE FUNCTION open_leg_v1(p_leg text) RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS
    'INSERT INTO legs (leg) VALUES (p_leg) ON CONFLICT DO NOTHING';

-- Close a leg, and forget a part of its ledger. Returns whether there is more; NULL if parcels are left.
CREATE FUNCTION close_leg_v1(p_leg text, p_limit integer) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_gone bigint;
    v_more boolean;
BEGIN
    PERFORM 1 FROM legs AS l WHERE l.leg = p_leg FOR UPDATE;  -- those that depart or arrive are done then
    IF EXISTS (SELECT 1 FROM departed AS d WHERE d.leg = p_leg AND d.inboxes IS NOT NULL) THEN  -- departed_parcels
        RETURN NULL;
    END IF;
    DELETE FROM legs AS l WHERE l.leg = p_leg;
    DELETE FROM departed AS d WHERE d.ctid = ANY (ARRAY(SELECT n.ctid FROM departed AS n WHERE n.leg = p_leg LIMIT p_limit));
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    v_more := v_gone = p_limit;
    DELETE FROM arrived AS a WHERE a.ctid = ANY (ARRAY(SELECT n.ctid FROM arrived AS n WHERE n.leg = p_leg LIMIT p_limit));
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    RETURN v_more OR v_gone = p_limit;
END $$;

-- Turn jobs into parcels. The first row says whether the leg is open; others have the id of a job that departed, or the name of a
-- queue in which a job was called.
CREATE FUNCTION depart_v1(p_at bigint, p_leg text, p_ids uuid[]) RETURNS TABLE (open boolean, id uuid, queue text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_open boolean;
    v_id uuid;
    v_gids bigint[] := '{}';
    v_qids integer[] := '{}';
    p place;
BEGIN
    PERFORM 1 FROM legs AS l WHERE l.leg = p_leg FOR KEY SHARE;
    v_open := FOUND;
    RETURN QUERY SELECT v_open, NULL::uuid, NULL::text;
    IF NOT v_open THEN
        RETURN;
    END IF;
    PERFORM lock_meant(ARRAY(SELECT n FROM unnest(p_ids) AS n WHERE NOT EXISTS (SELECT 1 FROM leased AS l WHERE l.id = n)), 9, NULL, false);
    FOREACH v_id IN ARRAY p_ids LOOP
        CONTINUE WHEN EXISTS (SELECT 1 FROM leased AS l WHERE l.id = v_id);  -- leased_pkey
        p := lock_place(v_id);
        CONTINUE WHEN p IS NULL OR p.id IS NULL OR p.state = 1;
        INSERT INTO departed AS d (leg, id, queue, key, job, held_until, begun, inboxes)
        SELECT
            p_leg, v_id, CASE WHEN k.id IS NOT NULL THEN r.queue END, CASE WHEN k.id IS NOT NULL THEN r.key END, r,
            CASE WHEN r.held THEN p.held_until ELSE 0 END, p.epoch > 0,
            ARRAY(SELECT w.inbox FROM waiters AS w WHERE w.id = v_id ORDER BY w.since NULLS FIRST, w.inbox)  -- waiters_pkey
        FROM fetch_v1(v_now, ARRAY[v_id], '{}', '{}', 15::smallint, true, true) AS r
        LEFT JOIN keys AS k ON k.qid = p.qid AND k.key = r.key AND k.id = v_id AND k.alone_until IS NULL  -- keys_pkey
        ON CONFLICT ON CONSTRAINT departed_pkey DO UPDATE SET
            queue = excluded.queue, key = excluded.key, job = excluded.job, held_until = excluded.held_until, begun = excluded.begun,
            inboxes = excluded.inboxes;
        IF p.gid IS NOT NULL AND p.state = 0 THEN
            v_gids := v_gids || p.gid;
            v_qids := v_qids || p.qid;
        END IF;
        PERFORM leave_place(v_now, p);
        PERFORM forget_jobs(ARRAY[v_id], ARRAY[p.qid]);
        DELETE FROM waiters AS w WHERE w.id = v_id;
        DELETE FROM asks AS a WHERE a.id = v_id;
        RETURN QUERY SELECT NULL::boolean, v_id, NULL::text;
    END LOOP;
    IF v_gids <> '{}' THEN
        RETURN QUERY SELECT NULL::boolean, NULL::uuid, name_of(q) FROM call_groups(v_qids, v_gids) AS q;
    END IF;
END $$;

-- Parcels by id: of the jobs named by id or by key, or of all if no ids are given.
CREATE FUNCTION parcels_v1(p_leg text, p_ids uuid[], p_queues text[], p_keys text[], p_limit integer) RETURNS SETOF departed
LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT d.* FROM departed AS d  -- departed_parcels
    WHERE p_ids IS NULL AND d.leg = p_leg AND d.inboxes IS NOT NULL
    UNION ALL
    SELECT d.* FROM departed AS d  -- departed_parcels, departed_keys
    WHERE d.inboxes IS NOT NULL AND d.leg = p_leg AND d.id IN (
        SELECT n FROM unnest(p_ids) AS n
        UNION
        SELECT k.id FROM unnest(p_queues, p_keys) AS n (queue, key)
        JOIN departed AS k ON k.leg = p_leg AND k.queue = n.queue AND k.key = n.key
    )
    ORDER BY id LIMIT p_limit
$$;

CREATE FUNCTION confirm_v1(p_leg text, p_ids uuid[]) RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    UPDATE departed AS d SET job = NULL, queue = NULL, key = NULL, inboxes = NULL  -- departed_pkey
    WHERE d.leg = p_leg AND d.id = ANY (p_ids)
$$;

-- The ids that departed, or arrived, in order.
CREATE FUNCTION ledger_v1(p_leg text, p_departed boolean, p_after uuid, p_limit integer) RETURNS TABLE (id uuid)
LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    (SELECT d.id FROM departed AS d WHERE p_departed AND d.leg = p_leg AND (p_after IS NULL OR d.id > p_after) ORDER BY d.id LIMIT p_limit)
    UNION ALL
    (SELECT a.id FROM arrived AS a WHERE NOT p_departed AND a.leg = p_leg AND (p_after IS NULL OR a.id > p_after) ORDER BY a.id LIMIT p_limit)
$$;

-- A whole job, as clients send it. ``key`` is NULL if the job had lost it.
CREATE TYPE parcel_row AS (
    id uuid, queue text, task text, state smallint, tenant text, key text, priority smallint, run_at bigint,
    enqueued_at bigint, expires_at bigint, finished_at bigint, epoch bigint, attempt integer, lost integer,
    max_attempts integer, timeout bigint, result_ttl bigint, headers bytea, reason text, parameters bytea,
    vm_state bytea, metadata bytea, blob bytea, error bytea, result bytea, group_name text, held_until bigint,
    begun boolean
);

-- What a job of a parcel weighs. One that is out of bounds is refused, as a new job would be; but a job that a schedule made may have
-- more headers.
CREATE FUNCTION parcel_weight(p_now bigint, p_ord integer, r parcel_row) RETURNS integer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    v_row CONSTANT job_row := (
        r.id, 1, r.task, r.tenant, r.key, r.priority, 0, r.run_at, greatest(0, r.expires_at - p_now), r.max_attempts, r.timeout,
        r.result_ttl, NULL, NULL, false, 0, 0, r.group_name, r.parameters, r.vm_state, r.metadata, r.blob
    )::job_row;
    v_weight CONSTANT integer := row_weight(p_now, v_row);
BEGIN
    IF v_weight IS NULL THEN
        PERFORM refuse_row(p_now, p_ord, v_row);
    END IF;
    IF (r.state IN (0, 2, 3, 4, 5) AND r.epoch >= 0 AND r.attempt >= 0 AND r.lost >= 0 AND r.enqueued_at >= 0
        AND (r.state IN (0, 2)) = (r.finished_at IS NULL)) IS NOT TRUE THEN
        PERFORM refuse(format('parcel %s: expected a job that does not run, and that has an end if it has ended', p_ord));
    END IF;
    RETURN v_weight + coalesce(octet_length(r.headers), 0) + coalesce(octet_length(r.error), 0) + coalesce(octet_length(r.result), 0);
END $$;

-- Let the job of a parcel take its key, unless another keeps it. Returns whether it has it.
CREATE FUNCTION bring_key(p_now bigint, p_qid integer, r parcel_row) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    IF r.key IS NULL THEN
        RETURN false;
    END IF;
    PERFORM release_key(p_now, p_qid, r.key);
    INSERT INTO keys AS k (qid, key, id, held_until, failed)
    VALUES (p_qid, r.key, r.id, CASE WHEN r.state > 2 THEN r.held_until END, r.state = 5)
    ON CONFLICT ON CONSTRAINT keys_pkey DO UPDATE SET id = excluded.id, held_until = excluded.held_until, failed = excluded.failed
    WHERE k.held_until <= p_now AND k.alone_until IS NULL;
    RETURN FOUND;
END $$;

-- Store the job of a parcel. Returns its group, if it is AVAILABLE.
CREATE FUNCTION store_parcel(p_now bigint, p_ord integer, p_qid integer, r parcel_row) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    v_size CONSTANT integer := parcel_weight(p_now, p_ord, r);
    v_keyed CONSTANT boolean := bring_key(p_now, p_qid, r);
    v_epoch CONSTANT bigint := CASE WHEN r.begun THEN r.epoch ELSE -r.epoch END;
BEGIN
    INSERT INTO jobs (
        id, enqueued_at, expires_at, timeout, result_ttl, max_attempts, task, tenant, key, group_name, headers, parameters, vm_state,
        metadata, blob
    ) VALUES (
        r.id, r.enqueued_at, r.expires_at, r.timeout, r.result_ttl, r.max_attempts, r.task, r.tenant, CASE WHEN v_keyed THEN r.key END,
        r.group_name, r.headers, r.parameters, r.vm_state, r.metadata, r.blob
    );
    IF r.state IN (0, 2) THEN
        RETURN enter_place(p_now, (
            r.state, r.id, p_qid, r.priority, r.run_at, v_epoch, r.attempt, r.lost, v_size, v_keyed, r.error, NULL, false, NULL, NULL, NULL,
            NULL
        )::place, r.state);
    END IF;
    INSERT INTO ended (
        finished_at, held_until, run_at, id, qid, epoch, attempt, lost, size, state, priority, keyed, reason, tenant, error, result
    ) VALUES (
        r.finished_at, r.held_until, r.run_at, r.id, p_qid, v_epoch, r.attempt, r.lost, v_size, r.state, r.priority, v_keyed, r.reason,
        CASE WHEN r.state = 5 THEN r.tenant END, r.error, r.result
    );
    INSERT INTO deltas (qid, state, jobs, bytes, tenant) VALUES (p_qid, r.state, 1, v_size, CASE WHEN r.state = 5 THEN r.tenant END);
    RETURN NULL;
END $$;

-- Store the jobs of parcels, which come by id. The first row says whether the leg is open; others have the number of a parcel that was
-- stored now, or the name of a queue in which a job may be claimable. ``p_inboxes`` wait for the jobs of the parcels ``p_waited``.
CREATE FUNCTION arrive_v1(p_at bigint, p_leg text, p_parcels parcel_row[], p_inboxes text[], p_waited integer[])
RETURNS TABLE (open boolean, ord integer, queue text) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_open boolean;
    v_names CONSTANT text[] := ARRAY(SELECT DISTINCT n.queue FROM unnest(p_parcels) AS n);
    v_all integer[];
    v_qid integer;
    v_qids integer[] := '{}';
    v_gids bigint[] := '{}';
    v_stored integer[] := '{}';
    v_gid bigint;
    r parcel_row;
BEGIN
    PERFORM 1 FROM legs AS l WHERE l.leg = p_leg FOR KEY SHARE;
    v_open := FOUND;
    RETURN QUERY SELECT v_open, NULL::integer, NULL::text;
    IF NOT v_open OR cardinality(p_parcels) = 0 THEN
        RETURN;
    END IF;
    v_all := queue_ids(v_names);
    FOR i IN 1..cardinality(p_parcels) LOOP
        r := p_parcels[i];
        INSERT INTO arrived (leg, id) VALUES (p_leg, r.id) ON CONFLICT DO NOTHING;
        CONTINUE WHEN NOT FOUND OR EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = r.id);  -- jobs_pkey
        v_qid := v_all[array_position(v_names, r.queue)];
        v_gid := store_parcel(v_now, i, v_qid, r);
        v_stored := v_stored || i;
        IF v_gid IS NOT NULL THEN
            v_gids := v_gids || v_gid;
            v_qids := v_qids || v_qid;
        END IF;
    END LOOP;
    INSERT INTO waiters (id, inbox, since)
    SELECT p_parcels[n.waited].id, n.inbox, v_now + n.ord FROM unnest(p_inboxes, p_waited) WITH ORDINALITY AS n (inbox, waited, ord)
    WHERE n.waited = ANY (v_stored) ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT NULL::boolean, n, CASE WHEN p_parcels[n].state = 0 THEN p_parcels[n].queue END FROM unnest(v_stored) AS n;
    IF v_gids <> '{}' THEN
        RETURN QUERY SELECT NULL::boolean, NULL::integer, name_of(q) FROM call_groups(v_qids, v_gids) AS q;
    END IF;
END $$;

-- Keys that outlive their jobs and are still held, by queue and key (keys_pkey).
CREATE FUNCTION held_keys_v1(p_at bigint, p_queue text, p_key text, p_limit integer)
RETURNS TABLE (queue text, key text, id uuid, held_until bigint) LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT name_of(k.qid), k.key, k.id, k.alone_until FROM keys AS k
    WHERE k.alone_until > coalesce(p_at, now_us()) AND (p_key IS NULL OR (k.qid, k.key) > (coalesce(qid_of(p_queue), -2147483648), p_key))
    ORDER BY k.qid, k.key LIMIT p_limit
$$;

CREATE FUNCTION hold_keys_v1(p_at bigint, p_queues text[], p_keys text[], p_ids uuid[], p_until bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_names CONSTANT text[] := ARRAY(SELECT DISTINCT n FROM unnest(p_queues) AS n);
    v_all CONSTANT integer[] := queue_ids(v_names);
    v_qid integer;
BEGIN
    FOR i IN 1..cardinality(p_keys) LOOP
        v_qid := v_all[array_position(v_names, p_queues[i])];
        PERFORM release_key(clock(p_at), v_qid, p_keys[i]);
        INSERT INTO keys (qid, key, id, held_until, alone_until) VALUES (v_qid, p_keys[i], p_ids[i], p_until[i], p_until[i])
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            INSERT INTO deltas (qid, state, jobs) VALUES (v_qid, 7, 1);
        END IF;
    END LOOP;
END $$;

-- Enter ticks into the history of a schedule, except of slots that are there.
CREATE FUNCTION add_ticks_v1(p_uid uuid, p_ticks tick_row[]) RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    WITH added AS (  -- ticks_pkey
        INSERT INTO ticks (uid, slot, run_at, outcome, planned_at, count, job, state, waited, ran)
        SELECT p_uid, n.slot, n.run_at, n.outcome, n.planned_at, n.count, n.job, n.state, n.waited, n.ran FROM unnest(p_ticks) AS n
        ON CONFLICT DO NOTHING RETURNING 1
    )
    INSERT INTO deltas (qid, state, jobs, bytes) SELECT 0, 6, count(*), count(*) * 100 FROM added HAVING count(*) > 0
$$;

-- The transactions that may have read other policies than those that are stored now.
CREATE FUNCTION settling_v1() RETURNS text[] LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT coalesce(array_agg(DISTINCT l.virtualtransaction), '{}') FROM locks_of_others AS l WHERE l.relation = 'policies'::regclass
$$;

SELECT seal();
