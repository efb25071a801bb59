-- Remove what has ended, oldest end first. ``p_count`` and ``p_bytes`` are hard; a result that is held protects its job
-- from ``p_age``.
CREATE FUNCTION sweep_v1(
    p_at bigint, p_state smallint, p_age bigint, p_count bigint, p_bytes bigint, p_limit integer, p_dry boolean
) RETURNS TABLE (removed bigint, bytes bigint, kept bigint, more boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(p_at, now_us());
    v_jobs bigint;
    v_bytes bigint;
    v_excess bigint;
    v_over bigint;
    v_freed bigint := 0;
    v_ids uuid[] := '{}';
    v_qids integer[] := '{}';
    v_sizes integer[] := '{}';
    r record;
BEGIN
    SELECT x.jobs, x.bytes INTO v_jobs, v_bytes FROM places_v1() AS x WHERE x.state = p_state;
    v_excess := greatest(coalesce(v_jobs - p_count, 0), 0);
    v_over := greatest(coalesce(v_bytes - p_bytes, 0), 0);
    IF v_excess > 0 OR v_over > 0 THEN
        FOR r IN  -- ended_age
            SELECT e.id, e.qid, e.size FROM ended AS e WHERE e.state = p_state
            ORDER BY e.state, e.finished_at, e.id LIMIT p_limit + 1 FOR UPDATE SKIP LOCKED
        LOOP
            EXIT WHEN cardinality(v_ids) >= v_excess AND v_freed >= v_over;
            v_ids := v_ids || r.id;
            v_qids := v_qids || r.qid;
            v_sizes := v_sizes || r.size;
            v_freed := v_freed + r.size;
        END LOOP;
    END IF;
    IF p_age IS NOT NULL AND cardinality(v_ids) <= p_limit THEN
        FOR r IN  -- ended_age
            SELECT e.id, e.qid, e.size FROM ended AS e
            WHERE e.state = p_state AND e.finished_at <= v_now - p_age AND NOT (p_state = 3 AND e.held_until > v_now)
                AND e.id <> ALL (v_ids)
            ORDER BY e.state, e.finished_at, e.id LIMIT p_limit + 1 - cardinality(v_ids) FOR UPDATE SKIP LOCKED
        LOOP
            v_ids := v_ids || r.id;
            v_qids := v_qids || r.qid;
            v_sizes := v_sizes || r.size;
        END LOOP;
    END IF;
    more := cardinality(v_ids) > p_limit;
    v_ids := v_ids[1:p_limit];
    v_qids := v_qids[1:p_limit];
    v_sizes := v_sizes[1:p_limit];
    removed := cardinality(v_ids);
    SELECT coalesce(sum(s), 0) INTO bytes FROM unnest(v_sizes) AS s;
    kept := v_jobs - removed;
    IF removed > 0 AND NOT p_dry THEN
        PERFORM forget_jobs(v_ids, v_qids);
        INSERT INTO deltas (qid, state, jobs, bytes)
        SELECT n.qid, p_state, -count(*), -sum(n.size) FROM unnest(v_qids, v_sizes) AS n (qid, size) GROUP BY n.qid;
    END IF;
    RETURN NEXT;
END $$;

-- Clear results past their time; the records stay.
CREATE FUNCTION sweep_results_v1(p_at bigint, p_limit integer, p_dry boolean)
RETURNS TABLE (removed bigint, bytes bigint, kept bigint, more boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(p_at, now_us());
    v_ids uuid[];
BEGIN
    SELECT coalesce(array_agg(x.id), '{}') INTO v_ids FROM (  -- ended_results
        SELECT e.id FROM ended AS e WHERE e.result IS NOT NULL AND e.held_until <= v_now
        ORDER BY e.held_until, e.id LIMIT p_limit + 1 FOR UPDATE SKIP LOCKED
    ) AS x;
    more := cardinality(v_ids) > p_limit;
    v_ids := v_ids[1:p_limit];
    removed := cardinality(v_ids);
    kept := 0;
    SELECT coalesce(sum(octet_length(e.result)), 0) INTO bytes FROM unnest(v_ids) AS n (id) JOIN ended AS e ON e.id = n.id;
    IF removed > 0 AND NOT p_dry THEN
        INSERT INTO deltas (qid, state, jobs, bytes)
        SELECT e.qid, 3, 0, -sum(octet_length(e.result)) FROM unnest(v_ids) AS n (id) JOIN ended AS e ON e.id = n.id GROUP BY e.qid;
        UPDATE ended AS e SET result = NULL, size = e.size - octet_length(e.result) FROM unnest(v_ids) AS n (id) WHERE e.id = n.id;
    END IF;
    RETURN NEXT;
END $$;

-- The names of queues that nothing refers to any more go. Nobody may have the number of one in hand meanwhile.
CREATE FUNCTION forget_queues() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    IF pg_try_advisory_xact_lock('queues'::regclass::oid::bigint) THEN
        PERFORM fold_deltas();
        WITH idle AS (
            SELECT q.qid FROM queues AS q
            WHERE NOT q.paused
                AND NOT EXISTS (SELECT 1 FROM totals AS t WHERE t.qid = q.qid AND t.jobs <> 0)
                AND NOT EXISTS (SELECT 1 FROM deltas AS d WHERE d.qid = q.qid)
            LIMIT 1000
        ), gone AS (
            DELETE FROM totals AS t USING idle AS i WHERE t.qid = i.qid
        )
        DELETE FROM queues AS q USING idle AS i WHERE q.qid = i.qid;
    END IF;
END $$;
