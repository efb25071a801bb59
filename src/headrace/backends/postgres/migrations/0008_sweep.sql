-- Remove what has ended, oldest end first. ``p_count`` and ``p_bytes`` are hard; a result that is held protects its job
-- from ``p_age``; nothing that ended less than ``p_spare`` ago goes. A key that is still held outlives its job. An age of a day or more leaves the jobs of a day that has a partition to ``sweep_day_v1``, until that
-- whole day is past it.
CREATE FUNCTION sweep_v1(
    p_at bigint, p_state smallint, p_age bigint, p_count bigint, p_bytes bigint, p_limit integer, p_dry boolean, p_spare bigint
) RETURNS TABLE (removed bigint, bytes bigint, kept bigint, more boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := clock(p_at);
    v_jobs bigint;
    v_bytes bigint;
    v_excess bigint;
    v_over bigint;
    v_seen bigint := 0;
    v_freed bigint := 0;
    v_oldest uuid[];
    v_oldest_sizes integer[];
    v_days_from uuid := day_start('2100-01-01');
    v_days_to uuid := day_start('2100-01-01');
    v_ids uuid[] := '{}';
    v_qids integer[] := '{}';
    v_sizes integer[] := '{}';
    r record;
BEGIN
    SELECT x.jobs, x.bytes INTO v_jobs, v_bytes FROM places_v1() AS x WHERE x.state = p_state;
    v_excess := greatest(coalesce(v_jobs - p_count, 0), 0);
    v_over := greatest(coalesce(v_bytes - p_bytes, 0), 0);
    -- One at a time: two would each take off what is too much.
    IF (v_excess > 0 OR v_over > 0)
        AND (p_dry OR try_lock('ended ' || p_state))
    THEN
        SELECT array_agg(x.id), array_agg(x.size) INTO v_oldest, v_oldest_sizes FROM (
            SELECT e.id, e.size FROM ended AS e WHERE e.state = p_state AND e.finished_at <= v_now - p_spare  -- ended_age
            ORDER BY e.state, e.finished_at, e.id LIMIT p_limit + 1
        ) AS x;
        -- What they weigh is told by the rows as they are once they are locked: a result may go at the same time.
        FOR r IN  -- ended_pkey
            WITH mine AS MATERIALIZED (
                SELECT e.id, e.qid, e.size FROM unnest(v_oldest) AS n (id) JOIN ended AS e ON e.id = ANY (ARRAY[n.id])
                FOR UPDATE OF e SKIP LOCKED
            )
            SELECT m.id, m.qid, coalesce(m.size, n.size) AS size
            FROM unnest(v_oldest, v_oldest_sizes) WITH ORDINALITY AS n (id, size, ord) LEFT JOIN mine AS m ON m.id = n.id
            ORDER BY n.ord
        LOOP
            EXIT WHEN v_seen >= v_excess AND v_freed >= v_over;
            v_seen := v_seen + 1;  -- what somebody else has in hand, he is removing
            v_freed := v_freed + r.size;
            IF r.id IS NOT NULL THEN
                v_ids := v_ids || r.id;
                v_qids := v_qids || r.qid;
                v_sizes := v_sizes || r.size;
            END IF;
        END LOOP;
    END IF;
    IF p_age >= 86400000000 THEN
        v_days_from := day_start(day_of(v_now - p_age));
        v_days_to := day_start(day_of(v_now) + 4);
    END IF;
    IF p_age IS NOT NULL AND cardinality(v_ids) <= p_limit THEN
        FOR r IN  -- ended_age
            SELECT e.id, e.qid, e.size FROM ended AS e
            WHERE e.state = p_state AND e.finished_at <= v_now - greatest(p_age, p_spare) AND NOT (p_state = 3 AND e.held_until > v_now)
                AND (e.id < v_days_from OR e.id >= v_days_to) AND e.id <> ALL (v_ids)
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
    IF NOT p_dry THEN
        -- Whoever takes a key over has the old job in hand: that one is for another time.
        WITH taken AS MATERIALIZED (  -- jobs_pkey, keys_pkey
            SELECT n.id FROM unnest(v_ids, v_qids) AS n (id, qid) JOIN jobs AS j ON j.id = ANY (ARRAY[n.id])
            JOIN keys AS k ON k.qid = ANY (ARRAY[n.qid]) AND k.key = ANY (ARRAY[j.key]) AND k.id = n.id
        ), free AS MATERIALIZED (
            SELECT n.id FROM unnest(v_ids, v_qids) AS n (id, qid) JOIN jobs AS j ON j.id = ANY (ARRAY[n.id])
            JOIN keys AS k ON k.qid = ANY (ARRAY[n.qid]) AND k.key = ANY (ARRAY[j.key]) AND k.id = n.id FOR UPDATE OF k SKIP LOCKED
        )
        SELECT coalesce(array_agg(n.id), '{}'), coalesce(array_agg(n.qid), '{}'), coalesce(array_agg(n.size), '{}')
        INTO v_ids, v_qids, v_sizes FROM unnest(v_ids, v_qids, v_sizes) AS n (id, qid, size)
        WHERE n.id NOT IN (SELECT t.id FROM taken AS t EXCEPT SELECT f.id FROM free AS f);
    END IF;
    removed := cardinality(v_ids);
    more := more AND removed > 0;
    SELECT coalesce(sum(s), 0) INTO bytes FROM unnest(v_sizes) AS s;
    kept := v_jobs - removed;
    IF removed > 0 AND NOT p_dry THEN
        PERFORM forget_jobs(v_ids, v_qids, v_now);
        PERFORM take_waiters(v_ids);
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
    v_now bigint := clock(p_at);
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
    SELECT coalesce(sum(octet_length(e.result)), 0) INTO bytes FROM unnest(v_ids) AS n (id) JOIN ended AS e ON e.id = ANY (ARRAY[n.id]);
    IF removed > 0 AND NOT p_dry THEN
        INSERT INTO deltas (qid, state, jobs, bytes)
        SELECT e.qid, 3, 0, -sum(octet_length(e.result)) FROM unnest(v_ids) AS n (id) JOIN ended AS e ON e.id = ANY (ARRAY[n.id]) GROUP BY e.qid;
        UPDATE ended AS e SET result = NULL, size = e.size - octet_length(e.result) FROM unnest(v_ids) AS n (id) WHERE e.id = ANY (ARRAY[n.id]);
    END IF;
    RETURN NEXT;
END $$;

-- Remove keys that outlive the records of their jobs: those that are free by now, and those that would be first, where there are
-- too many. A key that somebody has in hand is for another time.
CREATE FUNCTION sweep_keys_v1(p_at bigint, p_count bigint, p_limit integer, p_dry boolean)
RETURNS TABLE (removed bigint, bytes bigint, kept bigint, more boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := clock(p_at);
    v_keys bigint;
    v_excess bigint;
    v_places tid[];
BEGIN
    SELECT coalesce(sum(c.jobs), 0) INTO v_keys FROM (
        SELECT t.jobs FROM totals AS t WHERE t.state = 7 UNION ALL SELECT d.jobs FROM deltas AS d WHERE d.state = 7
    ) AS c;
    -- One at a time: two would each take off what is too much.
    v_excess := CASE WHEN v_keys > p_count AND (p_dry OR try_lock('keys')) THEN v_keys - p_count ELSE 0 END;
    v_places := ARRAY(  -- keys_alone
        SELECT k.ctid FROM keys AS k WHERE k.alone_until IS NOT NULL AND k.alone_until <= v_now
        ORDER BY k.alone_until LIMIT p_limit + 1 FOR UPDATE SKIP LOCKED
    );
    IF v_excess > cardinality(v_places) AND cardinality(v_places) <= p_limit THEN
        v_places := ARRAY(  -- keys_alone: begins with the others
            SELECT k.ctid FROM keys AS k WHERE k.alone_until IS NOT NULL
            ORDER BY k.alone_until LIMIT least(v_excess, p_limit + 1) FOR UPDATE SKIP LOCKED
        );
    END IF;
    more := cardinality(v_places) > p_limit;
    v_places := v_places[1:p_limit];
    removed := cardinality(v_places);
    bytes := 0;
    kept := v_keys - removed;
    IF removed > 0 AND NOT p_dry THEN
        WITH gone AS (DELETE FROM keys AS k WHERE k.ctid = ANY (v_places) RETURNING k.qid)
        INSERT INTO deltas (qid, state, jobs) SELECT g.qid, 7, -count(*) FROM gone AS g GROUP BY g.qid;
    END IF;
    RETURN NEXT;
END $$;

-- The names of queues that nothing refers to any more go. Nobody may have the number of one in hand meanwhile.
CREATE FUNCTION forget_queues(p_at bigint DEFAULT NULL) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    LOCK TABLE queues IN EXCLUSIVE MODE NOWAIT;
    PERFORM fold_deltas();
    WITH idle AS (
        SELECT q.qid FROM queues AS q
        WHERE q.paused_until <= clock(p_at) AND NOT q.governed
            AND NOT EXISTS (SELECT 1 FROM totals AS t WHERE t.qid = q.qid AND t.jobs <> 0)
            AND NOT EXISTS (SELECT 1 FROM deltas AS d WHERE d.qid = q.qid)
        LIMIT 1000
    ), gone AS (
        DELETE FROM totals AS t USING idle AS i WHERE t.qid = i.qid
    )
    DELETE FROM queues AS q USING idle AS i WHERE q.qid = i.qid;
EXCEPTION WHEN lock_not_available THEN
    NULL;  -- there is another time
END $$;

-- Drop the oldest day whose jobs have all been made longer than ``p_age`` ago and have, all but a few, ended in this state
-- as long ago. Those few move to the default partition first. Answers nothing where there is no such day, or where
-- somebody has the tables in hand: it waits for nobody longer than a moment. ``p_dry`` only tells.
CREATE FUNCTION sweep_day_v1(p_at bigint, p_state smallint, p_age bigint, p_few integer, p_dry boolean)
RETURNS TABLE (removed bigint, bytes bigint, kept bigint, more boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := clock(p_at);
    v_before bigint := v_now - p_age;
    v_day date;
    v_name text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- What was committed while this waits for its locks has to be seen.
        RAISE EXCEPTION 'sweeping needs the isolation level read committed, not %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Set default_transaction_isolation for this role, as behind a pooler nobody else can';
    END IF;
    FOR v_day IN
        SELECT to_date(substr(c.relname, 6), 'YYYYMMDD') AS day
        FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'jobs'::regclass AND c.relname ~ '^jobs_[0-9]{8}$' ORDER BY 1
    LOOP
        EXIT WHEN v_day >= day_of(v_before);
        CONTINUE WHEN stays(v_day, p_state, v_before, v_now, p_few) > p_few;
        v_name := to_char(v_day, 'YYYYMMDD');
        IF p_dry THEN
            SELECT count(*), coalesce(sum(e.size), 0) INTO removed, bytes FROM ended AS e
            WHERE e.id >= day_start(v_day) AND e.id < day_start(v_day + 1) AND e.state = p_state
                AND e.finished_at <= v_before AND NOT (p_state = 3 AND e.held_until > v_now);
            SELECT x.jobs - removed INTO kept FROM places_v1() AS x WHERE x.state = p_state;
            more := true;
            RETURN NEXT;
            RETURN;
        END IF;
        BEGIN
            SELECT d.removed, d.bytes INTO removed, bytes FROM drop_day(v_day, v_name, p_state, v_before, v_now, p_few) AS d;
        EXCEPTION WHEN lock_not_available OR deadlock_detected OR undefined_table THEN
            RETURN;  -- undefined_table: somebody else has just dropped it
        END;
        CONTINUE WHEN removed IS NULL;
        SELECT x.jobs INTO kept FROM places_v1() AS x WHERE x.state = p_state;
        more := true;
        RETURN NEXT;
        RETURN;
    END LOOP;
END $$;

-- The day, by UTC, of an instant.
CREATE FUNCTION day_of(p_at bigint) RETURNS date LANGUAGE sql IMMUTABLE AS $$
    SELECT date '1970-01-01' + (p_at / 86400000000)::integer
$$;

-- How many jobs of a day stay when those of this state and age go, as far as indexes tell; counted up to ``p_few`` + 1 of
-- each kind.
CREATE FUNCTION stays(p_day date, p_state smallint, p_before bigint, p_now bigint, p_few integer) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT sum(x.jobs)::bigint FROM (
        SELECT count(*) AS jobs FROM (  -- ready_id
            SELECT 1 FROM ready AS y WHERE y.id >= day_start(p_day) AND y.id < day_start(p_day + 1) LIMIT p_few + 1
        ) AS few
        UNION ALL SELECT count(*) FROM (  -- leased_pkey
            SELECT 1 FROM leased AS l WHERE l.id >= day_start(p_day) AND l.id < day_start(p_day + 1) LIMIT p_few + 1
        ) AS few
        UNION ALL SELECT count(*) FROM (  -- paused_pkey
            SELECT 1 FROM paused AS p WHERE p.id >= day_start(p_day) AND p.id < day_start(p_day + 1) LIMIT p_few + 1
        ) AS few
        UNION ALL SELECT count(*) FROM (  -- ended_age, of that day
            SELECT 1 FROM (VALUES (3::smallint), (4::smallint), (5::smallint)) AS s (state) CROSS JOIN LATERAL (
                SELECT 1 FROM ended AS e
                WHERE e.id >= day_start(p_day) AND e.id < day_start(p_day + 1) AND e.state = s.state
                    AND e.finished_at > CASE WHEN s.state = p_state THEN p_before ELSE -1 END
                LIMIT p_few + 1
            ) AS late
        ) AS few
    ) AS x
$$;

-- Takes one day out of both tables. Writers of that day wait from the first lock on, everybody else only while the
-- partitions are detached.
CREATE FUNCTION drop_day(p_day date, p_name text, p_state smallint, p_before bigint, p_now bigint, p_few integer)
RETURNS TABLE (removed bigint, bytes bigint) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_from uuid := day_start(p_day);
    v_to uuid := day_start(p_day + 1);
    v_stays uuid[];
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE format('LOCK TABLE %I IN SHARE ROW EXCLUSIVE MODE', 'ended_' || p_name);
    SELECT coalesce(array_agg(few.id), '{}') INTO v_stays FROM (
        SELECT e.id FROM ended AS e
        WHERE e.id >= v_from AND e.id < v_to
            AND (e.state <> p_state OR e.finished_at > p_before OR (e.state = 3 AND e.held_until > p_now))
        LIMIT p_few + 1
    ) AS few;
    IF cardinality(v_stays) > p_few THEN
        RETURN;
    END IF;
    DELETE FROM keys AS k USING ended AS e, jobs AS j
    WHERE e.id >= v_from AND e.id < v_to AND e.keyed AND e.id <> ALL (v_stays) AND j.id = e.id
        AND k.qid = e.qid AND k.key = j.key AND k.id = e.id;
    WITH gone AS (
        SELECT e.qid, count(*) AS jobs, sum(e.size) AS bytes FROM ended AS e
        WHERE e.id >= v_from AND e.id < v_to AND e.id <> ALL (v_stays) GROUP BY e.qid
    ), counted AS (
        INSERT INTO deltas (qid, state, jobs, bytes) SELECT g.qid, p_state, -g.jobs, -g.bytes FROM gone AS g
    )
    SELECT coalesce(sum(g.jobs), 0), coalesce(sum(g.bytes), 0) INTO removed, bytes FROM gone AS g;
    EXECUTE format('ALTER TABLE ended DETACH PARTITION %I', 'ended_' || p_name);
    EXECUTE format('ALTER TABLE jobs DETACH PARTITION %I', 'jobs_' || p_name);
    -- Nobody else can see either table now. Whatever is alive has come into its place before.
    SELECT v_stays || coalesce(array_agg(x.id), '{}') INTO v_stays FROM (
        SELECT y.id FROM ready AS y WHERE y.id >= v_from AND y.id < v_to
        UNION ALL SELECT l.id FROM leased AS l WHERE l.id >= v_from AND l.id < v_to
        UNION ALL SELECT p.id FROM paused AS p WHERE p.id >= v_from AND p.id < v_to
    ) AS x;
    EXECUTE format('INSERT INTO jobs SELECT * FROM %I WHERE id = ANY ($1)', 'jobs_' || p_name) USING v_stays;
    EXECUTE format('INSERT INTO ended SELECT * FROM %I WHERE id = ANY ($1)', 'ended_' || p_name) USING v_stays;
    DELETE FROM patches AS c WHERE c.id >= v_from AND c.id < v_to AND c.id <> ALL (v_stays);  -- patches_pkey
    EXECUTE format('DROP TABLE %I, %I', 'jobs_' || p_name, 'ended_' || p_name);
    RETURN NEXT;
END $$;
