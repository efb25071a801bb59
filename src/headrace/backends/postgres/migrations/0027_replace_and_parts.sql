-- Rows that replace the cells or the time of a waiting job that has their key (see ``Backend.insert``). ``replaces`` of
-- a row: 1 the cells, 2 the time, 3 both.
--
-- Lock the waiting jobs that rows may replace. Jobs come before keys, and are locked by id, as in ``lock_keys``. Returns
-- their ids. A job of an earlier day is not replaced while its day is copied (``drop_day_v1``). Days are made meanwhile.
CREATE FUNCTION lock_replaced(p_now bigint, p_qids integer[], p_rows job_row[]) RETURNS uuid[] LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_ids CONSTANT uuid[] := ARRAY(  -- keys_pkey
        SELECT DISTINCT k.id FROM unnest(p_rows) AS n JOIN keys AS k ON k.qid = ANY (ARRAY[p_qids[n.queue]]) AND k.key = ANY (ARRAY[n.key])
        WHERE n.replaces > 0 AND k.held_until IS NULL ORDER BY 1
    );
BEGIN
    IF v_ids[1] < day_start(day_of(p_now)) THEN
        PERFORM 1 FROM locks AS l WHERE l.name = 'days' FOR KEY SHARE;  -- locks_pkey
    END IF;
    PERFORM lock_waiting(i) FROM unnest(v_ids) AS i;
    RETURN v_ids;
END $$;

-- Replace the cells of a waiting job. Returns by how much the job grows.
CREATE FUNCTION replace_cells(p_id uuid, r job_row) RETURNS integer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_before CONSTANT integer := cells_weight(p_id);
BEGIN
    UPDATE jobs AS j SET parameters = r.parameters, vm_state = r.vm_state, metadata = r.metadata, blob = r.blob
    WHERE j.id = p_id;  -- jobs_pkey
    DELETE FROM patches AS c WHERE c.id = p_id;  -- patches_pkey
    RETURN weight(r.parameters, r.vm_state, r.metadata, r.blob) - v_before;
END $$;

-- The jobs that have the keys of these rows take on what the rows replace, if they wait and have the same task and
-- tenant. Returns the numbers of the rows that were taken on. ``p_ours``: jobs that were locked for it, or are new.
CREATE FUNCTION replace_jobs(p_now bigint, p_losers losers, p_rows job_row[], p_ours uuid[], p_bound boolean) RETURNS integer[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_done integer[] := '{}';
    v_qids integer[] := '{}';
    v_gids bigint[] := '{}';
    v_grown integer;
    p place;
    r job_row;
BEGIN
    FOR i IN 1..cardinality(p_losers.ords) LOOP
        r := p_rows[p_losers.ords[i]];
        CONTINUE WHEN coalesce(r.replaces, 0) = 0 OR p_losers.alone[i];
        p := find_place(p_losers.owners[i]);
        CONTINUE WHEN p.id IS NULL OR p.state NOT IN (0, 2)
            OR NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = p.id AND j.task = r.task AND j.tenant = r.tenant);  -- jobs_pkey
        IF p.id <> ALL (p_ours) THEN
            RAISE EXCEPTION 'a job has taken the key at the same time' USING ERRCODE = 'serialization_failure';
        END IF;
        p := lock_place(p.id);
        v_grown := CASE WHEN r.replaces & 1 <> 0 THEN replace_cells(p.id, r) ELSE 0 END;
        IF r.replaces & 2 <> 0 THEN
            UPDATE jobs AS j SET expires_at = p_now + r.expires
            WHERE j.id = p.id AND j.expires_at IS DISTINCT FROM p_now + r.expires;
            PERFORM leave_place(p_now, p);
            p.size := p.size + v_grown;
            p := put_off(p, coalesce(r.run_at, p_now + r.delay));
            PERFORM enter_place(p_now, p, p.state, coalesce(p.lane, 0) >= 0);
            IF p.gid IS NOT NULL THEN
                v_qids := v_qids || p.qid;
                v_gids := v_gids || p.gid;
            END IF;
        ELSIF p.state = 0 THEN
            UPDATE ready AS y SET size = y.size + v_grown WHERE y.id = p.id;  -- ready_pkey
        ELSE
            UPDATE paused AS x SET size = x.size + v_grown WHERE x.id = p.id;  -- paused_pkey
        END IF;
        v_done := v_done || p_losers.ords[i];
    END LOOP;
    IF p_bound THEN
        INSERT INTO looks (qid, gid) SELECT DISTINCT n.* FROM unnest(v_qids, v_gids) AS n;
    ELSIF v_gids <> '{}' THEN
        PERFORM call_groups(v_qids, v_gids);
    END IF;
    RETURN v_done;
END $$;

-- Parts that running jobs send ahead of their result, and until when they are kept. A crash may take them.
CREATE UNLOGGED TABLE parts (
    id uuid NOT NULL,
    epoch bigint NOT NULL,
    number bigint NOT NULL,
    until bigint NOT NULL,
    body bytea NOT NULL,
    CONSTRAINT parts_pkey PRIMARY KEY (id, epoch, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
ALTER TABLE parts ALTER body SET STORAGE EXTERNAL;
CREATE INDEX parts_until ON parts (until);

-- Keep parts, each if it comes after the last one of its job. Of the job, what comes before its last ``p_kept`` goes; so
-- does, of all jobs, a bounded number of parts that are past their time. Nobody waits for anybody.
CREATE FUNCTION send_parts_v1(
    p_at bigint, p_ids uuid[], p_epochs bigint[], p_numbers bigint[], p_bodies bytea[], p_keep bigint, p_kept integer
) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    IF EXISTS (SELECT 1 FROM unnest(p_bodies) AS b WHERE b IS NULL OR octet_length(b) > 16384) THEN
        PERFORM refuse('part: expected at most 16384 bytes');
    END IF;
    INSERT INTO parts (id, epoch, number, until, body)
    SELECT n.id, n.epoch, n.number, v_now + p_keep, n.body
    FROM unnest(p_ids, p_epochs, p_numbers, p_bodies) AS n (id, epoch, number, body)
    WHERE NOT EXISTS (  -- parts_pkey, from the end of the job
        SELECT 1 FROM parts AS p WHERE p.id = n.id AND (p.epoch, p.number) >= (n.epoch, n.number)
    ) ON CONFLICT DO NOTHING;
    DELETE FROM parts AS p USING (
        SELECT DISTINCT ON (n.id) n.id, n.epoch, n.number FROM unnest(p_ids, p_epochs, p_numbers) AS n (id, epoch, number)
        ORDER BY n.id, n.epoch DESC, n.number DESC
    ) AS n WHERE p.id = ANY (ARRAY[n.id]) AND (p.epoch, p.number) <= (n.epoch, n.number - greatest(p_kept, 1));  -- parts_pkey
    DELETE FROM parts AS p USING (  -- parts_until
        SELECT x.id, x.epoch, x.number FROM parts AS x WHERE x.until <= v_now ORDER BY x.until LIMIT 1000 FOR UPDATE SKIP LOCKED
    ) AS o WHERE p.id = o.id AND p.epoch = o.epoch AND p.number = o.number;
END $$;

-- Parts of a job after this one, in order (parts_pkey).
CREATE FUNCTION read_parts_v1(p_ids uuid[], p_epoch bigint, p_number bigint, p_limit integer)
RETURNS TABLE (epoch bigint, number bigint, body bytea) LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT p.epoch, p.number, p.body FROM parts AS p
    WHERE p.id = p_ids[1] AND (p.epoch, p.number) > (p_epoch, p_number) ORDER BY p.epoch, p.number LIMIT least(p_limit, 1000)
$$;

SELECT seal();
