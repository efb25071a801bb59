-- An answer has one row per leased job, a row with a ``notice`` for anything else, and, after a claim, one last row
-- that has only the columns from ``walked`` on. All other columns are NULL.
--
-- ``begun``: a handler may have been called for the job before. ``ord``: the position of the job, where (priority,
-- run_at, id) does not give it. ``walked``: index entries that the claim has met. ``passed_over``: 0, or 1 if the claim
-- passed over jobs on their last chance, 2 if this holder is also chosen to make room for them. ``next_in``: how long
-- until the next look is worth it. ``due``: everything that was due by then is promoted. ``bytes``: what the jobs of a
-- governed queue weigh. ``unsealed``: the answer counts only after a call of ``seal_v1``.
--
-- One column of a notice is set. ``told``: send a hint to a topic, with a job's id if it is about one. ``settled``: the
-- settlement of this number did not reach the state that it asked for, but this one; NULL: fenced off. ``reaped``: a
-- job was taken back, or has expired. ``altered``: a job's state before and after (NULL: gone), and whether it changed.
-- ``planned``: the plan of this number was not carried out; or the tick of this number, among all ticks, has this
-- outcome instead; NULL: its slot has fired.
CREATE TYPE told_row AS (topic text, id uuid);
CREATE TYPE settled_row AS (number integer, state smallint);
CREATE TYPE reaped_row AS (id uuid, queue text, task text, state smallint, lost integer, reason text, key text);
CREATE TYPE altered_row AS (id uuid, before smallint, after smallint, changed boolean, queue text, key text);
CREATE TYPE planned_row AS (plan integer, tick integer, outcome smallint);
CREATE TYPE notice AS (told told_row, settled settled_row, reaped reaped_row, altered altered_row, planned planned_row);
CREATE TYPE answer AS (
    id uuid, queue text, task text, parameters bytea, vm_state bytea, metadata bytea, blob bytea, epoch bigint, tenant text, key text,
    priority smallint, run_at bigint, enqueued_at bigint, attempt integer, lost integer, max_attempts integer, timeout bigint,
    result_ttl bigint, headers bytea, error bytea, group_name text, begun boolean, ord integer, notice notice,
    walked bigint, passed_over integer, next_in bigint, due bigint, bytes bigint, unsealed boolean
);

-- Answers other than jobs. Without settings, these functions are inlined.
CREATE FUNCTION noticed(p_notice notice) RETURNS answer LANGUAGE sql IMMUTABLE AS $$
    SELECT (
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, p_notice, NULL, NULL, NULL, NULL, NULL, NULL
    )::answer
$$;
CREATE FUNCTION last_row(p_walked bigint, p_passed_over integer, p_next_in bigint, p_due bigint, p_bytes bigint, p_unsealed boolean)
RETURNS answer LANGUAGE sql IMMUTABLE AS $$
    SELECT (
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, p_walked, p_passed_over, p_next_in, p_due, p_bytes, p_unsealed
    )::answer
$$;
CREATE FUNCTION told(p_topic text, p_id uuid) RETURNS answer LANGUAGE sql IMMUTABLE AS $$
    SELECT noticed(((p_topic, p_id)::told_row, NULL, NULL, NULL, NULL)::notice)
$$;
CREATE FUNCTION settled(p_number integer, p_state integer) RETURNS answer LANGUAGE sql IMMUTABLE AS $$
    SELECT noticed((NULL, (p_number, p_state)::settled_row, NULL, NULL, NULL)::notice)
$$;
CREATE FUNCTION reaped(p_reaped reaped_row) RETURNS answer LANGUAGE sql IMMUTABLE AS $$
    SELECT noticed((NULL, NULL, p_reaped, NULL, NULL)::notice)
$$;
CREATE FUNCTION altered(p_altered altered_row) RETURNS answer LANGUAGE sql IMMUTABLE AS $$
    SELECT noticed((NULL, NULL, NULL, p_altered, NULL)::notice)
$$;
CREATE FUNCTION unplanned(p_plan integer, p_tick integer, p_outcome integer) RETURNS answer LANGUAGE sql IMMUTABLE AS $$
    SELECT noticed((NULL, NULL, NULL, NULL, (p_plan, p_tick, p_outcome)::planned_row)::notice)
$$;

-- The day (UTC) on which a job with this id was made, as a number; with ids of other kinds, the last day before or the
-- first after all days.
CREATE FUNCTION day_of_id(p_id uuid) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(greatest(
        ('x' || left(replace(p_id::text, '-', ''), 12))::bit(48)::bigint / 86400000, date '2024-12-31' - date '1970-01-01'
    ), date '2100-01-01' - date '1970-01-01')::integer
$$;

-- The rows of ``jobs``, for claims. Planned for these ids each time, so that it locks only their days: a cached plan
-- locks all days, and then claims and the duty that makes or drops days would wait for each other. The planner walks
-- through ids that it is given; of many of a day it gets the ends alone, which name the day. The claim joins by hashing
-- its own rows, which are narrow and, as ROWS tells the planner, few.
CREATE FUNCTION contents(p_ids uuid[]) RETURNS SETOF jobs LANGUAGE plpgsql VOLATILE ROWS 1000000
SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    c_few CONSTANT integer := 50;
    v_first uuid;
    v_last uuid;
    r record;
BEGIN
    IF cardinality(p_ids) < c_few THEN
        RETURN QUERY SELECT j.* FROM jobs AS j WHERE j.id = ANY (p_ids);  -- jobs_pkey
        RETURN;
    END IF;
    p_ids := ARRAY(SELECT n FROM unnest(p_ids) AS n ORDER BY n);
    v_first := p_ids[1];
    v_last := p_ids[cardinality(p_ids)];
    IF day_of_id(v_first) = day_of_id(v_last) THEN
        RETURN QUERY  -- jobs_pkey
        SELECT j.* FROM jobs AS j WHERE j.id BETWEEN v_first AND v_last AND j.id = ANY (ARRAY(SELECT unnest(p_ids)));
        RETURN;
    END IF;
    FOR r IN  -- days of many, and the others together
        SELECT array_agg(n.id) AS ids FROM (
            SELECT d.id, d.day, row_number() OVER (ORDER BY d.id) AS place, count(*) OVER (PARTITION BY d.day) >= c_few AS many
            FROM (SELECT m.id, day_of_id(m.id) AS day FROM unnest(p_ids) AS m (id)) AS d
        ) AS n GROUP BY n.many, CASE WHEN n.many THEN n.day ELSE n.place / (c_few - 1) END
    LOOP
        RETURN QUERY SELECT j.* FROM contents(r.ids) AS j;
    END LOOP;
END $$;

-- The tenants of these jobs, in order. Planned each time, as above.
CREATE FUNCTION tenants_of(p_ids uuid[]) RETURNS text[] LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN ARRAY(
        SELECT coalesce(j.tenant, '') FROM unnest(p_ids) WITH ORDINALITY AS n (id, ord)
        LEFT JOIN (SELECT j.id, j.tenant FROM jobs AS j WHERE j.id = ANY (p_ids)) AS j ON j.id = n.id  -- jobs_pkey
        ORDER BY n.ord
    );
END $$;

-- Jobs that were taken out of their table become CANCELLED or FAILED.
CREATE FUNCTION end_jobs(p_now bigint, p_state smallint, p_reason text, p_jobs place[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_tenants text[];
BEGIN
    IF p_state = 5 THEN
        v_tenants := tenants_of(ARRAY(SELECT n.id FROM unnest(p_jobs) AS n));
    END IF;
    INSERT INTO ended (
        finished_at, held_until, run_at, id, qid, epoch, attempt, lost, size, state, priority, keyed, reason, tenant, error
    )
    SELECT
        p_now, 0, n.run_at, n.id, n.qid, n.epoch, n.attempt, n.lost, n.size, p_state, n.priority, n.keyed, p_reason,
        v_tenants[n.ordinality], n.error
    FROM unnest(p_jobs) WITH ORDINALITY AS n;
    INSERT INTO deltas (qid, state, jobs, bytes, tenant)
    SELECT n.qid, p_state, count(*), sum(n.size), v_tenants[n.ordinality] FROM unnest(p_jobs) WITH ORDINALITY AS n GROUP BY 1, 5;
    IF EXISTS (SELECT 1 FROM unnest(p_jobs) AS n WHERE n.keyed) THEN
        PERFORM lock_keys(array_agg(n.id), array_agg(n.qid)) FROM unnest(p_jobs) AS n;
        UPDATE keys AS k SET held_until = 0, failed = (p_state = 5) FROM (
            SELECT n.id, n.qid, j.key FROM unnest(p_jobs) AS n JOIN jobs AS j ON j.id = ANY (ARRAY[n.id]) WHERE n.keyed OFFSET 0
        ) AS m WHERE k.qid = ANY (ARRAY[m.qid]) AND k.key = ANY (ARRAY[m.key]) AND k.id = m.id;
    END IF;
END $$;

-- The hints for the inboxes that wait for these jobs, each sent once.
CREATE FUNCTION tell_waiters(p_ids uuid[]) RETURNS SETOF answer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off AS $$
BEGIN
    RETURN QUERY
    WITH gone AS (  -- waiters_pkey
        DELETE FROM waiters AS w USING unnest(p_ids) AS n (id) WHERE w.id = ANY (ARRAY[n.id]) RETURNING w.id, w.inbox
    )
    SELECT a.* FROM gone AS g CROSS JOIN LATERAL told('inbox:' || g.inbox, g.id) AS a;
END $$;

-- Cancel the expired jobs at these places of ``ready``, except those that somebody has locked. Their groups are left to
-- be looked at.
CREATE FUNCTION expire(p_now bigint, p_places tid[]) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    v_ids uuid[];
    v_qids integer[];
    v_lanes bigint[];
BEGIN
    WITH head AS MATERIALIZED (
        SELECT y.ctid AS place FROM ready AS y WHERE y.ctid = ANY (p_places) AND y.dies_at <= p_now FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM ready AS y USING head AS h WHERE y.ctid = h.place RETURNING y.*, place_of(y) AS job
    ), counted AS (
        INSERT INTO deltas (qid, state, jobs) SELECT g.qid, 0, -count(*) FROM gone AS g GROUP BY g.qid
    ), over AS (
        SELECT end_jobs(p_now, 4::smallint, 'expired', array_agg(g.job)), array_agg(g.id) AS ids, array_agg(g.qid) AS qids,
            array_agg(g.lane) AS lanes
        FROM gone AS g HAVING count(*) > 0
    ), looks AS (
        INSERT INTO looks (qid, gid) SELECT DISTINCT g.qid, g.gid FROM gone AS g WHERE g.gid IS NOT NULL
    )
    SELECT o.ids, o.qids, o.lanes INTO v_ids, v_qids, v_lanes FROM over AS o;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    PERFORM tell_dropped(p_now, v_qids, v_ids, v_lanes);
    RETURN QUERY
    SELECT a.* FROM unnest(v_ids) AS n (id) JOIN ended AS e ON e.id = ANY (ARRAY[n.id]) JOIN jobs AS j ON j.id = ANY (ARRAY[n.id])
    JOIN queues AS q ON q.qid = e.qid
    CROSS JOIN LATERAL reaped((e.id, q.name, j.task, 4, e.lost, 'expired', CASE WHEN e.keyed THEN j.key END)::reaped_row) AS a;
    RETURN QUERY SELECT * FROM tell_waiters(v_ids);
END $$;

-- A position in claim order.
CREATE TYPE spot AS (priority smallint, run_at bigint, id uuid);
CREATE FUNCTION first_spot() RETURNS spot LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT (-32768, -9223372036854775808, '00000000-0000-0000-0000-000000000000')::spot
$$;
CREATE FUNCTION last_spot() RETURNS spot LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT (32767, 9223372036854775807, 'ffffffff-ffff-ffff-ffff-ffffffffffff')::spot
$$;

-- What a claim knows before it starts. ``qids`` and ``names``: the queues that are not paused. ``pause``: when the
-- first pause ends. Whether one of the queues is governed, has groups to be looked at (``looks``), has jobs to promote
-- (``ripe``), or has jobs in line (``waiting``; with marks it is assumed). Whether any queue has expired jobs
-- (``dying``) or jobs on their last chance (``suspects``).
CREATE TYPE claim_scope AS (
    qids integer[], names text[], pause bigint, governed boolean, looks boolean, ripe boolean, waiting boolean, dying boolean,
    suspects boolean
);

-- Of these queues, those that may have something for a claim: jobs, groups to look at, rules or a pause. Used for long
-- lists, so that empty queues cost nothing: walks the queues in use, one probe each, unless they are more than the
-- list.
CREATE FUNCTION in_use(p_queues text[]) RETURNS text[] LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = on AS $$
#variable_conflict use_column
DECLARE
    v_most bigint := cardinality(p_queues);
    v_qids integer[];
BEGIN
    WITH RECURSIVE line (n) AS (  -- ready_line
        SELECT min(y.qid) FROM ready AS y WHERE y.lane IS NULL
        UNION ALL
        SELECT (SELECT min(y.qid) FROM ready AS y WHERE y.lane IS NULL AND y.qid > l.n) FROM line AS l WHERE l.n IS NOT NULL
    ), later (n) AS (  -- ready_later
        SELECT min(y.qid) FROM ready AS y WHERE y.lane = 0
        UNION ALL
        SELECT (SELECT min(y.qid) FROM ready AS y WHERE y.lane = 0 AND y.qid > l.n) FROM later AS l WHERE l.n IS NOT NULL
    ), look (n) AS (  -- looks_qid
        SELECT min(k.qid) FROM looks AS k
        UNION ALL
        SELECT (SELECT min(k.qid) FROM looks AS k WHERE k.qid > l.n) FROM look AS l WHERE l.n IS NOT NULL
    )
    SELECT array_agg(x.n) INTO v_qids FROM (
        SELECT l.n FROM line AS l WHERE l.n IS NOT NULL
        UNION ALL SELECT l.n FROM later AS l WHERE l.n IS NOT NULL
        UNION ALL SELECT l.n FROM look AS l WHERE l.n IS NOT NULL
        UNION ALL SELECT q.qid FROM queues AS q WHERE q.governed OR q.paused_until > 0  -- queues_special
        LIMIT v_most
    ) AS x;
    IF cardinality(v_qids) = v_most THEN
        RETURN p_queues;
    END IF;
    RETURN ARRAY(
        SELECT n.name FROM unnest(p_queues) WITH ORDINALITY AS n (name, ord) JOIN (  -- queues_pkey
            SELECT q.name FROM (SELECT DISTINCT unnest(v_qids) AS qid) AS u JOIN queues AS q ON q.qid = ANY (ARRAY[u.qid])
        ) AS q ON q.name = n.name ORDER BY n.ord
    );
END $$;

-- The steps below are part of ``claim_v1``, and rely on its settings.
CREATE FUNCTION look_around(
    p_now bigint, p_queues text[], p_governed boolean, p_lost_below integer, p_marked boolean, p_from bigint
) RETURNS claim_scope LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_scope claim_scope;
BEGIN
    -- queues_name_key; windowed_pkey, looks_qid, ready_later and ready_line, one probe per queue; ready_dying; ready_worst.
    SELECT
        array_agg(q.qid ORDER BY q.qid) FILTER (WHERE q.paused_until <= p_now),
        array_agg(q.name ORDER BY q.qid) FILTER (WHERE q.paused_until <= p_now),
        min(q.paused_until) FILTER (WHERE q.paused_until > p_now AND q.paused_until < 9007199254740991),
        bool_or(q.governed) FILTER (WHERE q.paused_until <= p_now),
        bool_or(EXISTS (SELECT 1 FROM looks AS k WHERE k.qid = q.qid)) FILTER (WHERE q.paused_until <= p_now),
        bool_or(EXISTS (
            SELECT 1 FROM ready AS y WHERE y.qid = q.qid AND y.lane = 0 AND y.run_at <= p_now AND y.run_at > p_from
        )) FILTER (WHERE q.paused_until <= p_now),
        bool_or(p_marked OR EXISTS (SELECT 1 FROM ready AS y WHERE y.qid = q.qid AND y.lane IS NULL)) FILTER (WHERE q.paused_until <= p_now),
        EXISTS (SELECT 1 FROM ready AS y WHERE y.dies_at IS NOT NULL AND y.dies_at <= p_now),
        p_lost_below IS NOT NULL AND EXISTS (SELECT 1 FROM ready AS y WHERE y.lost > 0 AND y.lost >= p_lost_below)
    INTO v_scope FROM queues AS q WHERE q.name = ANY (p_queues) AND (p_governed OR NOT q.governed)
        AND NOT EXISTS (SELECT 1 FROM windowed AS w WHERE w.qid = q.qid);
    RETURN v_scope;
END $$;

-- How far claims look into each of so many queues at first, to find so many jobs.
CREATE FUNCTION first_look(p_queues integer, p_jobs integer) RETURNS integer[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_fill(least(p_jobs, greatest(4, least(16, 4000 / p_queues), 4 * p_jobs / p_queues)), ARRAY[p_queues])
$$;

-- And how far next, by the queues of the jobs that were found: farther where there were more.
CREATE FUNCTION next_look(p_qids integer[], p_found integer[], p_jobs integer) RETURNS integer[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY(
        SELECT least(p_jobs, 4 + 4 * coalesce(f.jobs, 0))::integer
        FROM unnest(p_qids) WITH ORDINALITY AS q (qid, ord)
        LEFT JOIN (SELECT u.qid, count(*) AS jobs FROM unnest(p_found) AS u (qid) GROUP BY u.qid) AS f ON f.qid = q.qid
        ORDER BY q.ord
    )
$$;

-- Promote a bounded number of due jobs of these queues, in the order of run_at. Only these are locked; jobs that others
-- have locked are passed over. Looks into each queue only as far as the first jobs of all can be. Returns whether there
-- may be more.
CREATE FUNCTION promote(p_now bigint, p_qids integer[], p_from bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c_most CONSTANT integer := 1000;
    c_seen CONSTANT integer := 20000;
    v_left integer := c_most;
    v_each integer[] := first_look(cardinality(p_qids), c_most);
    v_found integer[];
    v_run_at bigint := p_from;
    v_id uuid := (last_spot()).id;
    v_read integer := 0;
    v_near integer;
    v_seen integer;
    v_held integer;
    v_cut boolean;
BEGIN
    LOOP
        WITH near AS MATERIALIZED (  -- ready_later
            SELECT x.*, q.qid, row_number() OVER (PARTITION BY q.qid ORDER BY x.run_at, x.id) = q.most AS cut
            FROM unnest(p_qids, v_each) AS q (qid, most) CROSS JOIN LATERAL (
                SELECT y.ctid AS place, y.run_at, y.id FROM ready AS y
                WHERE y.qid = q.qid AND y.lane = 0 AND y.run_at <= p_now AND (y.run_at, y.id) > (v_run_at, v_id)
                ORDER BY y.qid, y.run_at, y.id LIMIT q.most
            ) AS x
        ), horizon AS MATERIALIZED (  -- beyond it, other queues may have earlier jobs
            SELECT n.run_at, n.id FROM near AS n WHERE n.cut ORDER BY n.run_at, n.id LIMIT 1
        ), chosen AS MATERIALIZED (
            SELECT n.* FROM near AS n WHERE NOT EXISTS (SELECT 1 FROM horizon AS h WHERE (n.run_at, n.id) > (h.run_at, h.id))
            ORDER BY n.run_at, n.id LIMIT v_left
        ), held AS MATERIALIZED (  -- by place in the heap
            SELECT y.ctid AS place FROM chosen AS c JOIN ready AS y ON y.ctid = c.place
            WHERE y.id = c.id AND y.qid = ANY (p_qids) AND y.lane = 0 FOR UPDATE OF y SKIP LOCKED
        ), promoted AS (
            UPDATE ready AS y SET lane = NULL FROM held AS h WHERE y.ctid = h.place
        )
        SELECT (SELECT count(*) FROM near), (SELECT count(*) FROM chosen), (SELECT count(*) FROM held),
            EXISTS (SELECT 1 FROM horizon), ARRAY(SELECT c.qid FROM chosen AS c WHERE EXISTS (SELECT 1 FROM horizon)), l.run_at, l.id
        INTO v_near, v_seen, v_held, v_cut, v_found, v_run_at, v_id
        FROM (VALUES (1)) AS one LEFT JOIN (SELECT c.* FROM chosen AS c ORDER BY c.run_at DESC, c.id DESC LIMIT 1) AS l ON true;
        IF v_seen < v_left AND NOT v_cut THEN
            RETURN false;
        END IF;
        v_left := v_left - v_held;
        v_read := v_read + v_near;
        EXIT WHEN v_left = 0 OR v_read >= c_seen AND v_left < c_most;
        v_each := CASE WHEN v_cut THEN next_look(p_qids, v_found, v_left) ELSE v_each END;
    END LOOP;
    RETURN true;
END $$;

-- The places of the first jobs of several queues. Only these are locked; jobs that others have locked are passed over.
-- Looks into each queue only as far as the first jobs of all can be.
CREATE FUNCTION pick(p_now bigint, p_qids integer[], p_marks spot[], p_most integer, p_bound integer) RETURNS tid[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_places tid[] := '{}';
    v_left integer := p_most;
    v_each integer[] := first_look(cardinality(p_qids), p_most);
    v_found integer[];
    v_first spot := first_spot();
    v_last spot := v_first;
    v_seen integer;
    v_cut boolean;
    v_some tid[];
BEGIN
    LOOP
        WITH near AS MATERIALIZED (  -- ready_line, in claim order
            SELECT x.*, q.qid, row_number() OVER (PARTITION BY q.qid ORDER BY x.priority, x.run_at, x.id) = q.most AS cut
            FROM unnest(p_qids, v_each, p_marks) AS q (qid, most, priority, run_at, id) CROSS JOIN LATERAL (
                SELECT y.ctid AS place, y.priority, y.run_at, y.id FROM ready AS y
                WHERE y.qid = q.qid AND y.lane IS NULL AND (y.priority, y.run_at, y.id) > (v_last.priority, v_last.run_at, v_last.id)
                    AND (y.priority, y.run_at, y.id) > (
                        coalesce(q.priority, v_first.priority), coalesce(q.run_at, v_first.run_at), coalesce(q.id, v_first.id)
                    )
                    AND y.run_at + 0 <= p_now AND (y.dies_at IS NULL OR y.dies_at > p_now) AND y.lost < p_bound
                ORDER BY y.qid, y.priority, y.run_at, y.id LIMIT q.most
            ) AS x
        ), horizon AS MATERIALIZED (  -- beyond it, other queues may have earlier jobs
            SELECT n.priority, n.run_at, n.id FROM near AS n WHERE n.cut ORDER BY n.priority, n.run_at, n.id LIMIT 1
        ), chosen AS MATERIALIZED (
            SELECT n.* FROM near AS n
            WHERE NOT EXISTS (SELECT 1 FROM horizon AS h WHERE (n.priority, n.run_at, n.id) > (h.priority, h.run_at, h.id))
            ORDER BY n.priority, n.run_at, n.id LIMIT v_left
        ), held AS MATERIALIZED (
            SELECT y.ctid AS place FROM chosen AS c JOIN ready AS y ON y.ctid = c.place
            WHERE y.id = c.id AND y.qid = ANY (p_qids) AND y.lane IS NULL FOR UPDATE OF y SKIP LOCKED
        )
        SELECT ARRAY(SELECT h.place FROM held AS h), (SELECT count(*) FROM chosen), EXISTS (SELECT 1 FROM horizon),
            ARRAY(SELECT c.qid FROM chosen AS c WHERE EXISTS (SELECT 1 FROM horizon)), l.priority, l.run_at, l.id
        INTO v_some, v_seen, v_cut, v_found, v_last.priority, v_last.run_at, v_last.id
        FROM (VALUES (1)) AS one LEFT JOIN (
            SELECT c.* FROM chosen AS c ORDER BY c.priority DESC, c.run_at DESC, c.id DESC LIMIT 1
        ) AS l ON true;
        v_places := v_places || v_some;
        EXIT WHEN cardinality(v_some) = v_left OR v_seen < v_left AND NOT v_cut;
        v_left := v_left - cardinality(v_some);
        v_each := CASE WHEN v_cut THEN next_look(p_qids, v_found, v_left) ELSE v_each END;
    END LOOP;
    RETURN v_places;
END $$;

-- Bytes of the cells of these jobs that are not wanted. Nothing is read of a cell but its length.
CREATE FUNCTION spared(p_ids uuid[], p_want smallint) RETURNS TABLE (id uuid, bytes bigint) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    IF p_want = 15 THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT x.id, coalesce(sum(octet_length(x.cell)), 0) FROM (
        SELECT j.id, p.bit, CASE
            WHEN c.mask & p.bit <> 0 THEN CASE p.bit WHEN 1 THEN c.parameters WHEN 2 THEN c.vm_state WHEN 4 THEN c.metadata ELSE c.blob END
            ELSE CASE p.bit WHEN 1 THEN j.parameters WHEN 2 THEN j.vm_state WHEN 4 THEN j.metadata ELSE j.blob END
        END AS cell
        FROM contents(p_ids) AS j LEFT JOIN patches AS c ON c.id = ANY (ARRAY[j.id])  -- patches_pkey
        CROSS JOIN (VALUES (1), (2), (4), (8)) AS p (bit) WHERE p_want & p.bit = 0
    ) AS x GROUP BY x.id;
END $$;

-- The weight of the wanted cells of the jobs at these places.
CREATE FUNCTION weighed(p_places tid[], p_want smallint) RETURNS TABLE (place tid, ord bigint, bytes bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT n.place, n.ord, y.size - coalesce(s.bytes, 0)
    FROM unnest(p_places) WITH ORDINALITY AS n (place, ord) JOIN ready AS y ON y.ctid = n.place
    LEFT JOIN spared(ARRAY(SELECT z.id FROM ready AS z WHERE z.ctid = ANY (p_places)), p_want) AS s ON s.id = y.id;
END $$;

-- The first of these places, until what is wanted of their jobs weighs enough.
CREATE FUNCTION fit(p_places tid[], p_max_bytes bigint, p_want smallint) RETURNS SETOF tid
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT w.place FROM (
        SELECT n.place, sum(n.bytes) OVER (ORDER BY n.ord) - n.bytes AS before FROM weighed(p_places, p_want) AS n
    ) AS w WHERE w.before < p_max_bytes;
END $$;

-- Whether what is wanted of the jobs that this transaction has leased until then weighs enough.
CREATE FUNCTION is_heavy(p_until bigint, p_qids integer[], p_max_bytes bigint, p_want smallint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_bytes bigint := (  -- leased_until
        SELECT sum(l.size) FROM leased AS l
        WHERE l.lease_until = p_until AND l.xmin = pg_current_xact_id()::xid AND l.qid = ANY (p_qids)
    );
BEGIN
    IF v_bytes >= p_max_bytes AND p_want <> 15 THEN
        v_bytes := v_bytes - (
            SELECT sum(s.bytes) FROM spared(ARRAY(
                SELECT l.id FROM leased AS l
                WHERE l.lease_until = p_until AND l.xmin = pg_current_xact_id()::xid AND l.qid = ANY (p_qids)
            ), p_want) AS s
        );
    END IF;
    RETURN coalesce(v_bytes >= p_max_bytes, false);
END $$;

-- When a claim that could take more jobs should look again. Now: if its jobs weigh enough, if an expired job made way
-- for another, or if a job that it could take is left because somebody has locked it. Otherwise when the next job is
-- due. Jobs that are no longer due, because the clock was set back, wait apart again.
CREATE FUNCTION next_due(
    p_now bigint, p_qids integer[], p_marks spot[], p_from bigint, p_bound integer, p_got integer, p_until bigint, p_max_bytes bigint,
    p_want smallint, p_dying boolean
) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c_most CONSTANT integer := 1000;
    c_moment CONSTANT bigint := 100000;  -- another transaction may have read the clock a moment later
    v_first spot := first_spot();
    v_next bigint;
    v_left bigint;
    v_early bigint;
BEGIN
    IF p_got > 0 OR p_dying THEN
        IF is_heavy(p_until, p_qids, p_max_bytes, p_want) OR p_dying AND EXISTS (SELECT 1 FROM looks AS k WHERE k.qid = ANY (p_qids)) THEN
            RETURN p_now;
        END IF;
    END IF;
    SELECT min(x.run_at), min(b.run_at) INTO v_next, v_left
    FROM unnest(p_qids, p_marks) AS q (qid, priority, run_at, id) LEFT JOIN LATERAL (  -- ready_later
        SELECT y.run_at FROM ready AS y WHERE y.qid = q.qid AND y.lane = 0 AND y.run_at > p_from
        ORDER BY y.qid, y.run_at LIMIT 1
    ) AS x ON true LEFT JOIN LATERAL (  -- ready_line
        SELECT y.run_at FROM ready AS y
        WHERE y.qid = q.qid AND y.lane IS NULL AND (y.priority, y.run_at, y.id) > (
                coalesce(q.priority, v_first.priority), coalesce(q.run_at, v_first.run_at), coalesce(q.id, v_first.id)
            )
            AND (y.run_at > p_now OR (y.dies_at IS NULL OR y.dies_at > p_now) AND y.lost < p_bound)
        ORDER BY y.qid, y.priority, y.run_at, y.id LIMIT 1
    ) AS b ON true;
    IF v_left > p_now THEN
        WITH early AS MATERIALIZED (
            SELECT y.ctid AS place, y.run_at FROM ready AS y WHERE y.qid = ANY (p_qids) AND y.lane IS NULL AND y.run_at > p_now
            LIMIT c_most FOR UPDATE SKIP LOCKED
        ), apart AS (
            UPDATE ready AS y SET lane = 0 FROM early AS e WHERE y.ctid = e.place AND y.run_at > p_now + c_moment
        )
        SELECT CASE WHEN count(*) < c_most THEN min(e.run_at) ELSE p_now END INTO v_early FROM early AS e;
        v_next := least(v_next, v_early);
    ELSIF v_left IS NOT NULL THEN
        RETURN p_now;
    END IF;
    RETURN CASE WHEN v_next < p_now THEN p_now ELSE v_next END;
END $$;

-- Up to where a claim has looked: the last job that it took, or the end if nothing cut it short.
CREATE FUNCTION looked_upto(p_until bigint, p_qids integer[], p_left integer, p_max_bytes bigint, p_want smallint) RETURNS spot
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    IF p_left > 0 AND NOT is_heavy(p_until, p_qids, p_max_bytes, p_want) THEN
        RETURN last_spot();
    END IF;
    RETURN coalesce((  -- leased_until
        SELECT (l.priority, l.run_at, l.id)::spot FROM leased AS l
        WHERE l.lease_until = p_until AND l.xmin = pg_current_xact_id()::xid AND l.qid = ANY (p_qids)
        ORDER BY l.priority DESC, l.run_at DESC, l.id DESC LIMIT 1
    ), last_spot());
END $$;

-- Whether a claim passed over a job on its last chance: ``passed_over`` of its answer.
CREATE FUNCTION passed_upto(
    p_now bigint, p_qids integer[], p_left integer, p_bound integer, p_max_bytes bigint, p_want smallint, p_holder text, p_lease_for bigint
) RETURNS integer LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_upto CONSTANT spot := looked_upto(p_now + p_lease_for, p_qids, p_left, p_max_bytes, p_want);
BEGIN
    PERFORM 1 FROM ready AS y  -- ready_lost
    WHERE coalesce(y.lane, y.qid) = ANY (p_qids) AND (y.priority, y.run_at, y.id) <= (v_upto.priority, v_upto.run_at, v_upto.id)
        AND y.run_at <= p_now AND y.lost > 0 AND y.lost + 0 >= p_bound AND (y.dies_at IS NULL OR y.dies_at > p_now) LIMIT 1;
    IF FOUND THEN
        RETURN choose_plain(p_now, p_qids, p_bound, p_holder, p_lease_for);
    END IF;
    RETURN 0;
END $$;

-- The places of expired jobs that a claim has passed over.
CREATE FUNCTION doomed_upto(p_now bigint, p_qids integer[], p_until bigint, p_left integer, p_max_bytes bigint, p_want smallint) RETURNS tid[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_upto CONSTANT spot := looked_upto(p_until, p_qids, p_left, p_max_bytes, p_want);
BEGIN
    RETURN ARRAY(  -- ready_doomed
        SELECT d.place FROM unnest(p_qids) AS q (qid) CROSS JOIN LATERAL (
            SELECT y.ctid AS place, y.priority, y.run_at, y.id FROM ready AS y
            WHERE coalesce(y.lane, y.qid) = q.qid AND y.dies_at IS NOT NULL AND y.dies_at + 0 <= p_now ORDER BY y.dies_at + 0 LIMIT 1000
        ) AS d WHERE (d.priority, d.run_at, d.id) <= (v_upto.priority, v_upto.run_at, v_upto.id) LIMIT 1000
    );
END $$;

-- The places of expired jobs in front of a queue, if they are so many that a claim had better not walk over them. Some
-- that nobody has locked.
CREATE FUNCTION doomed_in_front(p_now bigint, p_qid integer, p_mark spot, p_most integer) RETURNS tid[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c_many CONSTANT integer := 250;
    c_seen CONSTANT integer := 100000;
    v_window integer := p_most + c_many;
    v_front tid[];
    v_places tid[] := '{}';
BEGIN
    WHILE v_places = '{}' AND v_window < c_seen LOOP
        v_front := ARRAY(  -- ready_line
            SELECT x.place FROM (
                SELECT y.ctid AS place, y.dies_at FROM ready AS y
                WHERE y.qid = p_qid AND y.lane IS NULL AND (y.priority, y.run_at, y.id) > (p_mark.priority, p_mark.run_at, p_mark.id)
                ORDER BY y.qid, y.priority, y.run_at, y.id LIMIT v_window
            ) AS x WHERE x.dies_at <= p_now
        );
        EXIT WHEN cardinality(v_front) < v_window - p_most;
        v_places := ARRAY(
            SELECT y.ctid FROM ready AS y WHERE y.ctid = ANY (v_front) AND y.dies_at <= p_now LIMIT c_many FOR UPDATE SKIP LOCKED
        );
        v_window := 4 * v_window;
    END LOOP;
    RETURN v_places;
END $$;

-- Cancel a bounded number of expired jobs in front of these queues, if they are many. Then the claim is over, and
-- another one is to follow at once: its last row ends the answer, which is empty otherwise.
CREATE FUNCTION clear_fronts(p_now bigint, p_qids integer[], p_marks spot[], p_most integer) RETURNS SETOF answer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c_many CONSTANT integer := 250;
    v_first CONSTANT spot := first_spot();
    v_places tid[] := '{}';
    r record;
BEGIN
    FOR r IN  -- ready_doomed
        SELECT q.qid, (coalesce(q.priority, v_first.priority), coalesce(q.run_at, v_first.run_at), coalesce(q.id, v_first.id))::spot AS mark
        FROM unnest(p_qids, p_marks) AS q (qid, priority, run_at, id) WHERE c_many = (
            SELECT count(*) FROM (
                SELECT 1 FROM ready AS y
                WHERE coalesce(y.lane, y.qid) = q.qid AND y.dies_at IS NOT NULL AND y.dies_at + 0 <= p_now LIMIT c_many
            ) AS few
        )
    LOOP
        v_places := v_places || doomed_in_front(p_now, r.qid, r.mark, p_most);
        EXIT WHEN v_places <> '{}';
    END LOOP;
    RETURN QUERY SELECT * FROM expire(p_now, v_places);
    IF FOUND THEN
        RETURN NEXT last_row(0, 0, 0, NULL, NULL, NULL);
    END IF;
END $$;

-- Call the groups of these queues that wait to be looked at. False: somebody has locked some of them.
CREATE FUNCTION call_all(p_qids integer[]) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM call_looks(p_qids);
    RETURN NOT EXISTS (SELECT 1 FROM looks AS k WHERE k.qid = ANY (p_qids));  -- looks_qid
END $$;

-- Jobs of a governed queue have stopped running, and the claim is from other queues.
CREATE FUNCTION stopped_elsewhere(p_now bigint, p_qid integer, p_tids bigint[]) RETURNS SETOF answer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY SELECT w.* FROM stopped(p_now, array_fill(p_qid, ARRAY[cardinality(p_tids)]), '{}', p_tids, false) AS q
    CROSS JOIN LATERAL woken(q) AS w;
END $$;

-- The marks of these queues, in order. A queue without one starts at the beginning.
CREATE FUNCTION marks_of(p_names text[], p_queues text[], p_priorities smallint[], p_run_ats bigint[], p_ids uuid[]) RETURNS spot[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN ARRAY(
        SELECT CASE WHEN m.name IS NULL THEN first_spot() ELSE (m.priority, m.run_at, m.id)::spot END
        FROM unnest(p_names) WITH ORDINALITY AS q (name, ord)
        LEFT JOIN unnest(p_queues, p_priorities, p_run_ats, p_ids) AS m (name, priority, run_at, id) ON m.name = q.name ORDER BY q.ord
    );
END $$;

-- How many entries of the claim indexes this transaction has met.
CREATE FUNCTION walked() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT pg_stat_get_xact_tuples_returned('ready_line'::regclass) + pg_stat_get_xact_tuples_returned('ready_later'::regclass)
$$;

-- Lease the first jobs by (priority, run_at, id). The client sorts them: a plan may return them in another order.
--
-- ``p_mark_*`` say, per queue, up to where this client has claimed lately; ``p_mark_due``, up to when all due jobs are
-- promoted. The claim then looks only beyond. A client sends them when many entries were walked in vain: while somebody
-- holds an old snapshot, claimed jobs stay in the index. ``p_governed``: false passes over governed queues (the caller
-- serves them itself). ``p_stopped``: tenants of the governed queue ``p_stopped_qid``, one for each job that has just
-- stopped running, of which no ``news`` tells.
--
-- What few claims need is in functions and branches of its own: an expression that names a function costs something in
-- every transaction, even if it is not called. Jobs of one queue are found by ready_line, in claim order and beyond the
-- mark (``+ 0`` keeps it from skipping from priority to priority), then by place in the heap; ``contents``;
-- patches_pkey.
CREATE FUNCTION claim_v1(
    p_at bigint, p_holder text, p_queues text[], p_limit integer, p_lease_for bigint, p_want smallint,
    p_lost_below integer, p_max_bytes bigint, p_governed boolean, p_mark_queues text[] DEFAULT NULL, p_mark_priorities smallint[] DEFAULT NULL,
    p_mark_run_ats bigint[] DEFAULT NULL, p_mark_ids uuid[] DEFAULT NULL, p_mark_due bigint DEFAULT NULL,
    p_stopped_qid integer DEFAULT NULL, p_stopped bigint[] DEFAULT NULL
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = on SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := clock(p_at);
    v_bound integer := coalesce(p_lost_below, 2147483647);
    v_from bigint := coalesce(p_mark_due, -9223372036854775808);
    v_queues text[] := CASE WHEN cardinality(p_queues) > 50 AND p_mark_queues IS NULL THEN in_use(p_queues) ELSE p_queues END;
    v_more boolean := false;
    v_marks spot[];
    v_qid integer;
    v_mark spot := first_spot();
    v_places tid[];
    v_left integer := greatest(p_limit, 0);
    v_got integer;
    v_passed integer := 0;
    v_next bigint;
    v_walked bigint := walked();
    s claim_scope := look_around(v_now, v_queues, p_governed, p_lost_below, p_mark_queues IS NOT NULL, v_from);
BEGIN
    WHILE cardinality(s.names) IS DISTINCT FROM cardinality(p_queues) AND name_queues(p_queues) LOOP
        v_queues := p_queues;
        s := look_around(v_now, v_queues, p_governed, p_lost_below, p_mark_queues IS NOT NULL, v_from);
    END LOOP;
    IF s.looks THEN
        s.pause := CASE WHEN call_all(s.qids) THEN s.pause ELSE v_now END;
    END IF;
    IF p_lost_below IS NULL AND p_limit = 1 THEN
        PERFORM stay_chosen(s.qids, p_holder, v_now + p_lease_for / 3);
    END IF;
    IF p_stopped IS NOT NULL AND (cardinality(v_queues) = 1 AND s.qids[1] = p_stopped_qid) IS NOT TRUE THEN
        RETURN QUERY SELECT * FROM stopped_elsewhere(v_now, p_stopped_qid, p_stopped);
        p_stopped := NULL;
    END IF;
    IF s.governed AND cardinality(v_queues) = 1 THEN
        RETURN QUERY SELECT * FROM claim_turns(v_now, s, p_holder, v_left, p_lease_for, p_want, p_lost_below, p_max_bytes, 0, p_stopped);
        RETURN;
    ELSIF s.governed THEN
        RETURN QUERY SELECT * FROM claim_parts(v_now, s, v_queues, p_holder, v_left, p_lease_for, p_want, p_lost_below, p_max_bytes);
        RETURN;
    END IF;
    IF s.ripe OR s.looks THEN
        v_more := promote(v_now, s.qids, v_from);
    END IF;
    IF p_mark_queues IS NOT NULL THEN
        v_marks := marks_of(s.names, p_mark_queues, p_mark_priorities, p_mark_run_ats, p_mark_ids);
        v_mark := v_marks[1];
    END IF;
    IF s.dying AND v_left > 0 THEN
        RETURN QUERY SELECT * FROM clear_fronts(v_now, s.qids, v_marks, v_left);
        IF FOUND THEN RETURN; END IF;
    END IF;
    IF (s.waiting OR s.ripe OR s.looks) AND v_left > 0 THEN
        v_qid := CASE WHEN cardinality(s.qids) = 1 THEN s.qids[1] END;
        v_places := CASE WHEN v_qid IS NULL THEN pick(v_now, s.qids, v_marks, v_left, v_bound) END;
        RETURN QUERY
        WITH head AS MATERIALIZED (
            SELECT x.* FROM (
                SELECT y.ctid AS place, y.priority, y.run_at, y.id, y.size FROM ready AS y
                WHERE y.qid = v_qid AND y.lane IS NULL AND (y.priority, y.run_at, y.id) > (v_mark.priority, v_mark.run_at, v_mark.id)
                    AND y.run_at + 0 <= v_now AND (y.dies_at IS NULL OR y.dies_at > v_now) AND y.lost < v_bound
                ORDER BY y.qid, y.priority, y.run_at, y.id LIMIT v_left FOR UPDATE SKIP LOCKED
            ) AS x
            UNION ALL
            SELECT y.ctid, y.priority, y.run_at, y.id, y.size FROM ready AS y WHERE y.ctid = ANY (v_places)
        ), fitting AS (  -- usually all of them, without adding up one by one
            SELECT h.place FROM head AS h WHERE (SELECT sum(a.size) FROM head AS a) <= p_max_bytes
            UNION ALL
            SELECT f.place FROM fit(
                ARRAY(SELECT h.place FROM head AS h ORDER BY h.priority, h.run_at, h.id), p_max_bytes, p_want
            ) AS f (place) WHERE (SELECT sum(a.size) FROM head AS a) > p_max_bytes
        ), gone AS (
            DELETE FROM ready AS y USING fitting AS f WHERE y.ctid = f.place RETURNING y.*
        ), held AS (
            INSERT INTO leased (lease_until, run_at, id, epoch, qid, attempt, lost, size, priority, keyed, begun, gid, holder, error)
            SELECT v_now + p_lease_for, g.run_at, g.id, greatest(abs(g.epoch) + 1, v_now), g.qid, g.attempt, nullif(g.lost, 0), g.size,
                g.priority, g.keyed, nullif(g.epoch > 0, false), g.gid, p_holder, g.error
            FROM gone AS g
        ), counted AS (
            INSERT INTO deltas (qid, state, jobs) SELECT c.qid, x.state, x.sign * c.jobs
            FROM (SELECT g.qid, count(*) AS jobs FROM gone AS g GROUP BY g.qid) AS c
            CROSS JOIN (VALUES (0::smallint, -1), (1::smallint, 1)) AS x (state, sign)
        )
        SELECT
            g.id, s.names[array_position(s.qids, g.qid)], j.task,
            brought(CASE WHEN (g.patch).mask & 1 <> 0 THEN (g.patch).parameters ELSE j.parameters END, p_want & 1 <> 0),
            brought(CASE WHEN (g.patch).mask & 2 <> 0 THEN (g.patch).vm_state ELSE j.vm_state END, p_want & 2 <> 0),
            brought(CASE WHEN (g.patch).mask & 4 <> 0 THEN (g.patch).metadata ELSE j.metadata END, p_want & 4 <> 0),
            brought(CASE WHEN (g.patch).mask & 8 <> 0 THEN (g.patch).blob ELSE j.blob END, p_want & 8 <> 0),
            greatest(abs(g.epoch) + 1, v_now), j.tenant, CASE WHEN g.keyed THEN j.key END, g.priority, g.run_at, j.enqueued_at, g.attempt, g.lost,
            j.max_attempts, j.timeout, j.result_ttl, j.headers, g.error, j.group_name, g.epoch > 0, NULL::integer,
            NULL::notice, NULL::bigint, NULL::integer, NULL::bigint, NULL::bigint, NULL::bigint, NULL::boolean
        FROM (
            SELECT g.*, CASE WHEN g.epoch <> 0 THEN (SELECT c FROM patches AS c WHERE c.id = ANY (ARRAY[g.id])) END AS patch
            FROM gone AS g OFFSET 0
        ) AS g JOIN contents(ARRAY(SELECT x.id FROM gone AS x)) AS j ON j.id = g.id;
        GET DIAGNOSTICS v_got = ROW_COUNT;
        v_left := v_left - v_got;
        IF s.dying THEN
            RETURN QUERY SELECT * FROM expire(v_now, doomed_upto(v_now, s.qids, v_now + p_lease_for, v_left, p_max_bytes, p_want));
            -- Somebody has them in hand, and may let go.
            v_more := v_more OR doomed_upto(v_now, s.qids, v_now + p_lease_for, v_left, p_max_bytes, p_want) <> '{}';
        END IF;
        IF s.suspects THEN
            v_passed := passed_upto(v_now, s.qids, v_left, v_bound, p_max_bytes, p_want, p_holder, p_lease_for);
        END IF;
    END IF;
    v_next := CASE
        WHEN v_left <= 0 THEN NULL
        WHEN v_more THEN v_now
        ELSE least(next_due(v_now, s.qids, v_marks, v_from, v_bound, v_got, v_now + p_lease_for, p_max_bytes, p_want, s.dying), s.pause)
    END;
    RETURN NEXT last_row(walked() - v_walked, v_passed, v_next - v_now, CASE WHEN NOT v_more THEN v_now END, NULL, NULL);
END $$;

-- 4. Take, second half: lease the jobs at these places, which belong to these tenants. The answer already has ``p_ord``
-- jobs. Relies on the settings of ``claim_v1``.
CREATE FUNCTION take(
    p_now bigint, p_qid integer, p_name text, p_holder text, p_lease_for bigint, p_want smallint, p_places tid[], p_owners bigint[], p_ord integer
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN QUERY
    WITH gone AS (  -- by place in the heap; ``contents``; patches_pkey
        DELETE FROM ready AS y USING unnest(p_places, p_owners) WITH ORDINALITY AS n (place, tid, ord)
        WHERE y.ctid = n.place RETURNING y.*, n.tid, n.ord
    ), held AS (
        INSERT INTO leased (lease_until, run_at, id, qid, begun, epoch, attempt, lost, size, priority, keyed, gid, tid, holder, error)
        SELECT p_now + p_lease_for, g.run_at, g.id, g.qid, nullif(g.epoch > 0, false), greatest(abs(g.epoch) + 1, p_now),
            g.attempt, nullif(g.lost, 0), g.size, g.priority, g.keyed, g.gid, g.tid, p_holder, g.error
        FROM gone AS g
    ), counted AS (
        INSERT INTO deltas (qid, state, jobs) VALUES (p_qid, 0, -cardinality(p_places)), (p_qid, 1, cardinality(p_places))
    )
    SELECT
        g.id, p_name, j.task,
        brought(CASE WHEN (g.patch).mask & 1 <> 0 THEN (g.patch).parameters ELSE j.parameters END, p_want & 1 <> 0),
        brought(CASE WHEN (g.patch).mask & 2 <> 0 THEN (g.patch).vm_state ELSE j.vm_state END, p_want & 2 <> 0),
        brought(CASE WHEN (g.patch).mask & 4 <> 0 THEN (g.patch).metadata ELSE j.metadata END, p_want & 4 <> 0),
        brought(CASE WHEN (g.patch).mask & 8 <> 0 THEN (g.patch).blob ELSE j.blob END, p_want & 8 <> 0),
        greatest(abs(g.epoch) + 1, p_now), j.tenant, CASE WHEN g.keyed THEN j.key END, g.priority, g.run_at, j.enqueued_at, g.attempt, g.lost,
        j.max_attempts, j.timeout, j.result_ttl, j.headers, g.error, j.group_name, g.epoch > 0, p_ord + g.ord::integer,
        NULL::notice, NULL::bigint, NULL::integer, NULL::bigint, NULL::bigint, NULL::bigint, NULL::boolean
    FROM (
        SELECT g.*, CASE WHEN g.epoch <> 0 THEN (SELECT c FROM patches AS c WHERE c.id = ANY (ARRAY[g.id])) END AS patch
        FROM gone AS g OFFSET 0
    ) AS g JOIN contents(ARRAY(SELECT x.id FROM gone AS x)) AS j ON j.id = g.id;
END $$;
