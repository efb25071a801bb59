-- The store for people. The names of these views, and the meaning of their columns, are public.

-- A text in MessagePack, and where the next value begins. NULL for numbers.
CREATE FUNCTION packed_value(p_body bytea, p_at integer, OUT value text, OUT after integer)
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
DECLARE
    v_head CONSTANT integer := get_byte(p_body, p_at);
    v_size integer;
BEGIN
    CASE
        WHEN v_head < 128 OR v_head >= 224 THEN
            after := p_at + 1;
        WHEN v_head BETWEEN 204 AND 211 THEN
            after := p_at + 1 + (1 << (v_head % 4));
        WHEN v_head BETWEEN 160 AND 191 THEN
            v_size := v_head - 160;
            after := p_at + 1;
        WHEN v_head = 217 THEN
            v_size := get_byte(p_body, p_at + 1);
            after := p_at + 2;
        WHEN v_head = 218 THEN
            v_size := get_byte(p_body, p_at + 1) * 256 + get_byte(p_body, p_at + 2);
            after := p_at + 3;
        ELSE
            RAISE data_exception;
    END CASE;
    IF v_size > octet_length(p_body) - after THEN
        RAISE data_exception;
    ELSIF v_size IS NOT NULL THEN
        value := convert_from(substr(p_body, after + 1, v_size), 'UTF8');
        after := after + v_size;
    END IF;
END $$;

-- The last failure in a stored error, as workers write it: a list of maps in MessagePack. NULL for anything else.
CREATE FUNCTION failure_text(p_error bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT SET search_path FROM CURRENT AS $$
DECLARE
    v_at integer := 1;
    v_name text;
    v_value text;
    v_type text;
    v_message text;
BEGIN
    IF get_byte(p_error, 0) NOT BETWEEN 145 AND 159 THEN
        RETURN NULL;
    END IF;
    FOR failure IN 1..get_byte(p_error, 0) - 144 LOOP
        v_at := v_at + 1;
        FOR field IN 1..get_byte(p_error, v_at - 1) - 128 LOOP
            SELECT x.value, x.after INTO v_name, v_at FROM packed_value(p_error, v_at) AS x;
            SELECT x.value, x.after INTO v_value, v_at FROM packed_value(p_error, v_at) AS x;
            v_type := CASE v_name WHEN 'type' THEN v_value ELSE v_type END;
            v_message := CASE v_name WHEN 'message' THEN v_value ELSE v_message END;
        END LOOP;
    END LOOP;
    RETURN nullif(concat_ws(': ', nullif(v_type, ''), nullif(v_message, '')), '');
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

-- An instant for people. One outside the calendar becomes the first or last day, so that the view stays readable.
CREATE FUNCTION moment(p_at bigint) RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT 'epoch'::timestamptz + CASE
        WHEN p_at > 253402128000000000 THEN 253402128000000000 WHEN p_at < -62135510400000000 THEN -62135510400000000 ELSE p_at
    END * interval '1 microsecond'
$$;

-- Every job, once. A condition on ``state`` reads only the tables that can match, and ended jobs by ``ended_age``. The
-- holder of a lease is a secret, and not shown. An epoch is the instant of the last claim.
CREATE VIEW jobs_v1 WITH (security_barrier) AS
SELECT
    p.id, coalesce(q.name, (SELECT n.name FROM named AS n WHERE n.qid = p.qid LIMIT 1)) AS queue, j.task, p.state, j.tenant,
    CASE
        WHEN NOT p.keyed THEN NULL WHEN (SELECT own_tenants()) IS NULL THEN j.key
        ELSE unscoped((SELECT own_tenants())::text[], j.key)
    END AS key,
    p.priority, p.attempt, p.lost, j.max_attempts,
    moment(j.enqueued_at) AS enqueued_at, moment(p.run_at) AS run_at, moment(j.expires_at) AS expires_at,
    moment(p.finished_at) AS finished_at, moment(p.lease_until) AS lease_until,
    w.worker, p.reason, failure_text(p.error) AS error, p.size,
    moment(coalesce(p.finished_at, greatest(p.epoch, j.enqueued_at))) AS updated_at
FROM (
    SELECT y.id, y.qid, 'available' AS state, y.priority, y.run_at, y.epoch, y.attempt, y.lost, y.size, y.keyed, y.error,
        NULL::bigint AS lease_until, NULL::text AS holder, NULL::bigint AS finished_at, NULL::text AS reason
    FROM ready AS y
    UNION ALL
    SELECT l.id, l.qid, 'running', l.priority, l.run_at, l.epoch, l.attempt, coalesce(l.lost, 0), l.size, l.keyed, l.error, l.lease_until, l.holder,
        NULL, NULL
    FROM leased AS l
    UNION ALL
    SELECT x.id, x.qid, 'paused', x.priority, x.run_at, x.epoch, x.attempt, x.lost, x.size, x.keyed, x.error, NULL, NULL, NULL, NULL
    FROM paused AS x
    UNION ALL
    SELECT e.id, e.qid, 'completed', e.priority, e.run_at, e.epoch, e.attempt, coalesce(e.lost, 0), e.size, e.keyed, e.error, NULL, NULL,
        e.finished_at, e.reason
    FROM ended AS e WHERE e.state = 3
    UNION ALL
    SELECT e.id, e.qid, 'cancelled', e.priority, e.run_at, e.epoch, e.attempt, coalesce(e.lost, 0), e.size, e.keyed, e.error, NULL, NULL,
        e.finished_at, e.reason
    FROM ended AS e WHERE e.state = 4
    UNION ALL
    SELECT e.id, e.qid, 'failed', e.priority, e.run_at, e.epoch, e.attempt, coalesce(e.lost, 0), e.size, e.keyed, e.error, NULL, NULL,
        e.finished_at, e.reason
    FROM ended AS e WHERE e.state = 5
) AS p
JOIN jobs AS j ON j.id = p.id
LEFT JOIN queues AS q ON q.qid = p.qid
LEFT JOIN workers AS w ON w.holder = p.holder AND w.listed_until > extract(epoch FROM clock_timestamp()) * 1000000
WHERE (SELECT own_tenants()) IS NULL OR j.tenant = ANY ((SELECT own_tenants())::text[]);

-- The counters, added up.
CREATE VIEW queues_v1 AS
SELECT
    q.name, q.paused_until > extract(epoch FROM clock_timestamp()) * 1000000 AS paused,
    coalesce(c.available, 0) AS available, coalesce(c.running, 0) AS running, coalesce(c.jobs_paused, 0) AS jobs_paused,
    coalesce(c.completed, 0) AS completed, coalesce(c.cancelled, 0) AS cancelled, coalesce(c.failed, 0) AS failed
FROM all_queues AS q LEFT JOIN queue_counts AS c ON c.qid = q.qid;

COMMENT ON VIEW jobs_v1 IS 'Every job that is kept, once, with its state and the last error that it met.';
COMMENT ON VIEW queues_v1 IS 'Every queue with the number of its jobs in each state.';

SELECT seal();
