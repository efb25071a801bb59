-- Remove what has ended, oldest end first. ``p_count`` and ``p_bytes`` are hard; a result that is held protects its job
-- from ``p_age``; nothing that ended less than ``p_spare`` ago goes. A key that is still held outlives its job. An age of a day or
-- more leaves the jobs of a day to ``drop_day_v1``, until all of that day has been past it for another day.
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
        AND NOT EXISTS (SELECT 1 FROM gone_days AS d WHERE d.state = p_state)  -- they still count, and are gone
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
        v_days_from := day_start(day_of(v_now - p_age) - 1);
        v_days_to := day_start(day_of(v_now) + 2);
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
        WITH keyed AS MATERIALIZED (  -- jobs_pkey
            SELECT n.id, n.qid, j.key FROM unnest(v_ids, v_qids) AS n (id, qid) JOIN jobs AS j ON j.id = ANY (ARRAY[n.id])
            WHERE j.key IS NOT NULL
        ), taken AS MATERIALIZED (  -- keys_pkey
            SELECT m.id FROM keyed AS m
            CROSS JOIN LATERAL (SELECT 1 FROM keys AS k WHERE k.qid = m.qid AND k.key = m.key AND k.id = m.id OFFSET 0) AS k
        ), free AS MATERIALIZED (
            SELECT m.id FROM keyed AS m CROSS JOIN LATERAL (
                SELECT 1 FROM keys AS k WHERE k.qid = m.qid AND k.key = m.key AND k.id = m.id FOR UPDATE SKIP LOCKED
            ) AS k
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

-- Transactions that may have the number of a queue in hand.
CREATE FUNCTION naming() RETURNS text[] LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT coalesce(array_agg(DISTINCT l.virtualtransaction), '{}') FROM pg_locks AS l
    WHERE l.locktype = 'relation' AND l.relation = 'queues'::regclass AND l.mode = 'RowShareLock' AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
$$;

-- The names of queues that nothing refers to, and that nobody has used for a day, go; in three calls, whoever makes them: the first
-- marks them, so that everybody who names one from then on locks its row. The second notes who named queues before that. Once
-- these have ended, those that are still marked and that nobody has locked are forgotten. Whether the next call may be made at once.
CREATE FUNCTION forget_queues_v1(p_at bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_waits_for text[];
    v_qids integer[];
BEGIN
    SELECT f.waits_for INTO v_waits_for FROM forgetting AS f FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN false;
    ELSIF NOT EXISTS (SELECT 1 FROM queues AS q WHERE q.leaving) THEN
        PERFORM name_queues();
        PERFORM fold_deltas();
        UPDATE queues AS q SET leaving = true WHERE q.qid IN (
            SELECT i.qid FROM queues AS i WHERE i.used_at < clock(p_at) - 86400000000 AND is_idle(p_at, i) LIMIT 10000
            FOR NO KEY UPDATE SKIP LOCKED
        );
        UPDATE forgetting SET waits_for = NULL;
        RETURN EXISTS (SELECT 1 FROM queues AS q WHERE q.leaving);
    ELSIF v_waits_for IS NULL THEN
        UPDATE forgetting SET waits_for = naming();
        RETURN true;
    ELSIF naming() && v_waits_for THEN
        RETURN false;
    END IF;
    v_qids := ARRAY(SELECT q.qid FROM queues AS q WHERE q.leaving FOR UPDATE SKIP LOCKED);
    PERFORM fold_deltas();
    -- What was counted before it was locked is seen now, and nothing more can come.
    DELETE FROM queues AS q WHERE q.qid = ANY (v_qids) AND q.leaving AND is_idle(p_at, q);
    DELETE FROM numbers AS n WHERE n.qid = ANY (v_qids) AND NOT EXISTS (SELECT 1 FROM queues AS q WHERE q.qid = n.qid);  -- numbers_qid
    DELETE FROM totals AS t WHERE t.qid = ANY (v_qids) AND NOT EXISTS (SELECT 1 FROM queues AS q WHERE q.qid = t.qid);
    UPDATE queues AS q SET leaving = false WHERE q.leaving;
    RETURN false;
END $$;

-- Whether nothing refers to a queue; totals_pkey, keys_pkey.
CREATE FUNCTION is_idle(p_at bigint, q queues) RETURNS boolean LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT q.paused_until <= clock(p_at) AND NOT q.governed
        AND NOT EXISTS (SELECT 1 FROM totals AS t WHERE t.qid = q.qid AND t.jobs <> 0)
        AND NOT EXISTS (SELECT 1 FROM keys AS k WHERE k.qid = q.qid)
        AND NOT EXISTS (SELECT 1 FROM deltas AS d WHERE d.qid = q.qid)
$$;

-- Whether the caller is the one who does this now; it is nobody else's for two minutes then, or until ``end_duty_v1``.
CREATE FUNCTION begin_duty_v1(p_at bigint, p_name text) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
BEGIN
    PERFORM 1 FROM duties AS d WHERE d.name = p_name AND d.next_at <= v_now FOR UPDATE SKIP LOCKED;  -- duties_pkey
    IF FOUND THEN
        UPDATE duties AS d SET next_at = v_now + 120000000 WHERE d.name = p_name;
        RETURN true;
    END IF;
    RETURN false;
END $$;

-- It comes again at once if there is ``p_more`` to do, else in a minute; if somebody was in its way (``p_busy``), twice as late each
-- time, up to about an hour.
CREATE FUNCTION end_duty_v1(p_at bigint, p_name text, p_busy boolean, p_more boolean) RETURNS void LANGUAGE sql VOLATILE
SET search_path FROM CURRENT AS $$
    UPDATE duties AS d SET
        failures = CASE WHEN p_busy THEN least(d.failures + 1, 6) ELSE 0 END,
        next_at = clock(p_at) + CASE WHEN p_busy THEN 60000000::bigint << d.failures WHEN p_more THEN 0 ELSE 60000000 END
    WHERE d.name = p_name
$$;

-- The transactions that have locked the tables of jobs. One that is here in two answers lasts: whoever asked for all of a table would
-- wait for it, and all others for him.
CREATE FUNCTION holders_v1() RETURNS text[] LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT coalesce(array_agg(DISTINCT l.virtualtransaction), '{}') FROM pg_locks AS l
    WHERE l.locktype = 'relation' AND l.relation IN ('jobs'::regclass, 'ended'::regclass) AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
$$;

-- Take out the oldest day whose jobs have all been made longer than ``p_age`` ago and have, all but a few, ended in this state
-- as long ago. What this costs depends on how many stay, not on how many go: those are counted off by ``settle_day_v1``. Whether it was
-- done; NULL where there is no such day. Waits for nobody longer than a moment.
CREATE FUNCTION drop_day_v1(p_at bigint, p_state smallint, p_age bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_before CONSTANT bigint := v_now - p_age;
    v_day date;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- What was committed while this waits for its locks has to be seen.
        RAISE EXCEPTION 'dropping a day needs the isolation level read committed, not %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT try_lock('days') THEN
        RETURN false;
    END IF;
    FOR v_day IN
        SELECT to_date(substr(c.relname, 6), 'YYYYMMDD') AS day
        FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'jobs'::regclass AND c.relname ~ '^jobs_[0-9]{8}$' ORDER BY 1
    LOOP
        EXIT WHEN v_day >= day_of(v_before);
        IF goes_whole(v_day, p_state, v_before, (SELECT count(*) FROM stays(v_day, p_state, v_before, v_now))) THEN
            RETURN drop_day(v_day, p_state, v_before, v_now);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- The jobs of a day that stay when those of this state and age go: up to 10,001 of each kind. They are still to end; or ended in another
-- state, or later; or their result is held, which for one that is not held for longer than a day is past.
CREATE FUNCTION stays(p_day date, p_state smallint, p_before bigint, p_now bigint) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_from CONSTANT uuid := day_start(p_day);
    v_to CONSTANT uuid := day_start(p_day + 1);
BEGIN
    RETURN QUERY SELECT y.id FROM ready AS y WHERE y.id >= v_from AND y.id < v_to LIMIT 10001;  -- ready_pkey
    RETURN QUERY SELECT l.id FROM leased AS l WHERE l.id >= v_from AND l.id < v_to LIMIT 10001;  -- leased_pkey
    RETURN QUERY SELECT p.id FROM paused AS p WHERE p.id >= v_from AND p.id < v_to LIMIT 10001;  -- paused_pkey
    RETURN QUERY EXECUTE format(  -- ended_age, one range of each state; ended_held; of that day
        'SELECT late.id FROM unnest(ARRAY[3, 4, 5]::smallint[]) AS s (state) CROSS JOIN LATERAL ('
        ' SELECT e.id FROM %1$I AS e WHERE e.state = s.state AND e.finished_at > CASE WHEN s.state = $1 THEN $2 ELSE -1 END LIMIT 10001'
        ') AS late UNION (SELECT e.id FROM %1$I AS e WHERE e.held_until - 86400000000 > e.finished_at AND e.held_until > $3'
        ' AND e.state = 3 LIMIT 10001)', 'ended_' || to_char(p_day, 'YYYYMMDD')
    ) USING p_state, p_before, p_now;
END $$;

-- Whether a day goes at once when so many of it stay: if they are a few, or not too many to be moved and fewer than those that go.
CREATE FUNCTION goes_whole(p_day date, p_state smallint, p_before bigint, p_stay bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_go bigint;
BEGIN
    IF p_stay <= 1000 OR p_stay > 10000 THEN
        RETURN p_stay <= 1000;
    END IF;
    EXECUTE format(  -- ended_age of that day
        'SELECT count(*) FROM (SELECT 1 FROM %I AS e WHERE e.state = $1 AND e.finished_at <= $2 LIMIT $3) AS few',
        'ended_' || to_char(p_day, 'YYYYMMDD')
    ) INTO v_go USING p_state, p_before, 2 * p_stay + 1;
    RETURN v_go > 2 * p_stay;
END $$;

-- Takes one day out of both tables. Those that stay are copied before anybody has to wait, and looked at again once nobody can
-- write. The copies take the place of the day, or, if they are only a few, go to the default partition, so that the day is gone.
CREATE FUNCTION drop_day(p_day date, p_state smallint, p_before bigint, p_now bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    v_name CONSTANT text := to_char(p_day, 'YYYYMMDD');
    v_from CONSTANT uuid := day_start(p_day);
    v_to CONSTANT uuid := day_start(p_day + 1);
    v_stays uuid[];
    v_table text;
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    v_stays := ARRAY(SELECT stays(p_day, p_state, p_before, p_now));
    FOREACH v_table IN ARRAY ARRAY['jobs', 'ended'] LOOP
        EXECUTE format(
            'CREATE TABLE %I (LIKE %I INCLUDING ALL, CONSTRAINT of_day CHECK (id >= %L AND id < %L))', 'kept_' || v_table, v_table, v_from, v_to
        );
        PERFORM copy_kept(v_table, v_name, v_stays);
    END LOOP;
    LOCK TABLE ONLY ended, ONLY jobs IN ACCESS EXCLUSIVE MODE;
    v_stays := ARRAY(SELECT stays(p_day, p_state, p_before, p_now));
    IF cardinality(v_stays) > 10000 THEN
        RAISE lock_not_available;
    END IF;
    FOREACH v_table IN ARRAY ARRAY['ended', 'jobs'] LOOP
        PERFORM copy_kept(v_table, v_name, v_stays);
        EXECUTE format('ALTER TABLE %I DETACH PARTITION %I', v_table, v_table || '_' || v_name);
        EXECUTE format('ALTER TABLE %I RENAME TO %I', v_table || '_' || v_name, 'gone_' || v_table || '_' || v_name);
        IF cardinality(v_stays) > 1000 THEN
            EXECUTE format('ALTER TABLE %I RENAME TO %I', 'kept_' || v_table, v_table || '_' || v_name);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', v_table, v_table || '_' || v_name, v_from, v_to);
            EXECUTE format('ALTER TABLE %I DROP CONSTRAINT of_day', v_table || '_' || v_name);
        ELSE
            EXECUTE format('INSERT INTO %I SELECT * FROM %I', v_table, 'kept_' || v_table);
            EXECUTE format('DROP TABLE %I', 'kept_' || v_table);
        END IF;
    END LOOP;
    INSERT INTO gone_days (day, state, kept) VALUES (p_day, p_state, v_stays);
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected OR unique_violation OR duplicate_table THEN
    RETURN false;  -- the last two: what was taken out of this day before is not counted off
END $$;

-- The rows of a day with these ids, and no others, are in the table of copies, as they are now. Those of ``jobs`` never change.
CREATE FUNCTION copy_kept(p_table text, p_name text, p_ids uuid[]) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = on SET enable_mergejoin = off AS $$
BEGIN
    IF p_table = 'jobs' THEN
        DELETE FROM kept_jobs AS k WHERE NOT EXISTS (SELECT 1 FROM unnest(p_ids) AS n (id) WHERE n.id = k.id);
    ELSE
        EXECUTE format(  -- the keys of that day
            'WITH now AS MATERIALIZED (SELECT g.* FROM unnest($1) AS n (id) JOIN %I AS g ON g.id = ANY (ARRAY[n.id]))'
            ' DELETE FROM kept_ended AS k WHERE NOT EXISTS ('
            ' SELECT 1 FROM now AS g WHERE g.id = k.id AND ROW(g.*) IS NOT DISTINCT FROM ROW(k.*))', p_table || '_' || p_name
        ) USING p_ids;
    END IF;
    EXECUTE format(  -- the keys of that day
        'INSERT INTO %1$I SELECT g.* FROM ('
        ' SELECT n.id FROM unnest($1) AS n (id) WHERE NOT EXISTS (SELECT 1 FROM %1$I AS k WHERE k.id = n.id) OFFSET 0'
        ') AS n JOIN %2$I AS g ON g.id = ANY (ARRAY[n.id])', 'kept_' || p_table, p_table || '_' || p_name
    ) USING p_ids;
END $$;

-- Count off up to ``p_limit`` jobs of a day that was taken out, and forget what else is known of them; once all are, drop its tables.
-- How many there were, in which state; no row where nothing is left to do.
CREATE FUNCTION settle_day_v1(p_limit integer) RETURNS TABLE (state smallint, removed bigint) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = on SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_gone gone_days;
    v_name text;
    v_seen bigint;
    v_last uuid;
BEGIN
    SELECT d.* INTO v_gone FROM gone_days AS d ORDER BY d.day LIMIT 1 FOR UPDATE SKIP LOCKED;  -- gone_days_pkey
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_name := to_char(v_gone.day, 'YYYYMMDD');
    state := v_gone.state;
    EXECUTE format(  -- the keys of that day; then keys_pkey
        'WITH step AS MATERIALIZED ('
        ' SELECT e.id, e.qid, e.size, e.keyed FROM %1$I AS e WHERE e.id > $1 ORDER BY e.id LIMIT $2'
        '), goes AS MATERIALIZED ('
        ' SELECT s.* FROM step AS s WHERE NOT EXISTS (SELECT 1 FROM unnest($4) AS k (id) WHERE k.id = s.id)'
        '), counted AS ('
        ' INSERT INTO deltas (qid, state, jobs, bytes) SELECT s.qid, $3, -count(*), -sum(s.size) FROM goes AS s GROUP BY s.qid'
        '), free AS ('
        ' DELETE FROM keys AS k USING goes AS s, %2$I AS j WHERE s.keyed AND j.id = ANY (ARRAY[s.id])'
        ' AND k.qid = ANY (ARRAY[s.qid]) AND k.key = ANY (ARRAY[j.key]) AND k.id = s.id'
        ') SELECT (SELECT count(*) FROM goes), count(*), (SELECT s.id FROM step AS s ORDER BY s.id DESC LIMIT 1) FROM step',
        'gone_ended_' || v_name, 'gone_jobs_' || v_name
    ) INTO removed, v_seen, v_last USING v_gone.mark, p_limit, v_gone.state, v_gone.kept;
    IF v_seen < p_limit THEN
        v_last := day_start(v_gone.day + 1);
    END IF;
    DELETE FROM patches AS c WHERE c.id > v_gone.mark AND c.id >= day_start(v_gone.day) AND c.id <= v_last  -- patches_pkey, jobs_pkey
        AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = ANY (ARRAY[c.id]));
    IF v_seen < p_limit THEN
        EXECUTE format('DROP TABLE %I, %I', 'gone_jobs_' || v_name, 'gone_ended_' || v_name);
        DELETE FROM gone_days AS d WHERE d.day = v_gone.day;
    ELSE
        UPDATE gone_days AS d SET mark = v_last WHERE d.day = v_gone.day;
    END IF;
    RETURN NEXT;
END $$;
