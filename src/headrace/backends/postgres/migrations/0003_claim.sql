-- What functions tell, one kind of row each: 0 a settlement whose answer is not the state that it asked for (its number in
-- ``epoch``, its state in ``attempt``), 1 a leased job, 2 a job that was taken back or has expired (its state in
-- ``attempt``, the reason in ``tenant``), 3 the rest of the answer to a claim, 4 an inbox to be told, 5 a queue to be told.
-- ``ord`` is a leased job's place in the answer, where that is not told by (priority, run_at, id); ``begun``, whether a handler may
-- have been called for it before; in a row of kind 3, whether all that was told counts only after a call of ``seal_v1``.
CREATE TYPE claim_row AS (
    kind smallint, id uuid, name text, task text, tenant text, key text, epoch bigint, attempt integer, lost integer,
    priority smallint, run_at bigint, enqueued_at bigint, max_attempts integer, timeout bigint, result_ttl bigint,
    headers bytea, error bytea, parameters bytea, vm_state bytea, metadata bytea, blob bytea, group_name text, ord integer, begun boolean
);

-- A row of kind 4: the inbox waits for the job, which has ended.
CREATE FUNCTION told(p_id uuid, p_inbox text) RETURNS claim_row LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT (
        4, p_id, p_inbox, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL
    )::claim_row
$$;

-- What jobs came with, for claims. It is planned for these ids, and so locks only the days that they are of: a plan that is kept
-- locks every day there is, and then every claim waits for one who makes or drops a day, and he for them. The claim joins by
-- hashing its own rows, which are narrow and, as the planner is told, few.
CREATE FUNCTION contents(p_ids uuid[]) RETURNS SETOF jobs LANGUAGE plpgsql VOLATILE ROWS 1000000
SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN QUERY SELECT j.* FROM jobs AS j WHERE j.id = ANY (p_ids);  -- jobs_pkey
END $$;

-- Whose these jobs are, in their order; planned for these ids as above.
CREATE FUNCTION tenants_of(p_ids uuid[]) RETURNS text[] LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN ARRAY(
        SELECT coalesce(j.tenant, '') FROM unnest(p_ids) WITH ORDINALITY AS n (id, ord)
        LEFT JOIN (SELECT j.id, j.tenant FROM jobs AS j WHERE j.id = ANY (p_ids)) AS j ON j.id = n.id  -- jobs_pkey
        ORDER BY n.ord
    );
END $$;

-- Jobs that lie nowhere are CANCELLED or FAILED.
CREATE FUNCTION end_jobs(
    p_now bigint, p_state smallint, p_reason text, p_ids uuid[], p_qids integer[], p_epochs bigint[],
    p_attempts integer[], p_losts integer[], p_sizes integer[], p_priorities smallint[], p_run_ats bigint[],
    p_keyed boolean[], p_errors bytea[]
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_tenants text[];
BEGIN
    IF p_state = 5 THEN
        v_tenants := tenants_of(p_ids);
    END IF;
    INSERT INTO ended (
        finished_at, held_until, run_at, id, qid, epoch, attempt, lost, size, state, priority, keyed, reason, tenant, error
    )
    SELECT p_now, 0, n.run_at, n.id, n.qid, n.epoch, n.attempt, n.lost, n.size, p_state, n.priority, n.keyed, p_reason, n.tenant, n.error
    FROM unnest(
        p_run_ats, p_ids, p_qids, p_epochs, p_attempts, p_losts, p_sizes, p_priorities, p_keyed, v_tenants, p_errors
    ) AS n (run_at, id, qid, epoch, attempt, lost, size, priority, keyed, tenant, error);
    INSERT INTO deltas (qid, state, jobs, bytes, tenant)
    SELECT n.qid, p_state, count(*), sum(n.size), n.tenant FROM unnest(p_qids, p_sizes, v_tenants) AS n (qid, size, tenant)
    GROUP BY n.qid, n.tenant;
    IF true = ANY (p_keyed) THEN
        PERFORM lock_keys(p_ids, p_qids);
        UPDATE keys AS k SET held_until = 0, failed = (p_state = 5) FROM (
            SELECT n.id, n.qid, j.key FROM unnest(p_ids, p_qids, p_keyed) AS n (id, qid, keyed)
            JOIN jobs AS j ON j.id = ANY (ARRAY[n.id]) WHERE n.keyed OFFSET 0
        ) AS m WHERE k.qid = ANY (ARRAY[m.qid]) AND k.key = ANY (ARRAY[m.key]) AND k.id = m.id;
    END IF;
END $$;

-- The inboxes that wait for jobs that have ended; each is told once.
CREATE FUNCTION take_waiters(p_ids uuid[]) RETURNS TABLE (id uuid, inbox text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY  -- waiters_pkey
    DELETE FROM waiters AS w USING unnest(p_ids) AS n (id) WHERE w.id = ANY (ARRAY[n.id]) RETURNING w.id, w.inbox;
END $$;

-- Cancel the jobs at these places of ``ready``, which have expired, but for those that somebody has in hand. Their groups are
-- to be looked at.
CREATE FUNCTION expire_v1(p_now bigint, p_places tid[]) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_ids uuid[];
    v_qids integer[];
    v_lanes bigint[];
BEGIN
    WITH head AS MATERIALIZED (
        SELECT y.ctid AS place FROM ready AS y WHERE y.ctid = ANY (p_places) AND y.dies_at <= p_now FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM ready AS y USING head AS h WHERE y.ctid = h.place RETURNING y.*
    ), counted AS (
        INSERT INTO deltas (qid, state, jobs) SELECT g.qid, 0, -count(*) FROM gone AS g GROUP BY g.qid
    ), over AS (
        SELECT end_jobs(
            p_now, 4::smallint, 'expired', array_agg(g.id), array_agg(g.qid), array_agg(g.epoch), array_agg(g.attempt),
            array_agg(g.lost), array_agg(g.size), array_agg(g.priority), array_agg(g.run_at), array_agg(g.keyed),
            array_agg(g.error)
        ), array_agg(g.id) AS ids, array_agg(g.qid) AS qids, array_agg(g.lane) AS lanes
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
    SELECT
        2::smallint, e.id, q.name, j.task, 'expired', CASE WHEN e.keyed THEN j.key END, e.epoch, 4, e.lost,
        e.priority, e.run_at, NULL::bigint, NULL::integer, NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea,
        NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea, NULL::text, NULL::integer, NULL::boolean
    FROM unnest(v_ids) AS n (id) JOIN ended AS e ON e.id = ANY (ARRAY[n.id]) JOIN jobs AS j ON j.id = ANY (ARRAY[n.id]) JOIN queues AS q ON q.qid = e.qid;
    RETURN QUERY SELECT (told(w.id, w.inbox)).* FROM take_waiters(v_ids) AS w;
END $$;

-- A place in the order of claims.
CREATE TYPE spot AS (priority smallint, run_at bigint, id uuid);
CREATE FUNCTION first_spot() RETURNS spot LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT (-32768, -9223372036854775808, '00000000-0000-0000-0000-000000000000')::spot
$$;
CREATE FUNCTION last_spot() RETURNS spot LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT (32767, 9223372036854775807, 'ffffffff-ffff-ffff-ffff-ffffffffffff')::spot
$$;

-- What a claim finds when it looks around: the queues that are not paused, by number; when the first pause ends; whether one of them is
-- governed, has groups to be looked at, jobs that have become due, or jobs in its line (or may have, as there are marks); and
-- whether jobs have expired, or were lost too often, anywhere.
CREATE TYPE claim_scope AS (
    qids integer[], names text[], pause bigint, governed boolean, looks boolean, ripe boolean, waiting boolean, dying boolean,
    suspects boolean
);

-- Of these queues, those that may have something for a claim: jobs, groups to look at, rules or a pause. Asked where there are
-- many, so that those which are empty cost nothing: the queues in use are walked, one probe each, unless there are more of them.
CREATE FUNCTION in_use(p_queues text[]) RETURNS text[] LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = on
AS $$
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
    -- queues_name_key; looks_qid, ready_later and ready_line, one probe per queue; ready_dying; ready_lost.
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
    INTO v_scope FROM queues AS q WHERE q.name = ANY (p_queues) AND (p_governed OR NOT q.governed);
    RETURN v_scope;
END $$;

-- What has become due in these queues comes into their lines: a bounded number, in the order of run_at; whether there may be more.
CREATE FUNCTION promote(p_now bigint, p_qids integer[], p_from bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c_most CONSTANT integer := 1000;
    v_found integer;
BEGIN
    WITH ripe AS MATERIALIZED (  -- ready_later; then by place in the heap
        SELECT x.place FROM unnest(p_qids) AS q (qid) CROSS JOIN LATERAL (
            SELECT y.ctid AS place, y.run_at, y.id FROM ready AS y
            WHERE y.qid = q.qid AND y.lane = 0 AND y.run_at <= p_now AND y.run_at > p_from
            ORDER BY y.qid, y.run_at, y.id LIMIT c_most FOR UPDATE SKIP LOCKED
        ) AS x ORDER BY x.run_at, x.id LIMIT c_most
    ), promoted AS (
        UPDATE ready AS y SET lane = NULL FROM ripe AS r WHERE y.ctid = r.place
    )
    SELECT count(*) INTO v_found FROM ripe AS r;
    RETURN v_found = c_most;
END $$;

-- The places of the first jobs of several queues, locked; no others are. What somebody has in hand is passed over. Each queue is
-- looked into only as far as the first of all may lie.
CREATE FUNCTION pick(p_now bigint, p_qids integer[], p_marks spot[], p_most integer, p_bound integer) RETURNS tid[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_places tid[] := '{}';
    v_left integer := p_most;
    v_each integer;
    v_first spot := first_spot();
    v_last spot := v_first;
    v_seen integer;
    v_cut boolean;
    v_some tid[];
BEGIN
    LOOP
        v_each := least(v_left, greatest(16, 4 * v_left / cardinality(p_qids)));
        WITH near AS MATERIALIZED (  -- ready_line, in claim order
            SELECT x.*, row_number() OVER (PARTITION BY q.qid ORDER BY x.priority, x.run_at, x.id) = v_each AS cut
            FROM unnest(p_qids, p_marks) AS q (qid, priority, run_at, id) CROSS JOIN LATERAL (
                SELECT y.ctid AS place, y.priority, y.run_at, y.id FROM ready AS y
                WHERE y.qid = q.qid AND y.lane IS NULL AND (y.priority, y.run_at, y.id) > (v_last.priority, v_last.run_at, v_last.id)
                    AND (y.priority, y.run_at, y.id) > (
                        coalesce(q.priority, v_first.priority), coalesce(q.run_at, v_first.run_at), coalesce(q.id, v_first.id)
                    )
                    AND y.run_at + 0 <= p_now AND (y.dies_at IS NULL OR y.dies_at > p_now) AND y.lost < p_bound
                ORDER BY y.qid, y.priority, y.run_at, y.id LIMIT v_each
            ) AS x
        ), horizon AS MATERIALIZED (  -- beyond it others may lie in between
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
            l.priority, l.run_at, l.id
        INTO v_some, v_seen, v_cut, v_last.priority, v_last.run_at, v_last.id
        FROM (VALUES (1)) AS one LEFT JOIN (
            SELECT c.* FROM chosen AS c ORDER BY c.priority DESC, c.run_at DESC, c.id DESC LIMIT 1
        ) AS l ON true;
        v_places := v_places || v_some;
        EXIT WHEN cardinality(v_some) = v_left OR v_seen < v_left AND NOT v_cut;
        v_left := v_left - cardinality(v_some);
    END LOOP;
    RETURN v_places;
END $$;

-- When the next job of these queues is due: now, if one that could have been taken is still there, as somebody has it in hand. Some
-- that are not due any more, as the clock was set back, wait apart again.
CREATE FUNCTION next_due(p_now bigint, p_qids integer[], p_marks spot[], p_from bigint, p_bound integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    c_most CONSTANT integer := 1000;
    c_moment CONSTANT bigint := 100000;  -- who has looked at the clock a moment later may have put some there
    v_first spot := first_spot();
    v_next bigint;
    v_left bigint;
    v_early bigint;
BEGIN
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

-- Up to where a claim has looked: the last of the jobs that it has taken just now, or the end, if nothing cut it short.
CREATE FUNCTION looked_upto(p_until bigint, p_qids integer[], p_full boolean) RETURNS spot
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT coalesce((  -- leased_until
        SELECT (l.priority, l.run_at, l.id)::spot FROM leased AS l
        WHERE p_full AND l.lease_until = p_until AND l.xmin = pg_current_xact_id()::xid AND l.qid = ANY (p_qids)
        ORDER BY l.priority DESC, l.run_at DESC, l.id DESC LIMIT 1
    ), last_spot())
$$;

-- Lease the first jobs by (priority, run_at, id). The client puts them in that order: a plan may return them in another.
--
-- ``p_mark_*`` say, per queue, up to where this client has claimed lately, and ``p_mark_due`` up to when it knows all that was due
-- to be promoted; it then looks only beyond. It gives them when the answer said that much was walked in vain: while an old snapshot
-- is held, what others have claimed stays in the index, and a look from the beginning passes all of it. ``p_governed`` is false
-- where governed queues are passed over, as one may have become so since the caller looked. ``p_stopped``: the tenants of jobs of the governed
-- queue ``p_stopped_qid`` that have just stopped running, one of each, which nobody was told yet.
CREATE FUNCTION claim_v1(
    p_at bigint, p_holder text, p_queues text[], p_limit integer, p_lease_for bigint, p_want smallint,
    p_lost_below integer, p_max_bytes bigint, p_governed boolean, p_mark_queues text[] DEFAULT NULL, p_mark_priorities smallint[] DEFAULT NULL,
    p_mark_run_ats bigint[] DEFAULT NULL, p_mark_ids uuid[] DEFAULT NULL, p_mark_due bigint DEFAULT NULL,
    p_stopped_qid integer DEFAULT NULL, p_stopped bigint[] DEFAULT NULL
) RETURNS SETOF claim_row LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = on SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
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
    v_places tid[] := '{}';
    v_left integer := greatest(p_limit, 0);
    v_room bigint := p_max_bytes;
    v_got integer;
    v_upto spot;
    v_passed boolean := false;
    v_next bigint;
    v_walked bigint := pg_stat_get_xact_tuples_returned('ready_line'::regclass) + pg_stat_get_xact_tuples_returned('ready_later'::regclass);
    s claim_scope := look_around(v_now, v_queues, p_governed, p_lost_below, p_mark_queues IS NOT NULL, v_from);
BEGIN
    IF cardinality(s.names) IS DISTINCT FROM cardinality(p_queues) AND name_queues(p_queues) THEN
        RETURN QUERY SELECT * FROM claim_v1(
            p_at, p_holder, p_queues, p_limit, p_lease_for, p_want, p_lost_below, p_max_bytes, p_governed, p_mark_queues,
            p_mark_priorities, p_mark_run_ats, p_mark_ids, p_mark_due, p_stopped_qid, p_stopped
        );
        RETURN;
    END IF;
    IF s.looks THEN
        PERFORM call_looks(s.qids);
        IF EXISTS (SELECT 1 FROM looks AS k WHERE k.qid = ANY (s.qids)) THEN  -- somebody has their groups in hand
            s.pause := v_now;
        END IF;
    END IF;
    IF p_lost_below IS NULL AND p_limit = 1 THEN
        PERFORM stay_chosen(s.qids, p_holder, v_now + p_lease_for / 3);
    END IF;
    IF s.governed THEN  -- nobody waits for the disk while it has the turns; the caller does so by ``seal_v1``
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF p_stopped IS NOT NULL AND (cardinality(v_queues) = 1 AND s.qids[1] = p_stopped_qid) IS NOT TRUE THEN
        RETURN QUERY SELECT w.* FROM stopped(
            v_now, array_fill(p_stopped_qid, ARRAY[cardinality(p_stopped)]), '{}', p_stopped, false
        ) AS q CROSS JOIN LATERAL woken(q) AS w;
        p_stopped := NULL;
    END IF;
    IF s.governed AND cardinality(v_queues) = 1 THEN
        RETURN QUERY SELECT * FROM claim_turns(
            v_now, s.qids[1], s.names[1], s.pause, p_holder, v_left, p_lease_for, p_want, p_lost_below, v_room, s.dying, s.suspects, 0, p_stopped
        );
        RETURN;
    ELSIF s.governed THEN
        RETURN QUERY SELECT * FROM claim_parts(
            v_now, p_holder, v_queues, v_left, p_lease_for, p_want, p_lost_below, v_room, s.dying, s.suspects, s.pause
        );
        RETURN;
    END IF;
    IF s.ripe OR s.looks THEN
        v_more := promote(v_now, s.qids, v_from);
    END IF;
    IF p_mark_queues IS NOT NULL THEN
        v_marks := ARRAY(
            SELECT CASE WHEN m.name IS NULL THEN first_spot() ELSE (m.priority, m.run_at, m.id)::spot END
            FROM unnest(s.names) WITH ORDINALITY AS q (name, ord)
            LEFT JOIN unnest(p_mark_queues, p_mark_priorities, p_mark_run_ats, p_mark_ids) AS m (name, priority, run_at, id)
                ON m.name = q.name ORDER BY q.ord
        );
        v_mark := v_marks[1];
    END IF;
    IF (s.waiting OR s.ripe OR s.looks) AND v_left > 0 THEN
        IF cardinality(s.qids) = 1 THEN
            v_qid := s.qids[1];
        ELSE
            v_places := pick(v_now, s.qids, v_marks, v_left, v_bound);
        END IF;
        RETURN QUERY
        -- ready_line: (queue, beyond the mark), in claim order, with ``+ 0`` so that it does not skip from priority to priority; then
        -- by place in the heap; ``contents``; patches_pkey.
        WITH head AS MATERIALIZED (
            SELECT x.* FROM (
                SELECT y.ctid AS place, y.priority, y.run_at, y.id, y.size FROM ready AS y
                WHERE y.qid = v_qid AND y.lane IS NULL AND (y.priority, y.run_at, y.id) > (v_mark.priority, v_mark.run_at, v_mark.id)
                    AND y.run_at + 0 <= v_now AND (y.dies_at IS NULL OR y.dies_at > v_now) AND y.lost < v_bound
                ORDER BY y.qid, y.priority, y.run_at, y.id LIMIT v_left
                FOR UPDATE SKIP LOCKED
            ) AS x
            UNION ALL
            SELECT y.ctid, y.priority, y.run_at, y.id, y.size FROM ready AS y WHERE y.ctid = ANY (v_places)
        ), fitting AS (  -- most often all of them, and nothing is to be added up one by one
            SELECT h.place FROM head AS h WHERE (SELECT sum(a.size) FROM head AS a) <= v_room
            UNION ALL
            SELECT w.place FROM (
                SELECT h.place, sum(h.size) OVER (ORDER BY h.priority, h.run_at, h.id ROWS UNBOUNDED PRECEDING) - h.size AS before
                FROM head AS h WHERE (SELECT sum(a.size) FROM head AS a) > v_room
            ) AS w WHERE w.before < v_room
        ), gone AS (
            DELETE FROM ready AS y USING fitting AS f WHERE y.ctid = f.place RETURNING y.*
        ), held AS (
            INSERT INTO leased (lease_until, run_at, id, epoch, qid, attempt, lost, size, priority, keyed, begun, gid, holder, error)
            SELECT v_now + p_lease_for, g.run_at, g.id, greatest(abs(g.epoch) + 1, v_now), g.qid, g.attempt, nullif(g.lost, 0), g.size,
                g.priority, g.keyed, nullif(g.epoch > 0, false), g.gid, p_holder, g.error
            FROM gone AS g
        ), counted AS (
            INSERT INTO deltas (qid, state, jobs)
            SELECT c.qid, x.state, x.sign * c.jobs
            FROM (SELECT g.qid, count(*) AS jobs FROM gone AS g GROUP BY g.qid) AS c
            CROSS JOIN (VALUES (0::smallint, -1), (1::smallint, 1)) AS x (state, sign)
        )
        SELECT
            1::smallint, g.id, s.names[array_position(s.qids, g.qid)], j.task, j.tenant, CASE WHEN g.keyed THEN j.key END,
            greatest(abs(g.epoch) + 1, v_now), g.attempt, g.lost, g.priority, g.run_at, j.enqueued_at, j.max_attempts, j.timeout, j.result_ttl,
            j.headers, g.error,
            CASE WHEN p_want & 1 <> 0 THEN bounded(CASE WHEN (g.patch).mask & 1 <> 0 THEN (g.patch).parameters ELSE j.parameters END) END,
            CASE WHEN p_want & 2 <> 0 THEN bounded(CASE WHEN (g.patch).mask & 2 <> 0 THEN (g.patch).vm_state ELSE j.vm_state END) END,
            CASE WHEN p_want & 4 <> 0 THEN bounded(CASE WHEN (g.patch).mask & 4 <> 0 THEN (g.patch).metadata ELSE j.metadata END) END,
            CASE WHEN p_want & 8 <> 0 THEN bounded(CASE WHEN (g.patch).mask & 8 <> 0 THEN (g.patch).blob ELSE j.blob END) END,
            j.group_name, NULL::integer, g.epoch > 0
        FROM (
            SELECT g.*, CASE WHEN g.epoch <> 0 THEN (SELECT c FROM patches AS c WHERE c.id = ANY (ARRAY[g.id])) END AS patch
            FROM gone AS g OFFSET 0
        ) AS g JOIN contents(ARRAY(SELECT x.id FROM gone AS x)) AS j ON j.id = g.id;
        GET DIAGNOSTICS v_got = ROW_COUNT;
        v_left := v_left - v_got;
        IF v_got > 0 AND v_left > 0 THEN  -- leased_until
            SELECT v_room - sum(l.size) INTO v_room FROM leased AS l
            WHERE l.lease_until = v_now + p_lease_for AND l.xmin = pg_current_xact_id()::xid AND l.qid = ANY (s.qids);
        END IF;
        IF s.dying OR s.suspects THEN
            v_upto := looked_upto(v_now + p_lease_for, s.qids, v_left = 0 OR v_room <= 0);
            v_passed := s.suspects AND EXISTS (  -- ready_lost
                SELECT 1 FROM ready AS y
                WHERE coalesce(y.lane, y.qid) = ANY (s.qids) AND (y.priority, y.run_at, y.id) <= (v_upto.priority, v_upto.run_at, v_upto.id)
                    AND y.run_at <= v_now AND y.lost > 0 AND y.lost >= v_bound AND (y.dies_at IS NULL OR y.dies_at > v_now)
            );
        END IF;
        IF s.dying THEN
            RETURN QUERY SELECT * FROM expire_v1(v_now, ARRAY(  -- ready_doomed
                SELECT d.place FROM unnest(s.qids) AS q (qid) CROSS JOIN LATERAL (
                    SELECT y.ctid AS place, y.priority, y.run_at, y.id FROM ready AS y
                    WHERE coalesce(y.lane, y.qid) = q.qid AND y.dies_at IS NOT NULL AND y.dies_at + 0 <= v_now ORDER BY y.dies_at + 0 LIMIT 1000
                ) AS d WHERE (d.priority, d.run_at, d.id) <= (v_upto.priority, v_upto.run_at, v_upto.id) LIMIT 1000
            ));
        END IF;
    END IF;
    IF v_left > 0 THEN
        v_next := CASE
            WHEN v_more OR v_passed OR v_room <= 0 THEN v_now
            -- one that has expired has made way for another
            WHEN s.dying AND EXISTS (SELECT 1 FROM looks AS k WHERE k.qid = ANY (s.qids)) THEN v_now
            ELSE least(next_due(v_now, s.qids, v_marks, v_from, v_bound), s.pause)
        END;
    END IF;
    RETURN NEXT (
        3, NULL, NULL, NULL, NULL, NULL, NULL,
        pg_stat_get_xact_tuples_returned('ready_line'::regclass) + pg_stat_get_xact_tuples_returned('ready_later'::regclass) - v_walked,
        CASE WHEN v_passed THEN choose_plain(v_now, s.qids, v_bound, p_holder, p_lease_for) ELSE 0 END, NULL, v_next - v_now, CASE WHEN NOT v_more THEN v_now END,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    )::claim_row;
END $$;
