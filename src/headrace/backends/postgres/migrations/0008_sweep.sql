-- A job that a sweep removes.
CREATE TYPE doomed AS (id uuid, qid integer, size integer, tenant text);

-- Remove ended jobs, oldest end first. ``p_count`` and ``p_bytes`` are hard bounds; a held result protects its job from
-- ``p_age``; nothing that ended less than ``p_spare`` ago, or after ``p_ended_by``, is removed. A key that is still held
-- outlives its job. FAILED jobs go by one bound per call, and those of the tenants with most of them first.
CREATE FUNCTION sweep_v1(
    p_at bigint, p_state smallint, p_age bigint, p_count bigint, p_bytes bigint, p_limit integer, p_dry boolean, p_spare bigint,
    p_ended_by bigint DEFAULT NULL
) RETURNS TABLE (removed bigint, bytes bigint, kept bigint, more boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_latest CONSTANT bigint := least(v_now - p_spare, p_ended_by);
    -- One at a time, before anything is counted: two would each remove the excess.
    v_mine CONSTANT boolean := p_dry OR try_lock('ended ' || p_state);
    v_jobs bigint;
    v_bytes bigint;
    v_excess bigint;
    v_over bigint;
    v_done text;
    v_doomed doomed[] := '{}';
BEGIN
    SELECT x.jobs, x.bytes INTO v_jobs, v_bytes FROM places_v1() AS x WHERE x.state = p_state;
    v_excess := greatest(coalesce(v_jobs - p_count, 0), 0);
    v_over := greatest(coalesce(v_bytes - p_bytes, 0), 0);
    IF NOT v_mine OR EXISTS (SELECT 1 FROM gone_days AS d WHERE d.state = p_state) THEN  -- these jobs are gone, but still counted
        v_excess := 0;
        v_over := 0;
    END IF;
    IF p_state = 5 THEN
        v_done := 'age';
        v_doomed := aged(v_now, p_state, p_age, v_latest, p_limit + 1, '{}');
        IF v_doomed = '{}' AND (v_excess > 0 OR v_over > 0) AND fold_deltas() THEN
            v_done := CASE WHEN v_excess > 0 THEN 'jobs' ELSE 'bytes' END;
            v_doomed := of_heaviest(v_done, CASE WHEN v_excess > 0 THEN v_excess ELSE v_over END, v_latest, p_limit);
        END IF;
    ELSE
        IF v_excess > 0 OR v_over > 0 THEN
            v_doomed := oldest(p_state, v_excess, v_over, v_latest, p_limit + 1);
        END IF;
        IF cardinality(v_doomed) <= p_limit THEN
            v_doomed := v_doomed || aged(
                v_now, p_state, p_age, v_latest, p_limit + 1 - cardinality(v_doomed), ARRAY(SELECT d.id FROM unnest(v_doomed) AS d)
            );
        END IF;
    END IF;
    more := cardinality(v_doomed) > p_limit;
    v_doomed := v_doomed[1:p_limit];
    IF NOT p_dry THEN
        v_doomed := with_keys(v_doomed);
    END IF;
    SELECT count(*), coalesce(sum(d.size), 0) INTO removed, bytes FROM unnest(v_doomed) AS d;
    kept := v_jobs - removed;
    -- What one bound leaves may exceed another.
    more := removed > 0 AND (more OR coalesce(CASE v_done
        WHEN 'age' THEN v_now - p_age < v_latest AND (kept > p_count OR v_bytes - bytes > p_bytes)
        WHEN 'jobs' THEN kept <= p_count AND v_bytes - bytes > p_bytes
    END, false));
    IF removed > 0 AND NOT p_dry THEN
        PERFORM remove_doomed(v_doomed, p_state, v_now);
    END IF;
    RETURN NEXT;
END $$;

-- How many ended jobs sweeps have removed, by the hour since 1970 in which they ended, and what they weighed.
CREATE TABLE removals (
    hour integer NOT NULL,
    state smallint NOT NULL,
    task text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    jobs bigint NOT NULL,
    bytes bigint NOT NULL,
    CONSTRAINT removals_pkey PRIMARY KEY (hour, state, task, tenant)
) WITH (fillfactor = 70);

-- The counts of the first hour after this one that has any; removals_pkey.
CREATE FUNCTION removals_v1(p_after integer)
RETURNS TABLE (hour integer, state smallint, task text, tenant text, jobs bigint, bytes bigint) LANGUAGE sql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT r.hour, r.state, r.task, r.tenant, r.jobs, r.bytes FROM removals AS r
    WHERE r.hour = (SELECT min(f.hour) FROM removals AS f WHERE f.hour > p_after)
$$;

-- Forget the counts of the oldest hours if there are more than this; returns how many.
CREATE FUNCTION forget_removals_v1(p_most bigint, p_limit integer) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_over CONSTANT bigint := greatest((SELECT count(*) FROM removals) - p_most, 0);
    v_gone bigint;
BEGIN
    WITH gone AS (  -- removals_pkey
        DELETE FROM removals AS r USING (
            SELECT o.hour, o.state, o.task, o.tenant FROM removals AS o ORDER BY o.hour, o.state, o.task, o.tenant
            LIMIT least(v_over, p_limit) FOR UPDATE SKIP LOCKED
        ) AS o WHERE (r.hour, r.state, r.task, r.tenant) = (o.hour, o.state, o.task, o.tenant) RETURNING 1
    ) SELECT count(*) INTO v_gone FROM gone;
    RETURN v_gone;
END $$;

-- Remove ended jobs of one state, and count them off.
CREATE FUNCTION remove_doomed(p_doomed doomed[], p_state smallint, p_now bigint) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    INSERT INTO removals AS r (hour, state, task, tenant, jobs, bytes)  -- ended_pkey, jobs_pkey; in the order of removals_pkey
    SELECT e.finished_at / 3600000000, p_state, coalesce(j.task, ''), coalesce(j.tenant, ''), count(*), sum(d.size)
    FROM unnest(p_doomed) AS d JOIN ended AS e ON e.id = ANY (ARRAY[d.id]) LEFT JOIN jobs AS j ON j.id = ANY (ARRAY[d.id])
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (hour, state, task, tenant) DO UPDATE SET jobs = r.jobs + excluded.jobs, bytes = r.bytes + excluded.bytes;
    PERFORM forget_jobs(ARRAY(SELECT d.id FROM unnest(p_doomed) AS d), ARRAY(SELECT d.qid FROM unnest(p_doomed) AS d), p_now);
    PERFORM tell_waiters(ARRAY(SELECT d.id FROM unnest(p_doomed) AS d));
    INSERT INTO deltas (qid, state, jobs, bytes, tenant)
    SELECT d.qid, p_state, -count(*), -sum(d.size), d.tenant FROM unnest(p_doomed) AS d GROUP BY d.qid, d.tenant;
END $$;

-- Jobs past their age. An age of a day or more leaves whole days to ``drop_day_v1``, until all of a day has been past
-- it for another day.
CREATE FUNCTION aged(p_now bigint, p_state smallint, p_age bigint, p_latest bigint, p_limit integer, p_known uuid[]) RETURNS doomed[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_never CONSTANT uuid := day_start('2100-01-01');
    v_days_from CONSTANT uuid := CASE WHEN p_age >= 86400000000 THEN day_start(day_of(p_now - p_age) - 1) ELSE v_never END;
    v_days_to CONSTANT uuid := CASE WHEN p_age >= 86400000000 THEN day_start(day_of(p_now) + 2) ELSE v_never END;
BEGIN
    RETURN ARRAY(  -- ended_age
        SELECT (e.id, e.qid, e.size, e.tenant)::doomed FROM ended AS e
        WHERE e.state = p_state AND e.finished_at <= least(p_now - p_age, p_latest) AND NOT (p_state = 3 AND e.held_until > p_now)
            AND (e.id < v_days_from OR e.id >= v_days_to) AND e.id <> ALL (p_known) AND p_age IS NOT NULL
        ORDER BY e.state, e.finished_at, e.id LIMIT p_limit FOR UPDATE SKIP LOCKED
    );
END $$;

-- The oldest ended jobs of a state, until the excess of jobs and bytes is gone.
CREATE FUNCTION oldest(p_state smallint, p_excess bigint, p_over bigint, p_before bigint, p_limit integer) RETURNS doomed[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    RETURN in_hand(ARRAY(  -- ended_age
        SELECT (e.id, e.qid, e.size, e.tenant)::doomed FROM ended AS e WHERE e.state = p_state AND e.finished_at <= p_before
        ORDER BY e.state, e.finished_at, e.id LIMIT p_limit
    ), p_excess, p_over);
END $$;

-- The first of these, until the excess is gone, except rows that somebody has locked to remove them. Sizes are read
-- once the rows are locked: a result may be swept at the same time.
CREATE FUNCTION in_hand(p_doomed doomed[], p_excess bigint, p_over bigint) RETURNS doomed[] LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    RETURN ARRAY(
        WITH mine AS MATERIALIZED (  -- ended_pkey
            SELECT e.id, e.size FROM unnest(p_doomed) AS n JOIN ended AS e ON e.id = ANY (ARRAY[n.id]) FOR UPDATE OF e SKIP LOCKED
        ), line AS (
            SELECT n.id, n.qid, n.size, n.tenant, n.ord, m.id IS NOT NULL AS mine, coalesce(m.size, n.size) AS weight
            FROM unnest(p_doomed) WITH ORDINALITY AS n (id, qid, size, tenant, ord) LEFT JOIN mine AS m ON m.id = n.id
        ), summed AS (
            SELECT l.*, sum(l.weight) OVER (ORDER BY l.ord) - l.weight AS freed FROM line AS l
        )
        SELECT (s.id, s.qid, s.weight, s.tenant)::doomed FROM summed AS s
        WHERE s.mine AND (s.ord <= p_excess OR s.freed < p_over) ORDER BY s.ord
    );
END $$;

-- Those whose keys nobody has locked, which are locked now. A transaction that takes a key over has locked the old job,
-- so that one is left for another time.
CREATE FUNCTION with_keys(p_doomed doomed[]) RETURNS doomed[] LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    RETURN ARRAY(
        WITH keyed AS MATERIALIZED (  -- jobs_pkey
            SELECT n.id, n.qid, j.key FROM unnest(p_doomed) AS n JOIN jobs AS j ON j.id = ANY (ARRAY[n.id]) WHERE j.key IS NOT NULL
        ), taken AS MATERIALIZED (  -- keys_pkey
            SELECT m.id FROM keyed AS m
            CROSS JOIN LATERAL (SELECT 1 FROM keys AS k WHERE k.qid = m.qid AND k.key = m.key AND k.id = m.id OFFSET 0) AS k
        ), free AS MATERIALIZED (
            SELECT m.id FROM keyed AS m CROSS JOIN LATERAL (
                SELECT 1 FROM keys AS k WHERE k.qid = m.qid AND k.key = m.key AND k.id = m.id FOR UPDATE SKIP LOCKED
            ) AS k
        )
        SELECT n FROM unnest(p_doomed) AS n WHERE n.id NOT IN (SELECT t.id FROM taken AS t EXCEPT SELECT f.id FROM free AS f)
    );
END $$;

-- The dead letters to remove from the tenants with most of them, as there are too many ``jobs`` or ``bytes``; at most
-- one more than the limit. If nobody has more than one, the oldest of all. All deltas have been added up before.
CREATE FUNCTION of_heaviest(p_bound text, p_excess bigint, p_before bigint, p_limit integer) RETURNS doomed[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_doomed doomed[] := '{}';
    v_given bigint;
    g record;
    d doomed;
BEGIN
    IF p_bound = 'jobs' AND NOT EXISTS (SELECT 1 FROM shares AS s WHERE s.jobs > 1) THEN  -- shares_jobs
        RETURN oldest(5::smallint, p_excess, 0, p_before, p_limit + 1);
    END IF;
    FOR g IN SELECT x.* FROM gives(p_bound, p_excess, p_limit) AS x LOOP
        v_given := 0;
        FOR d IN  -- ended_dead
            SELECT e.id, e.qid, e.size, e.tenant FROM ended AS e WHERE e.state = 5 AND e.tenant = g.tenant AND e.finished_at <= p_before
            ORDER BY e.tenant, e.finished_at LIMIT p_limit + 1
        LOOP
            EXIT WHEN v_given >= g.gift OR cardinality(v_doomed) > p_limit;
            v_doomed := v_doomed || d;
            v_given := v_given + CASE p_bound WHEN 'jobs' THEN 1 ELSE d.size END;
        END LOOP;
        EXIT WHEN cardinality(v_doomed) > p_limit;
    END LOOP;
    RETURN in_hand(v_doomed, cardinality(v_doomed), 0);
END $$;

-- How much each of the heaviest tenants gives of the excess, so that the largest share left is as small as it can be.
-- If there may be more tenants than were looked at, all but one keep as much as the last one has.
CREATE FUNCTION gives(p_bound text, p_excess bigint, p_limit integer) RETURNS TABLE (tenant text, gift bigint) LANGUAGE sql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    WITH heaviest AS MATERIALIZED (
        (SELECT s.tenant, s.jobs AS held FROM shares AS s WHERE p_bound = 'jobs' ORDER BY s.jobs DESC LIMIT p_limit + 1)  -- shares_jobs
        UNION ALL
        (SELECT s.tenant, s.bytes FROM shares AS s WHERE p_bound = 'bytes' ORDER BY s.bytes DESC LIMIT p_limit + 1)  -- shares_bytes
    ), line AS MATERIALIZED (
        SELECT h.tenant, h.held, row_number() OVER w AS n, (sum(h.held) OVER w)::bigint AS total, lead(h.held) OVER w AS following
        FROM heaviest AS h WINDOW w AS (ORDER BY h.held DESC, h.tenant ROWS UNBOUNDED PRECEDING)
    ), base AS (
        SELECT b.floor, least(p_excess, CASE p_bound WHEN 'jobs' THEN p_limit + 1 END, b.total - b.n * b.floor) AS excess FROM (
            SELECT CASE WHEN count(*) > p_limit THEN greatest(min(l.held) - 1, 0) ELSE 0 END AS floor, max(l.total) AS total, count(*) AS n
            FROM line AS l
        ) AS b
    ), last AS (
        SELECT l.n, l.total - b.excess AS stays FROM line AS l CROSS JOIN base AS b
        WHERE l.total - l.n * coalesce(l.following, b.floor) >= b.excess ORDER BY l.n LIMIT 1
    )
    SELECT l.tenant, l.held - x.stays / x.n - (l.n <= x.stays % x.n)::integer FROM line AS l JOIN last AS x ON l.n <= x.n ORDER BY l.n
$$;

-- Clear results past their time. The records stay.
CREATE FUNCTION sweep_results_v1(p_at bigint, p_limit integer, p_dry boolean)
RETURNS TABLE (removed bigint, bytes bigint, kept bigint, more boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
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

-- Remove keys that outlive their jobs: those whose time is over, and the ones next in line if there are too many.
-- Locked keys are left for another time.
CREATE FUNCTION sweep_keys_v1(p_at bigint, p_count bigint, p_limit integer, p_dry boolean)
RETURNS TABLE (removed bigint, bytes bigint, kept bigint, more boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := clock(p_at);
    v_keys bigint;
    v_excess bigint;
    v_places tid[];
BEGIN
    SELECT coalesce(sum(c.jobs), 0) INTO v_keys FROM store_counts AS c WHERE c.state = 7;
    -- One at a time: two would each remove the excess.
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

-- The locks that other transactions have on tables.
CREATE VIEW locks_of_others AS
SELECT l.relation, l.mode, l.granted, l.virtualtransaction FROM pg_catalog.pg_locks AS l
WHERE l.locktype = 'relation' AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database());

-- Transactions that may use the number of a queue.
CREATE FUNCTION naming() RETURNS text[] LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT coalesce(array_agg(DISTINCT l.virtualtransaction), '{}') FROM locks_of_others AS l
    WHERE l.relation = 'queues'::regclass AND l.mode = 'RowShareLock'
$$;

-- Forget the names of queues that nothing refers to and nobody has used for a day, a thousand at a time. It takes three
-- calls, by any process: the first marks them, so that every transaction that names one from then on locks its row; the
-- second notes which transactions named queues before that; once these have ended, the third removes those that are
-- still marked and not locked. Returns whether the next call may follow at once.
CREATE FUNCTION forget_queues_v1(p_at bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
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
            SELECT i.qid FROM queues AS i WHERE i.used_at < v_now - 86400000000 AND is_idle(v_now, i)
                AND NOT EXISTS (SELECT 1 FROM deltas AS d WHERE d.qid = i.qid)  -- read once for all of them
            LIMIT 1000 FOR NO KEY UPDATE OF i SKIP LOCKED
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
    -- What was counted before the lock is visible now, and nothing more can come.
    DELETE FROM queues AS q WHERE q.qid = ANY (v_qids) AND q.leaving AND is_idle(v_now, q)
        AND NOT EXISTS (SELECT 1 FROM deltas AS d WHERE d.qid = q.qid);
    DELETE FROM numbers AS n WHERE n.qid = ANY (v_qids) AND NOT EXISTS (SELECT 1 FROM queues AS q WHERE q.qid = n.qid);  -- numbers_qid
    DELETE FROM totals AS t WHERE t.qid = ANY (v_qids) AND NOT EXISTS (SELECT 1 FROM queues AS q WHERE q.qid = t.qid);
    UPDATE queues AS q SET leaving = false WHERE q.leaving;
    RETURN cardinality(v_qids) = 1000;
END $$;

-- Whether nothing refers to a queue, except deltas; totals_pkey, keys_pkey.
CREATE FUNCTION is_idle(p_now bigint, q queues) RETURNS boolean LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT q.paused_until <= p_now AND NOT q.governed
        AND NOT EXISTS (SELECT 1 FROM totals AS t WHERE t.qid = q.qid AND t.jobs <> 0)
        AND NOT EXISTS (SELECT 1 FROM keys AS k WHERE k.qid = q.qid)
$$;

-- Whether the caller gets this duty. Nobody else gets it for two minutes, or until ``end_duty_v1``.
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

-- The duty is due again at once if there is ``p_more`` to do, else in a minute. If somebody was in its way
-- (``p_busy``): later each time, up to about an hour.
CREATE FUNCTION end_duty_v1(p_at bigint, p_name text, p_busy boolean, p_more boolean) RETURNS void LANGUAGE sql VOLATILE
SET search_path FROM CURRENT AS $$
    UPDATE duties AS d SET
        failures = CASE WHEN p_busy THEN least(d.failures + 1, 6) ELSE 0 END,
        next_at = clock(p_at) + CASE WHEN p_busy THEN 60000000::bigint << d.failures WHEN p_more THEN 0 ELSE 60000000 END
    WHERE d.name = p_name
$$;

-- The transactions that have locked the tables of jobs. One that is in two answers lasts: a request for a whole table
-- would wait for it, and all others would wait for that request.
CREATE FUNCTION lockers_v1() RETURNS text[] LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT coalesce(array_agg(DISTINCT l.virtualtransaction), '{}') FROM locks_of_others AS l
    WHERE l.relation IN ('jobs'::regclass, 'ended'::regclass) AND l.granted
$$;

-- Detach the oldest day whose jobs were all made longer than ``p_age`` ago and have, with few exceptions, ended in this
-- state as long ago. The cost depends on how many jobs stay, not on how many go; ``settle_day_v1`` counts those off.
-- Returns whether it was done; NULL: there is no such day. Waits for nobody longer than a moment.
CREATE FUNCTION drop_day_v1(p_at bigint, p_state smallint, p_age bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_before CONSTANT bigint := v_now - p_age;
    v_day date;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- It must see what was committed while it waited for its locks.
        RAISE EXCEPTION 'dropping a day needs the isolation level read committed, not %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM 1 FROM locks AS l WHERE l.name = 'days' FOR UPDATE SKIP LOCKED;  -- locks_pkey; not while a job of a day is replaced
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    FOR v_day IN
        SELECT d FROM days_of('jobs') AS d ORDER BY d
    LOOP
        EXIT WHEN v_day >= day_of(v_before);
        IF goes_whole(v_day, p_state, v_before, (SELECT count(*) FROM stays(v_day, p_state, v_before, v_now))) THEN
            RETURN NOT is_tended(v_day) AND drop_day(v_day, p_state, v_before, v_now);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- Whether a vacuum or the like has locked the tables of this day. To detach it would wait for that, and all others
-- would wait too.
CREATE FUNCTION is_tended(p_day date) RETURNS boolean LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT EXISTS (
        SELECT 1 FROM locks_of_others AS l WHERE l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
            AND l.relation IN (to_regclass('jobs_' || to_char(p_day, 'YYYYMMDD')), to_regclass('ended_' || to_char(p_day, 'YYYYMMDD')))
    )
$$;

-- The live jobs of a day, up to 100,001 of each state.
CREATE FUNCTION lives(p_day date) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_from CONSTANT uuid := day_start(p_day);
    v_to CONSTANT uuid := day_start(p_day + 1);
BEGIN
    RETURN QUERY SELECT y.id FROM ready AS y WHERE y.id >= v_from AND y.id < v_to LIMIT 100001;  -- ready_pkey
    RETURN QUERY SELECT l.id FROM leased AS l WHERE l.id >= v_from AND l.id < v_to LIMIT 100001;  -- leased_pkey
    RETURN QUERY SELECT p.id FROM paused AS p WHERE p.id >= v_from AND p.id < v_to LIMIT 100001;  -- paused_pkey
END $$;

-- The jobs of a day that stay when those of this state and age go, up to 100,001 of each kind: live jobs, jobs that
-- ended in another state or later, and jobs whose result is held. (A result held for less than a day is past its time
-- by then.)
CREATE FUNCTION stays(p_day date, p_state smallint, p_before bigint, p_now bigint) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY SELECT l FROM lives(p_day) AS l;
    RETURN QUERY EXECUTE format(  -- ended_age, one range of each state; ended_held; of that day
        'SELECT late.id FROM unnest(ARRAY[3, 4, 5]::smallint[]) AS s (state) CROSS JOIN LATERAL ('
        ' SELECT e.id FROM %1$I AS e WHERE e.state = s.state AND e.finished_at > CASE WHEN s.state = $1 THEN $2 ELSE -1 END LIMIT 100001'
        ') AS late UNION (SELECT e.id FROM %1$I AS e WHERE e.held_until - 86400000000 > e.finished_at AND e.held_until > $3'
        ' AND e.state = 3 LIMIT 100001)', 'ended_' || to_char(p_day, 'YYYYMMDD')
    ) USING p_state, p_before, p_now;
END $$;

-- Whether a day is detached if this many of its jobs stay: at most 1,000, or at most 100,000 and no more than four times
-- those that go. Otherwise its jobs go one by one.
CREATE FUNCTION goes_whole(p_day date, p_state smallint, p_before bigint, p_stay bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_go bigint;
BEGIN
    IF p_stay <= 1000 OR p_stay > 100000 THEN
        RETURN p_stay <= 1000;
    END IF;
    EXECUTE format(  -- ended_age of that day
        'SELECT count(*) FROM (SELECT 1 FROM %I AS e WHERE e.state = $1 AND e.finished_at <= $2 LIMIT $3) AS few',
        'ended_' || to_char(p_day, 'YYYYMMDD')
    ) INTO v_go USING p_state, p_before, p_stay;
    RETURN v_go > 1000 AND 4 * v_go >= p_stay;
END $$;

-- Detach a day from both tables. Jobs that stay are copied before anybody has to wait, and checked again once nobody
-- can write to that day. All others wait only while the partitions are exchanged, which takes as long for any number of
-- jobs. The copies replace the partitions of the day, or, if they are few, go to the default partition.
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
    EXECUTE format('LOCK TABLE ONLY %I, ONLY %I IN SHARE ROW EXCLUSIVE MODE', 'ended_' || v_name, 'jobs_' || v_name);
    v_stays := ARRAY(SELECT stays(p_day, p_state, p_before, p_now));
    IF cardinality(v_stays) > 100000 THEN
        RAISE lock_not_available;
    END IF;
    PERFORM copy_kept(t, v_name, v_stays) FROM unnest(ARRAY['ended', 'jobs']) AS t;
    LOCK TABLE ONLY ended, ONLY jobs IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT 1 FROM lives(p_day) AS l (id) WHERE NOT EXISTS (SELECT 1 FROM unnest(v_stays) AS s (id) WHERE s.id = l.id)) THEN
        RAISE lock_not_available;  -- it was between two tables before
    END IF;
    FOREACH v_table IN ARRAY ARRAY['ended', 'jobs'] LOOP
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
    RETURN false;  -- the last two: an earlier part of this day is not counted off yet
END $$;

-- Make the table of copies hold exactly the rows with these ids, as they are now.
CREATE FUNCTION copy_kept(p_table text, p_name text, p_ids uuid[]) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = on SET enable_mergejoin = off AS $$
BEGIN
    EXECUTE format(  -- the keys of that day
        'WITH now AS MATERIALIZED (SELECT g.* FROM unnest($1) AS n (id) JOIN %2$I AS g ON g.id = ANY (ARRAY[n.id]))'
        ' DELETE FROM %1$I AS k WHERE NOT EXISTS ('
        ' SELECT 1 FROM now AS g WHERE g.id = k.id AND ROW(g.*) IS NOT DISTINCT FROM ROW(k.*))', 'kept_' || p_table, p_table || '_' || p_name
    ) USING p_ids;
    EXECUTE format(  -- the keys of that day
        'INSERT INTO %1$I SELECT g.* FROM ('
        ' SELECT n.id FROM unnest($1) AS n (id) WHERE NOT EXISTS (SELECT 1 FROM %1$I AS k WHERE k.id = n.id) OFFSET 0'
        ') AS n JOIN %2$I AS g ON g.id = ANY (ARRAY[n.id])', 'kept_' || p_table, p_table || '_' || p_name
    ) USING p_ids;
END $$;

-- Count off up to ``p_limit`` jobs of a detached day, and forget what else is known of them; after the last, drop its
-- tables. Returns how many, and in which state; no row if there is nothing to do.
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
        ' SELECT e.id, e.qid, e.size, e.keyed, e.tenant, e.finished_at FROM %1$I AS e WHERE e.id > $1 ORDER BY e.id LIMIT $2'
        '), goes AS MATERIALIZED ('
        ' SELECT s.* FROM step AS s WHERE NOT EXISTS (SELECT 1 FROM unnest($4) AS k (id) WHERE k.id = s.id)'
        '), counted AS ('
        ' INSERT INTO deltas (qid, state, jobs, bytes, tenant)'
        ' SELECT s.qid, $3, -count(*), -sum(s.size), s.tenant FROM goes AS s GROUP BY s.qid, s.tenant'
        '), noted AS ('
        ' INSERT INTO removals AS r (hour, state, task, tenant, jobs, bytes)'
        ' SELECT s.finished_at / 3600000000, $3, coalesce(j.task, ''''), coalesce(j.tenant, ''''), count(*), sum(s.size)'
        ' FROM goes AS s LEFT JOIN %2$I AS j ON j.id = s.id GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4'
        ' ON CONFLICT (hour, state, task, tenant) DO UPDATE SET jobs = r.jobs + excluded.jobs, bytes = r.bytes + excluded.bytes'
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
