-- Jobs from SQL: for psql, triggers, other languages, and drivers that join a transaction of the caller.

-- The channel of a topic. Clients derive the same name (hints.py).
CREATE FUNCTION channel(p_topic text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT 'headrace_' || left(encode(sha256(
        convert_to(current_schema(), 'UTF8') || decode('00', 'hex') || convert_to(p_topic, 'UTF8')
    ), 'hex'), 40)
$$;

CREATE FUNCTION refuse_job(p_ord bigint, p_problem text, p_hint text) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT refuse(format('job %s: %s', p_ord, p_problem), coalesce(p_hint, 'What a job takes is told by the comment on enqueue_v1.'))
$$;

-- A value for a message, shortened.
CREATE FUNCTION shown(p_value jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN length(p_value::text) > 80 THEN left(p_value::text, 80) || '…' ELSE p_value::text END
$$;

CREATE FUNCTION refuse_key(p_ord bigint, p_object jsonb, p_where text, p_known text[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT refuse_job(
        p_ord, format('%sunknown key %s', p_where, shown(to_jsonb(k))), format('There are: %s.', array_to_string(p_known, ', '))
    )
    FROM jsonb_object_keys(p_object) AS k WHERE k <> ALL (p_known) LIMIT 1
$$;

-- The value of a key. NULL for JSON's null too.
CREATE FUNCTION given(p_job jsonb, p_name text) RETURNS jsonb LANGUAGE sql IMMUTABLE AS
    'SELECT nullif(p_job -> p_name, ''null'')';

CREATE FUNCTION given_text(p_ord bigint, p_name text, v jsonb, p_least integer) RETURNS text LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
    size integer;
BEGIN
    IF jsonb_typeof(v) <> 'string' THEN
        PERFORM refuse_job(p_ord, format('%s: expected text, got %s', p_name, shown(v)), NULL);
    END IF;
    size := octet_length(convert_to(v #>> '{}', 'UTF8'));
    IF size NOT BETWEEN p_least AND 1024 THEN
        PERFORM refuse_job(p_ord, format('%s: expected %s to 1024 bytes in UTF-8, got %s', p_name, p_least, size), NULL);
    END IF;
    RETURN v #>> '{}';
END $$;

CREATE FUNCTION given_number(p_ord bigint, p_name text, v jsonb, p_least integer, p_most integer) RETURNS integer LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
    IF jsonb_typeof(v) = 'number' THEN
        IF v::numeric = trunc(v::numeric) AND v::numeric BETWEEN p_least AND p_most THEN
            RETURN v::numeric::integer;
        END IF;
    END IF;
    PERFORM refuse_job(
        p_ord, format('%s: expected a whole number from %s to %s, got %s', p_name, p_least, p_most, shown(v)), NULL
    );
END $$;

-- Microseconds, at most ten years.
CREATE FUNCTION given_length(p_ord bigint, p_name text, v jsonb) RETURNS bigint LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
    length numeric;
BEGIN
    IF jsonb_typeof(v) = 'number' THEN
        length := v::numeric;
    ELSIF jsonb_typeof(v) = 'string' THEN
        BEGIN
            length := extract(epoch FROM (v #>> '{}')::interval);
        EXCEPTION WHEN data_exception THEN
            length := NULL;
        END;
    END IF;
    IF length IS NULL OR length NOT BETWEEN 0 AND 316224000 THEN
        PERFORM refuse_job(
            p_ord, format('%s: expected a length of time of at most ten years, got %s', p_name, shown(v)),
            'Give seconds as a number, like 0.5, or an interval as text, like "10 minutes" or "1h30m".'
        );
    END IF;
    RETURN round(length * 1000000);
END $$;

-- Microseconds since 1970.
CREATE FUNCTION given_instant(p_ord bigint, p_name text, v jsonb, p_now bigint) RETURNS bigint LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
    c_local CONSTANT text := '^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?';
    instant numeric;
BEGIN
    IF jsonb_typeof(v) = 'string' AND v #>> '{}' ~ (c_local || '$') THEN
        PERFORM refuse_job(
            p_ord, format('%s: expected a time with its time zone, got %s without an offset', p_name, shown(v)),
            'Add the offset, like "2027-01-15T08:00:00Z" or "2027-01-15T08:00:00+01:00".'
        );
    END IF;
    IF jsonb_typeof(v) = 'string' AND v #>> '{}' ~ (c_local || ' ?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$') THEN
        BEGIN
            instant := extract(epoch FROM (v #>> '{}')::timestamptz) * 1000000;
        EXCEPTION WHEN data_exception THEN
            instant := NULL;
        END;
    END IF;
    IF instant IS NULL OR instant NOT BETWEEN 0 AND p_now + 316224000000000 THEN
        PERFORM refuse_job(
            p_ord, format('%s: expected a time after 1970 and at most ten years from now, got %s', p_name, shown(v)),
            'Give it as text with its time zone, like "2027-01-15T08:00:00Z".'
        );
    END IF;
    RETURN instant;
END $$;

-- Bytes in base64. Empty is not absent.
CREATE FUNCTION given_cell(p_ord bigint, p_name text, v jsonb) RETURNS bytea LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
    IF jsonb_typeof(v) <> 'string' THEN
        PERFORM refuse_job(p_ord, format('cells: %s: expected bytes in base64, got %s', p_name, shown(v)), NULL);
    END IF;
    RETURN decode(v #>> '{}', 'base64');
END $$;

-- A text of at most 8 kB in MessagePack.
CREATE FUNCTION packed_text(p_text text) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN n < 32 THEN set_byte(decode('00', 'hex'), 0, 160 + n)
        WHEN n < 256 THEN decode('d9', 'hex') || set_byte(decode('00', 'hex'), 0, n)
        ELSE decode('da', 'hex') || int2send(n::smallint)
    END || body
    FROM (SELECT convert_to(p_text, 'UTF8') AS body, octet_length(convert_to(p_text, 'UTF8')) AS n) AS x
$$;

-- Headers as clients write them: a map in MessagePack.
CREATE FUNCTION given_headers(p_ord bigint, v jsonb) RETURNS bytea LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
    n integer;
BEGIN
    IF jsonb_typeof(v) <> 'object' OR EXISTS (SELECT 1 FROM jsonb_each(v) AS h WHERE jsonb_typeof(h.value) <> 'string') THEN
        PERFORM refuse_job(p_ord, format('headers: expected texts by name, got %s', shown(v)), NULL);
    END IF;
    PERFORM refuse_job(p_ord, format('headers: names that begin with headrace- are reserved, got %s', shown(to_jsonb(k))), NULL)
    FROM jsonb_object_keys(v) AS k WHERE starts_with(k, 'headrace-') LIMIT 1;
    IF octet_length(v::text) > 8192 THEN
        PERFORM refuse_job(p_ord, format('headers: expected at most 8192 bytes, got %s', octet_length(v::text)), NULL);
    END IF;
    n := (SELECT count(*) FROM jsonb_object_keys(v));
    RETURN CASE WHEN n < 16 THEN set_byte(decode('00', 'hex'), 0, 128 + n) ELSE decode('de', 'hex') || int2send(n::smallint) END
        || coalesce((SELECT string_agg(packed_text(h.key) || packed_text(h.value), '') FROM jsonb_each_text(v) AS h), '');
END $$;

-- Arguments by name, as bare JSON, which workers read too.
CREATE FUNCTION given_parameters(p_ord bigint, v jsonb) RETURNS bytea LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
    body bytea;
BEGIN
    IF jsonb_typeof(v) <> 'object' THEN
        PERFORM refuse_job(
            p_ord, format('args: expected an object, got %s', shown(v)), 'Give arguments by name: {"user_id": 42}.'
        );
    END IF;
    body := convert_to(v::text, 'UTF8');
    IF octet_length(body) > 128 AND jsonb_path_exists(v, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")') THEN
        PERFORM refuse_job(p_ord, 'args: nested deeper than 64', NULL);
    END IF;
    RETURN body;
END $$;

-- A UUIDv7 as clients make it: milliseconds, 12 bits of their fraction, 62 random bits. A tick is 1/4096 ms.
CREATE FUNCTION new_id(p_tick bigint) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (
        lpad(to_hex(p_tick >> 12), 12, '0') || '7' || lpad(to_hex(p_tick & 4095), 3, '0')
        || right(replace(gen_random_uuid()::text, '-', ''), 16)
    )::uuid
$$;

-- One job of ``enqueue_v1``, checked, and the name of its queue. What reads the value of a key is not called for a key
-- that is absent: most jobs have three or four.
CREATE FUNCTION read_job(p_ord bigint, p_job jsonb, p_now bigint, OUT queue text, OUT j job_row) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    c_known CONSTANT text[] := ARRAY[
        'task', 'queue', 'args', 'id', 'key', 'tenant', 'priority', 'delay', 'run_at', 'expires', 'timeout', 'max_attempts',
        'result_ttl', 'headers', 'on_failed', 'unique', 'on_duplicate', 'group', 'cells'
    ];
    c_cells CONSTANT text[] := ARRAY['parameters', 'vm_state', 'metadata', 'blob', 'headers'];
    v_text text;
BEGIN
    IF jsonb_typeof(p_job) <> 'object' THEN
        PERFORM refuse_job(
            p_ord, format('expected an object, got %s', shown(p_job)), 'Give at least a task: {"task": "shop.mail"}.'
        );
    END IF;
    PERFORM refuse_key(p_ord, p_job, '', c_known) WHERE p_job - c_known <> '{}';
    j.task := given_text(p_ord, 'task', given(p_job, 'task'), 1);
    IF j.task IS NULL THEN
        PERFORM refuse_job(p_ord, 'expected a task, got none', 'Give the name that the app knows it by: {"task": "shop.mail"}.');
    END IF;
    IF p_job ? 'id' THEN
        v_text := replace(given_text(p_ord, 'id', given(p_job, 'id'), 1), '-', '');
        IF v_text !~ '^[0-9a-fA-F]{32}$' THEN
            PERFORM refuse_job(p_ord, format('id: expected a UUID, got %s', shown(p_job -> 'id')), NULL);
        END IF;
        j.id := v_text::uuid;
    END IF;
    IF j.id IS NULL THEN
        j.id := new_id(p_now / 1000 * 4096 + p_now % 1000 * 4096 / 1000 + p_ord - 1);
    END IF;
    queue := coalesce(given_text(p_ord, 'queue', given(p_job, 'queue'), 1), 'default');
    PERFORM refuse_control(queue);
    j.tenant := coalesce(given_text(p_ord, 'tenant', given(p_job, 'tenant'), 0), '');
    j.key := given_text(p_ord, 'key', given(p_job, 'key'), 0);
    j.group_name := given_text(p_ord, 'group', given(p_job, 'group'), 0);
    j.priority := coalesce(given_number(p_ord, 'priority', given(p_job, 'priority'), -32768, 32767), 0);
    j.delay := coalesce(given_length(p_ord, 'delay', given(p_job, 'delay')), 0);
    j.run_at := given_instant(p_ord, 'run_at', given(p_job, 'run_at'), p_now);
    IF j.run_at IS NOT NULL AND given(p_job, 'delay') IS NOT NULL THEN
        PERFORM refuse_job(p_ord, 'expected run_at or delay, got both', NULL);
    END IF;
    j.expires := given_length(p_ord, 'expires', given(p_job, 'expires'));
    j.timeout := given_length(p_ord, 'timeout', given(p_job, 'timeout'));
    j.result_ttl := given_length(p_ord, 'result_ttl', given(p_job, 'result_ttl'));
    j.max_attempts := given_number(p_ord, 'max_attempts', given(p_job, 'max_attempts'), 1, 2147483647);
    v_text := coalesce(given_text(p_ord, 'on_failed', given(p_job, 'on_failed'), 0), 'run');
    IF v_text NOT IN ('run', 'return') THEN
        PERFORM refuse_job(p_ord, format('on_failed: expected "run" or "return", got %s', shown(p_job -> 'on_failed')), NULL);
    END IF;
    j.hold_failed := v_text = 'return';
    v_text := given_text(p_ord, 'unique', given(p_job, 'unique'), 0);
    IF v_text NOT IN ('until done', 'while pending') THEN
        PERFORM refuse_job(
            p_ord, format('unique: expected "until done" or "while pending", got %s', shown(p_job -> 'unique')),
            'For a time, give that as result_ttl.'
        );
    END IF;
    j.key_until := CASE v_text WHEN 'until done' THEN 1 WHEN 'while pending' THEN 2 ELSE 0 END;
    IF p_job ? 'on_duplicate' THEN
        v_text := coalesce(given_text(p_ord, 'on_duplicate', given(p_job, 'on_duplicate'), 0), 'keep');
        j.replaces := array_position(ARRAY['keep', 'replace arguments', 'replace time', 'replace'], v_text) - 1;
        IF j.replaces IS NULL THEN
            PERFORM refuse_job(
                p_ord, format('on_duplicate: expected "keep", "replace", "replace arguments" or "replace time", got %s', shown(p_job -> 'on_duplicate')),
                NULL
            );
        END IF;
    END IF;
    IF p_job ? 'cells' THEN
        IF jsonb_typeof(p_job -> 'cells') <> 'object' THEN
            PERFORM refuse_job(p_ord, format('cells: expected an object, got %s', shown(p_job -> 'cells')), NULL);
        END IF;
        PERFORM refuse_key(p_ord, p_job -> 'cells', 'cells: ', c_cells) WHERE (p_job -> 'cells') - c_cells <> '{}';
        j.parameters := given_cell(p_ord, 'parameters', given(p_job -> 'cells', 'parameters'));
        j.vm_state := given_cell(p_ord, 'vm_state', given(p_job -> 'cells', 'vm_state'));
        j.metadata := given_cell(p_ord, 'metadata', given(p_job -> 'cells', 'metadata'));
        j.blob := given_cell(p_ord, 'blob', given(p_job -> 'cells', 'blob'));
        j.headers := given_cell(p_ord, 'headers', given(p_job -> 'cells', 'headers'));
        IF j.parameters IS NOT NULL AND given(p_job, 'args') IS NOT NULL
            OR j.headers IS NOT NULL AND given(p_job, 'headers') IS NOT NULL
        THEN
            PERFORM refuse_job(p_ord, 'expected args and headers as they are or as cells, got both', NULL);
        END IF;
    END IF;
    j.parameters := coalesce(given_parameters(p_ord, given(p_job, 'args')), j.parameters);
    j.headers := coalesce(given_headers(p_ord, given(p_job, 'headers')), j.headers);
    IF greatest(
        octet_length(j.parameters), octet_length(j.vm_state), octet_length(j.metadata), octet_length(j.blob)
    ) > 67108864 THEN
        PERFORM refuse_job(p_ord, 'expected at most 64 MB of arguments', 'Keep large data elsewhere and pass a reference.');
    END IF;
END $$;

-- Hints of transactions that may last. Commits with a NOTIFY run one after the other in the whole cluster, and each
-- waits for the disk, so there should be few. A hint is therefore a row, and one listener looks for rows several times
-- a second (``relay_v1``), as long as more come. Only while no listener does, or it may be about to stop, one
-- transaction at a time sends its hints itself, and wakes a listener.
CREATE TABLE bells (
    topic text NOT NULL,
    id uuid
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- The listener that looks for bells, and until when others can rely on it. Transactions from ``ends`` on do not.
CREATE TABLE relay (
    sole boolean NOT NULL DEFAULT true CONSTRAINT relay_pkey PRIMARY KEY CHECK (sole),
    holder text NOT NULL DEFAULT '',
    until bigint NOT NULL DEFAULT 0,
    rung_at bigint NOT NULL DEFAULT 0,
    ends xid8
) WITH (fillfactor = 10);

-- The payload of a hint: the id of the job that ended; or, for a queue, how many steps brought jobs, and the
-- transaction id, which decides which listener looks first.
CREATE FUNCTION hint_note(p_id uuid, p_steps bigint) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN p_id IS NOT NULL THEN replace(p_id::text, '-', '') ELSE p_steps || '.' || pg_current_xact_id()::text END
$$;

-- Send hints when this transaction commits, or soon after.
CREATE FUNCTION ring(p_topics text[], p_ids uuid[]) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM relay AS r WHERE r.until > now_us()) THEN
        PERFORM 1 FROM locks AS l WHERE l.name = ANY ('{bell 0,bell 1,bell 2,bell 3}')  -- locks_pkey
        LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            PERFORM pg_notify(channel('bells'), '');
            PERFORM pg_notify(channel(n.topic), hint_note(n.id, 1)) FROM unnest(p_topics, p_ids) AS n (topic, id);
            RETURN;
        END IF;
    END IF;
    INSERT INTO bells (topic, id) SELECT * FROM unnest(p_topics, p_ids);
END $$;

-- Send the hints of others. Returns whether to go on. One listener does this at a time, while hints come and for a
-- moment after; then it says so, and stays until all transactions have ended that do not know it.
CREATE FUNCTION relay_v1(p_holder text) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c_lasts CONSTANT bigint := 2000000;
    v_now CONSTANT bigint := now_us();
    v_rung boolean;
    r relay;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO relay DEFAULT VALUES ON CONFLICT DO NOTHING;
    SELECT x.* INTO r FROM relay AS x FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR (r.holder <> p_holder AND r.until > v_now) THEN
        RETURN false;
    END IF;
    WITH few AS MATERIALIZED (
        SELECT b.ctid AS place FROM bells AS b LIMIT 1000 FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM bells AS b USING few AS f WHERE b.ctid = f.place RETURNING b.topic, b.id
    ), sent AS (
        SELECT pg_notify(channel(g.topic), hint_note(g.id, g.steps))
        FROM (SELECT g.topic, g.id, count(*) AS steps FROM gone AS g GROUP BY g.topic, g.id) AS g
    )
    SELECT count(*) > 0 INTO v_rung FROM sent;
    IF r.holder <> p_holder THEN  -- other listeners need not ask
        PERFORM pg_notify(channel('bells'), p_holder);
    END IF;
    IF v_rung OR r.holder <> p_holder THEN
        r.ends := NULL;
        r.rung_at := v_now;
        r.until := CASE WHEN r.until < v_now + c_lasts / 2 THEN v_now + c_lasts ELSE r.until END;
    ELSIF r.ends IS NULL AND r.rung_at < v_now - c_lasts THEN
        r.ends := pg_snapshot_xmax(pg_current_snapshot());
        r.until := 0;
    ELSIF r.ends <= pg_snapshot_xmin(pg_current_snapshot()) THEN
        p_holder := '';
    ELSIF r.ends IS NULL AND r.until < v_now + c_lasts / 2 THEN
        r.until := v_now + c_lasts;
    END IF;
    UPDATE relay AS x SET holder = p_holder, until = r.until, rung_at = r.rung_at, ends = r.ends
    WHERE (x.holder, x.until, x.ends) IS DISTINCT FROM (p_holder, r.until, r.ends) OR v_rung;
    RETURN p_holder <> '';
END $$;

-- Store jobs in the caller's transaction; answer each, in order. Workers get their hint when it commits, or within a
-- tenth of a second. ``p_strict``: jobs that do not fit into the depth of their queue raise an error; otherwise they
-- are answered as full. ``p_scoped``: their keys belong to their tenants.
CREATE FUNCTION enqueue_jobs(p_jobs jsonb, p_strict boolean, p_scoped boolean)
RETURNS TABLE (ord integer, id uuid, status text, state text, attempt integer, result bytea)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := now_us();
    v_jobs jsonb := CASE jsonb_typeof(p_jobs) WHEN 'object' THEN jsonb_build_array(p_jobs) ELSE p_jobs END;
    v_names text[] := '{}';
    v_rows job_row[] := '{}';
    v_woken text[] := '{}';
    v_said text;
    v_hint text;
    j job_row;
    r record;
BEGIN
    IF v_jobs IS NULL OR jsonb_typeof(v_jobs) <> 'array' THEN
        RAISE EXCEPTION 'expected a job or an array of jobs, got %', coalesce(shown(v_jobs), 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give at least a task: {"task": "shop.mail"}.';
    END IF;
    IF jsonb_array_length(v_jobs) > 10000 THEN
        RAISE EXCEPTION 'expected at most 10000 jobs, got %; nothing was stored', jsonb_array_length(v_jobs)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Call it several times in one transaction.';
    END IF;
    -- Raised again from here, an error about a job comes without a long context.
    BEGIN
        FOR r IN
            SELECT j.* FROM jsonb_array_elements(v_jobs) WITH ORDINALITY AS g (job, ord)
            CROSS JOIN LATERAL read_job(g.ord, g.job, v_now) AS j
        LOOP
            IF r.queue <> ALL (v_names) THEN
                v_names := v_names || r.queue;
            END IF;
            j := r.j;
            j.queue := array_position(v_names, r.queue);
            IF p_scoped THEN
                j := own_row(j, false);
            END IF;
            v_rows := v_rows || j;
        END LOOP;
    EXCEPTION WHEN invalid_parameter_value THEN
        GET STACKED DIAGNOSTICS v_said = MESSAGE_TEXT, v_hint = PG_EXCEPTION_HINT;
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = v_said, HINT = v_hint;
    END;
    FOR r IN
        SELECT n.ordinality AS ord, n.id, v_names[n.queue] AS queue, i.status, i.id AS other, i.state, i.attempt, i.result
        FROM unnest(v_rows) WITH ORDINALITY AS n
        LEFT JOIN insert_v1(NULL, v_names, v_rows, true, true) AS i ON i.ord = n.ordinality
        ORDER BY n.ordinality
    LOOP
        IF p_strict AND r.status = 4 THEN
            RAISE EXCEPTION 'job %: as many jobs wait as queue "%", or the store, takes; nothing was stored', r.ord, r.queue
                USING ERRCODE = 'LL002', HINT = 'Try again when some have run, or have the depth of its policy raised.';
        END IF;
        ord := r.ord;
        id := coalesce(r.other, r.id);
        status := coalesce((ARRAY['same', 'duplicate', 'done', 'full', 'replaced'])[r.status], 'new');
        state := coalesce(
            (ARRAY['available', 'running', 'paused', 'completed', 'cancelled', 'failed'])[r.state + 1], 'available'
        );
        attempt := coalesce(r.attempt, 0);
        result := r.result;
        RETURN NEXT;
        IF coalesce(r.status, 5) = 5 AND r.queue <> ALL (v_woken) THEN
            v_woken := v_woken || r.queue;
        END IF;
    END LOOP;
    IF v_woken <> '{}' THEN
        PERFORM ring(ARRAY(SELECT 'queue:' || q FROM unnest(v_woken) AS q), NULL);
    END IF;
END $$;

-- Complete a job in its handler's transaction. Unless the job is held under exactly this lease, the transaction fails:
-- who has lost a job must not write for it. ``p_floor``: of the Valkey that gave it out, if one did and it is known.
CREATE FUNCTION complete_bound_v1(
    p_id uuid, p_epoch bigint, p_holder text, p_result bytea, p_result_ttl bigint, p_floor bigint DEFAULT NULL
)
RETURNS text LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    a answer;
BEGIN
    PERFORM take_over(now_us(), coalesce(p_floor, s.floor), ARRAY[p_id], ARRAY[p_epoch], ARRAY[p_holder], '{0}')
    FROM streams AS s WHERE s.server IS NOT NULL;
    FOR a IN
        SELECT * FROM complete_v1(
            NULL, p_holder, ARRAY[p_id], ARRAY[p_epoch], ARRAY[p_result], ARRAY[p_result_ttl], true, true
        )
    LOOP
        IF NOT ((a.notice).settled IS NULL) THEN
            RAISE EXCEPTION 'job % is not held under this lease any more', p_id
                USING ERRCODE = 'LL001', HINT = 'Another worker has it, or it has ended: roll back.';
        END IF;
        PERFORM ring(ARRAY[((a.notice).told).topic], ARRAY[((a.notice).told).id]);
    END LOOP;
    RETURN 'completed';
END $$;
