-- Who may do what. No role has rights on tables: a role may call certain functions, which act with the rights of their
-- owner. A producer may also save schedules, which enqueue later, and plan them. A new function or view for clients
-- is added here, and its migration ends with ``SELECT seal()``.
CREATE VIEW rights (part, name) AS
WITH own (part, names) AS (
    VALUES
        ('producer', ARRAY[
            'migrations', 'insert_v1', 'insert_one_v1', 'enqueue_v1', 'ask_v1', 'fetch_v1', 'read_parts_v1',
            'save_v1', 'find_v1', 'due_v1', 'plan_v1', 'history_v1', 'documents_v1', 'usage_v1',
            'sources_v1', 'positions_v1', 'advance_v1',
            'sheets_v1', 'walk_sheets_v1', 'write_sheets_v1', 'tally_sheets_v1',
            'name_streams_v1', 'in_charge_v1', 'workers_of_v1', 'oldest_waiting_v1', 'delayed_v1'
        ]),
        ('worker', ARRAY[
            'claim_v1', 'complete_and_claim_v1', 'complete_v1', 'complete_bound_v1', 'finish_v1', 'renew_v1', 'reap_v1',
            'set_aside_v1', 'seal_v1', 'relay_v1', 'ranks_v1', 'note_v1', 'send_parts_v1', 'find_documents_v1',
            'due_sheets_v1', 'raise_floor_v1', 'watch_streams_v1', 'take_over_v1', 'complete_given_v1', 'finish_given_v1',
            'open_queue_v1', 'shut_queue_v1', 'candidates_v1', 'feed_v1'
        ]),
        ('janitor', ARRAY[
            'sweep_v1', 'sweep_named_v1', 'sweep_results_v1', 'sweep_keys_v1', 'sweep_tenants_v1', 'sweep_ticks_v1',
            'begin_duty_v1', 'end_duty_v1', 'lockers_v1', 'make_day_v1', 'drop_day_v1', 'settle_day_v1',
            'forget_queues_v1', 'ends_v1', 'ending_v1', 'forget_removals_v1', 'referring_v1', 'swap_cells_v1', 'reserve_v1',
            'ask_v1', 'alter_v1', 'pause_v1', 'save_policy_v1', 'limit_tenant_v1', 'put_document_v1', 'write_journal_v1',
            'open_leg_v1', 'close_leg_v1', 'depart_v1', 'parcels_v1', 'arrive_v1', 'confirm_v1', 'ledger_v1',
            'held_keys_v1', 'hold_keys_v1', 'add_ticks_v1', 'settling_v1'
        ]),
        ('reader', ARRAY[
            'migrations', 'jobs_v1', 'queues_v1', 'own_tenants', 'failure_text', 'fetch_v1', 'matching_v1', 'read_parts_v1',
            'stats_v1', 'places_v1', 'usage_v1', 'workers_v1', 'removals_v1', 'policies_v1', 'tenants_v1', 'group_v1',
            'find_v1', 'due_v1', 'history_v1', 'documents_v1', 'find_documents_v1', 'read_journal_v1',
            'sheets_v1', 'walk_sheets_v1', 'tally_sheets_v1',
            'name_streams_v1', 'in_charge_v1', 'workers_of_v1', 'oldest_waiting_v1', 'delayed_v1'
        ]),
        ('confined producer', ARRAY[
            'migrations', 'own_insert_v1', 'enqueue_v1', 'ask_v1', 'own_fetch_v1',
            'own_save_v1', 'own_find_v1', 'own_due_v1', 'own_plan_v1', 'own_history_v1',
            'name_streams_v1', 'in_charge_v1', 'workers_of_v1'
        ]),
        ('confined reader', ARRAY[
            'migrations', 'jobs_v1', 'own_tenants', 'failure_text', 'own_fetch_v1', 'own_matching_v1',
            'own_find_v1', 'own_due_v1', 'own_history_v1',
            'name_streams_v1', 'in_charge_v1', 'workers_of_v1'
        ])
)
SELECT p.part, n.name
FROM (
    SELECT o.part, o.names FROM own AS o
    UNION ALL SELECT 'worker', o.names FROM own AS o WHERE o.part = 'producer'
    UNION ALL SELECT 'janitor', o.names FROM own AS o WHERE o.part = 'reader'
) AS p CROSS JOIN unnest(p.names) AS n (name);

-- Which parts a role has, confined or not, so that it also gets what later migrations add to them.
CREATE TABLE granted (
    role regrole NOT NULL,
    part text NOT NULL,
    CONSTRAINT granted_pkey PRIMARY KEY (role, part)
);

-- The tenants of confined roles.
CREATE TABLE tenant_roles (
    role regrole NOT NULL,
    tenant text NOT NULL,
    CONSTRAINT tenant_roles_pkey PRIMARY KEY (role, tenant)
);

-- The tenants whose jobs the caller may see; NULL: all. A role that may call ``fetch_v1`` sees everything; one that may
-- not, and has no tenants, sees nothing.
CREATE FUNCTION own_tenants() RETURNS text[] LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    v_all CONSTANT regproc := 'fetch_v1';
BEGIN
    IF has_function_privilege(caller(), v_all, 'EXECUTE') THEN
        RETURN NULL;
    END IF;
    RETURN ARRAY(SELECT t.tenant FROM tenant_roles AS t WHERE pg_has_role(caller(), t.role, 'USAGE'));
END $$;

CREATE FUNCTION refuse_tenant(p_problem text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = format('%s; nothing was stored', p_problem),
        HINT = 'headrace migrate grant producer ROLE --tenant NAME, once for each tenant that it is to have';
END $$;

-- The names of headers, and their values. An error for anything else than clients write: a map of texts in MessagePack.
CREATE FUNCTION headers_of(p_headers bytea) RETURNS TABLE (name text, value text) LANGUAGE plpgsql IMMUTABLE
SET search_path FROM CURRENT AS $$
DECLARE
    v_head CONSTANT integer := get_byte(p_headers, 0);
    v_at integer := CASE WHEN v_head = 222 THEN 3 ELSE 1 END;
BEGIN
    IF v_head <> 222 AND v_head NOT BETWEEN 128 AND 143 THEN
        RAISE data_exception;
    END IF;
    FOR n IN 1..CASE WHEN v_head = 222 THEN get_byte(p_headers, 1) * 256 + get_byte(p_headers, 2) ELSE v_head - 128 END LOOP
        SELECT x.value, x.after INTO name, v_at FROM packed_value(p_headers, v_at) AS x;
        SELECT x.value, x.after INTO value, v_at FROM packed_value(p_headers, v_at) AS x;
        IF name IS NULL OR value IS NULL THEN
            RAISE data_exception;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Refuse headers that only Headrace writes, but for those with these values, and the one that says where a job came from.
CREATE FUNCTION refuse_reserved(p_headers bytea, p_allowed text[] DEFAULT '{}') RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    v_told text;
BEGIN
    IF position('headrace-'::bytea IN p_headers) > 0 THEN
        BEGIN
            SELECT h.name INTO v_told FROM headers_of(p_headers) AS h
            WHERE starts_with(h.name, 'headrace-') AND h.name <> 'headrace-source' AND h.name || ' ' || h.value <> ALL (p_allowed) LIMIT 1;
        EXCEPTION WHEN data_exception THEN
            v_told := 'headers that cannot be read';
        END;
        PERFORM refuse(format('headers: names that begin with headrace- are reserved, got %s', v_told)) WHERE v_told IS NOT NULL;
    END IF;
END $$;

-- The group of a confined role's job: with the prefix of its tenant, so that nobody else's jobs wait for it.
CREATE FUNCTION scoped_group(p_tenant text, p_group text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path FROM CURRENT AS $$
    SELECT CASE WHEN starts_with(p_group, key_scope(p_tenant)) THEN p_group ELSE key_scope(p_tenant) || p_group END
$$;

-- A row of a confined role, as it is stored. Its key gets the prefix of its tenant, so that it can neither take nor probe
-- those of others; so does its group. A claim always takes the first job that it meets, and one row must not fill a
-- worker's memory: all its cells together weigh no more than one may. ``p_fires``: it is of a schedule, whose headers
-- ``check_own_plans`` has seen.
CREATE FUNCTION own_row(r job_row, p_fires boolean) RETURNS job_row LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c_most CONSTANT integer := 67108864;
BEGIN
    IF octet_length(r.key) > 1024 OR octet_length(r.group_name) > 1024 THEN
        PERFORM refuse(format('key and group: expected at most 1024 bytes in UTF-8, got %s', greatest(octet_length(r.key), octet_length(r.group_name))));
    ELSIF weight(r.parameters, r.vm_state, r.metadata, r.blob) > c_most THEN
        PERFORM refuse(format('cells: expected at most %s bytes of a role that is confined to tenants, got %s', c_most,
            weight(r.parameters, r.vm_state, r.metadata, r.blob)));
    ELSIF NOT p_fires THEN
        PERFORM refuse_reserved(r.headers);
    END IF;
    r.key := key_scope(r.tenant) || r.key;
    r.group_name := scoped_group(r.tenant, r.group_name);
    RETURN r;
END $$;

-- Check the rows of a confined role: they must be for its tenants, within ten years (as clients check), and use the
-- queues that it names.
CREATE FUNCTION own_rows(p_mine text[], p_names text[], p_rows job_row[], p_fires boolean DEFAULT false) RETURNS job_row[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c_long CONSTANT bigint := 316224000000000;
    v_now CONSTANT bigint := now_us();
    v_rows job_row[] := '{}';
    r job_row;
BEGIN
    IF (cardinality(p_names) <= cardinality(p_rows)) IS NOT TRUE THEN
        PERFORM refuse(format('expected at most as many queues as jobs, got %s for %s', cardinality(p_names), cardinality(p_rows)));
    END IF;
    PERFORM refuse_control(n) FROM unnest(p_names) AS n;
    FOREACH r IN ARRAY p_rows LOOP
        IF (r.tenant = ANY (p_mine)) IS NOT TRUE THEN
            PERFORM refuse_tenant(format('role "%s" is confined to other tenants than "%s"', caller(), r.tenant));
        ELSIF greatest(r.delay, r.run_at - CASE WHEN r.run_at > 0 THEN v_now ELSE 0 END, r.expires, r.timeout, r.result_ttl) > c_long THEN
            PERFORM refuse(format('%s: expected at most ten years, got %s microseconds', n.name, n.value)) FROM (
                VALUES ('delay', r.delay), ('run_at', greatest(r.run_at, 0) - v_now), ('expires', r.expires), ('timeout', r.timeout),
                    ('result_ttl', r.result_ttl)
            ) AS n (name, value) WHERE n.value > c_long LIMIT 1;
        END IF;
        v_rows := v_rows || own_row(r, p_fires);
    END LOOP;
    RETURN v_rows;
END $$;

-- A key, a group, or the name of a schedule, as a confined role sees it.
CREATE FUNCTION unscoped(p_mine text[], p_name text) RETURNS text LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    SELECT coalesce((
        SELECT substr(p_name, length(key_scope(t)) + 1) FROM unnest(p_mine) AS t WHERE starts_with(p_name, key_scope(t))
    ), p_name)
$$;

-- ``insert_v1`` for a confined role. It cannot exceed the depth, nor say when groups are called. Its transaction may
-- last as long as it likes, so nothing is locked that others wait for.
CREATE FUNCTION own_insert_v1(
    p_at bigint, p_names text[], p_rows job_row[], p_gated boolean DEFAULT false, p_bound boolean DEFAULT false,
    p_calls boolean DEFAULT true, p_new boolean DEFAULT false
) RETURNS SETOF inserted_row LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_mine CONSTANT text[] := own_tenants();
    i inserted_row;
BEGIN
    FOR i IN
        SELECT * FROM insert_v1(NULL, p_names, own_rows(v_mine, p_names, p_rows), true, true, p_new => p_new)
    LOOP
        PERFORM check_own(i.id, v_mine);
        i.room := NULL;  -- it must not learn how many wait
        RETURN NEXT i;
    END LOOP;
END $$;

-- Refuse an answer about a job of another tenant.
CREATE FUNCTION check_own(p_id uuid, p_tenants text[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM refuse_tenant(format('role "%s" is confined to other tenants than the one that has this id', caller()))
    FROM jobs AS j WHERE j.id = p_id AND (j.tenant = ANY (p_tenants)) IS NOT TRUE;
END $$;

-- People write this name into triggers, so confined roles call it too.
CREATE FUNCTION enqueue_v1(p_jobs jsonb, p_strict boolean DEFAULT true)
RETURNS TABLE (ord integer, id uuid, status text, state text, attempt integer, result bytea)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_mine CONSTANT text[] := own_tenants();
    v_other text;
BEGIN
    IF v_mine IS NULL THEN
        RETURN QUERY SELECT * FROM enqueue_jobs(p_jobs, p_strict, false);
        RETURN;
    END IF;
    -- ``enqueue_jobs`` refuses what is no job or no name.
    SELECT t INTO v_other
    FROM jsonb_array_elements(CASE jsonb_typeof(p_jobs) WHEN 'array' THEN p_jobs ELSE jsonb_build_array(p_jobs) END) AS j
    CROSS JOIN LATERAL coalesce(j ->> 'tenant', '') AS t
    WHERE jsonb_typeof(j) = 'object' AND coalesce(jsonb_typeof(j -> 'tenant'), 'null') IN ('string', 'null')
        AND (t = ANY (v_mine)) IS NOT TRUE
    LIMIT 1;
    IF v_other IS NOT NULL THEN
        PERFORM refuse_tenant(format('role "%s" is confined to other tenants than "%s"', caller(), v_other));
    END IF;
    FOR ord, id, status, state, attempt, result IN SELECT * FROM enqueue_jobs(p_jobs, p_strict, true) LOOP
        PERFORM check_own(id, v_mine);
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION enqueue_v1(jsonb, boolean) IS
'Store jobs in this transaction: an object, or an array of at most 10000. Of two values under one key the last counts.

task                     text, required: the name that the app knows the task by
queue                    text; ''default'' unless given
args                     object: arguments by name
id                       UUID; made here unless given
key, tenant, group       text
priority                 whole number; lower ones are run first
delay, expires, timeout, result_ttl
                         seconds as a number, or an interval as text
run_at                   instead of delay: a timestamp as text, with its time zone
max_attempts             whole number
headers                  object of texts
on_failed                ''run'' or ''return''
unique                   ''until done'' or ''while pending'': until when another job with this key counts
on_duplicate             ''keep'', ''replace'', ''replace arguments'' or ''replace time'' of a job that waits under this key
cells                    object: parameters, vm_state, metadata, blob, headers as clients write them, in base64

status is new, same (its id is stored already), duplicate (its key is taken) or done (the job that has its key is
complete, and its result is held). id, state, attempt and result are those of the stored job. Where one does not fit into the
depth of its queue, the error LL002 is raised; or, with false as the second argument, its status is full.';

-- The jobs that a confined role means by keys: first keys with its tenants' prefix, then those that others gave to
-- their jobs.
CREATE FUNCTION own_named(p_mine text[], p_queues text[], p_keys text[]) RETURNS TABLE (ord bigint, place bigint, id uuid)
LANGUAGE sql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
    SELECT n.ord, s.place, k.id
    FROM unnest(p_queues, p_keys) WITH ORDINALITY AS n (queue, key, ord)
    CROSS JOIN unnest(ARRAY(SELECT key_scope(t) FROM unnest(p_mine) AS t ORDER BY t) || ''::text) WITH ORDINALITY AS s (scope, place)
    LEFT JOIN queues AS q ON q.name = n.queue  -- queues_name_key, keys_pkey, jobs_pkey
    JOIN keys AS k ON k.qid = ANY (ARRAY[coalesce(q.qid, qid_of(n.queue))]) AND k.key = ANY (ARRAY[s.scope || n.key])
        AND k.alone_until IS NULL
    JOIN jobs AS j ON j.id = ANY (ARRAY[k.id]) AND j.tenant = ANY (p_mine)
    ORDER BY n.ord, s.place
$$;

-- ``fetch_v1`` for a confined role. If several jobs have one key, the first.
CREATE FUNCTION own_fetch_v1(
    p_at bigint, p_ids uuid[], p_queues text[], p_keys text[], p_want smallint, p_error boolean, p_result boolean
) RETURNS SETOF record_row LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_mine CONSTANT text[] := own_tenants();
    r record_row;
BEGIN
    FOR r IN
        SELECT f.* FROM fetch_v1(
            p_at, p_ids || ARRAY(
                SELECT (SELECT x.id FROM own_named(v_mine, ARRAY[n.queue], ARRAY[n.key]) AS x LIMIT 1)
                FROM unnest(p_queues, p_keys) WITH ORDINALITY AS n (queue, key, ord) ORDER BY n.ord
            ), '{}', '{}', p_want, p_error, p_result
        ) AS f WHERE f.tenant = ANY (v_mine) ORDER BY f.ord
    LOOP
        r.key := unscoped(v_mine, r.key);
        r.group_name := unscoped(v_mine, r.group_name);
        RETURN NEXT r;
    END LOOP;
END $$;

-- ``matching_v1`` for a confined role. Tenants are queried one by one, so that a limit counts only jobs that it may
-- see.
CREATE FUNCTION own_matching_v1(
    p_at bigint, p_named boolean, p_ids uuid[], p_key_queues text[], p_keys text[], p_queue text, p_tenant text, p_task text,
    p_states smallint[], p_older_than bigint, p_above uuid, p_below uuid, p_limit integer, p_newest boolean,
    p_unasked boolean, p_reason text DEFAULT NULL
) RETURNS TABLE (id uuid) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_mine CONSTANT text[] := own_tenants();
BEGIN
    IF p_named THEN
        RETURN QUERY
        SELECT m.id FROM matching_v1(
            p_at, true, p_ids || ARRAY(SELECT x.id FROM own_named(v_mine, p_key_queues, p_keys) AS x), '{}', '{}', p_queue,
            p_tenant, p_task, p_states, p_older_than, p_above, p_below, NULL, p_newest, p_unasked, p_reason
        ) WITH ORDINALITY AS m (id, ord) JOIN jobs AS j ON j.id = m.id
        WHERE j.tenant = ANY (v_mine) ORDER BY m.ord LIMIT CASE WHEN p_newest THEN p_limit END;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT m.id FROM unnest(v_mine) AS t CROSS JOIN LATERAL matching_v1(
        p_at, false, p_ids, p_key_queues, p_keys, p_queue, t, p_task, p_states, p_older_than, p_above, p_below, p_limit,
        p_newest, p_unasked, p_reason
    ) AS m
    WHERE p_tenant IS NULL OR t = p_tenant
    ORDER BY CASE WHEN p_newest THEN m.id END DESC, m.id LIMIT p_limit;
END $$;

-- What a producer may change: 1 cancel and 7 watch, for jobs that it names, or of its tenants if it is confined. Only
-- janitors may call ``alter_v1``.
CREATE FUNCTION ask_v1(
    p_at bigint, p_named boolean, p_ids uuid[], p_key_queues text[], p_keys text[], p_queue text, p_tenant text, p_task text,
    p_states smallint[], p_older_than bigint, p_above uuid, p_below uuid, p_limit integer, p_newest boolean,
    p_unasked boolean, p_kind integer, p_text text, p_reason text DEFAULT NULL
) RETURNS SETOF answer LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c_all CONSTANT regproc := 'alter_v1';
    v_mine CONSTANT text[] := own_tenants();
    v_ids uuid[];
    a answer;
    v_altered altered_row;
BEGIN
    IF (p_kind IN (1, 7)) IS NOT TRUE THEN
        RAISE EXCEPTION 'expected change 1 or 7, got %', p_kind USING ERRCODE = 'invalid_parameter_value';
    ELSIF (octet_length(p_text) BETWEEN CASE p_kind WHEN 7 THEN 1 ELSE 0 END AND 1024) IS NOT TRUE THEN
        PERFORM refuse(format('%s: expected at most 1024 bytes in UTF-8, got %s',
            CASE p_kind WHEN 7 THEN 'inbox' ELSE 'reason' END, coalesce(octet_length(p_text)::text, 'none')));
    END IF;
    IF v_mine IS NULL AND p_named IS NOT TRUE AND NOT has_function_privilege(caller(), c_all, 'EXECUTE') THEN
        RAISE EXCEPTION 'role "%" cancels only jobs that it names, by id or by key', caller()
            USING ERRCODE = 'insufficient_privilege', HINT = 'headrace migrate grant janitor ROLE lets it cancel all that match';
    END IF;
    IF v_mine IS NULL THEN
        v_ids := ARRAY(SELECT m.id FROM matching_v1(
            p_at, p_named, p_ids, p_key_queues, p_keys, p_queue, p_tenant, p_task, p_states, p_older_than, p_above, p_below,
            p_limit, p_newest, p_unasked, p_reason
        ) AS m);
    ELSE
        v_ids := ARRAY(SELECT m.id FROM own_matching_v1(
            p_at, p_named, p_ids, p_key_queues, p_keys, p_queue, p_tenant, p_task, p_states, p_older_than, p_above, p_below,
            p_limit, p_newest, p_unasked, p_reason
        ) AS m);
    END IF;
    FOR a IN
        SELECT * FROM alter_v1(
            p_at, v_ids, p_kind, p_text, NULL, ARRAY[0, 1, 2]::smallint[], NOT p_named, p_queue, p_states, v_mine IS NOT NULL
        )
    LOOP
        v_altered := (a.notice).altered;
        IF v_altered IS NULL THEN
            RETURN NEXT a;
        ELSE
            v_altered.key := unscoped(v_mine, v_altered.key);
            RETURN NEXT altered(v_altered);
        END IF;
    END LOOP;
END $$;

-- Give a role exactly the rights of its parts.
CREATE FUNCTION apply_rights(p_role regrole) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_schema CONSTANT regnamespace := quote_ident(current_schema());
    v_parts CONSTANT text[] := ARRAY(SELECT g.part FROM granted AS g WHERE g.role = p_role);
    r record;
BEGIN
    EXECUTE format(
        CASE WHEN v_parts = '{}' THEN 'REVOKE USAGE ON SCHEMA %s FROM %s' ELSE 'GRANT USAGE ON SCHEMA %s TO %s' END,
        v_schema, p_role
    );
    FOR r IN
        SELECT n.what, bool_or(x.part = ANY (v_parts)) AS has
        FROM (
            SELECT p.proname AS name, format('EXECUTE ON FUNCTION %s', p.oid::regprocedure) AS what
            FROM pg_proc AS p WHERE p.pronamespace = v_schema
            UNION ALL
            SELECT c.relname, format('SELECT ON TABLE %s', c.oid::regclass) FROM pg_class AS c WHERE c.relnamespace = v_schema
        ) AS n JOIN rights AS x ON x.name = n.name
        GROUP BY n.what
    LOOP
        EXECUTE format(CASE WHEN r.has THEN 'GRANT %s TO %s' ELSE 'REVOKE %s FROM %s' END, r.what, p_role);
    END LOOP;
END $$;

-- Make the functions in ``rights`` SECURITY DEFINER, with a search path in which nobody else can put anything
-- (temporary tables come last), and revoke them from PUBLIC. They run without JIT: many of their estimates are far too
-- high, as of partitions that are never looked at, and to compile a claim takes seconds.
CREATE FUNCTION seal() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_schema CONSTANT regnamespace := quote_ident(current_schema());
    v_function regprocedure;
    v_role regrole;
BEGIN
    LOCK TABLE granted IN SHARE ROW EXCLUSIVE MODE;
    FOR v_function IN
        SELECT p.oid FROM pg_proc AS p WHERE p.pronamespace = v_schema AND p.proname IN (SELECT r.name FROM rights AS r)
    LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = %s, pg_temp SET jit = off', v_function, v_schema);
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', v_function);
    END LOOP;
    FOR v_role IN SELECT DISTINCT g.role FROM granted AS g JOIN pg_roles AS r ON r.oid = g.role LOOP
        PERFORM apply_rights(v_role);
    END LOOP;
END $$;

-- Check a role that gets rights: it must exist, and not be the owner.
CREATE FUNCTION known_role(p_name text) RETURNS regrole LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    v_role CONSTANT oid := (SELECT r.oid FROM pg_roles AS r WHERE r.rolname = p_name);
    v_schema record;
BEGIN
    SELECT n.nspname AS name, c.relowner AS owner,
        EXISTS (SELECT 1 FROM aclexplode(n.nspacl) AS a WHERE a.grantee = 0 AND a.privilege_type = 'CREATE') AS open
    INTO v_schema
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = 'migrations'::regclass;
    IF v_role IS NULL THEN
        RAISE EXCEPTION 'there is no role "%"', p_name
            USING ERRCODE = 'invalid_parameter_value', HINT = format('CREATE ROLE %I LOGIN', p_name);
    ELSIF v_role = v_schema.owner THEN
        RAISE EXCEPTION 'role "%" owns the store, and may do everything', p_name USING ERRCODE = 'invalid_parameter_value';
    ELSIF v_schema.open THEN
        RAISE EXCEPTION 'everybody may create in schema "%", and so take over what functions there do', v_schema.name
            USING ERRCODE = 'invalid_parameter_value',
            HINT = format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', v_schema.name);
    END IF;
    RETURN v_role;
END $$;

-- Check that confined roles cannot reach the jobs of others, by themselves or through another role.
CREATE FUNCTION check_confined() RETURNS void LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    r record;
BEGIN
    SELECT c.role, x.role AS through, replace(x.part, 'confined ', '') AS part, s.rolsuper INTO r
    FROM (SELECT DISTINCT t.role FROM tenant_roles AS t) AS c
    JOIN pg_roles AS s ON s.oid = c.role
    LEFT JOIN granted AS x ON pg_has_role(c.role, x.role, 'MEMBER') AND x.part NOT IN ('confined producer', 'confined reader')
    WHERE x.role IS NOT NULL OR s.rolsuper
        OR pg_has_role(c.role, (SELECT o.relowner FROM pg_class AS o WHERE o.oid = 'migrations'::regclass), 'MEMBER')
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'role % cannot be confined to tenants: %', r.role, CASE
            WHEN r.rolsuper THEN 'it is a superuser'
            WHEN r.through IS NULL THEN 'it is a member of the owner of the store'
            WHEN r.part IN ('producer', 'reader') THEN format('it is a member of %s, which is not confined', r.through)
            WHEN r.through = r.role THEN format('a %s sees the jobs of all tenants', r.part)
            ELSE format('it is a member of %s, and a %s sees the jobs of all tenants', r.through, r.part)
        END USING ERRCODE = 'invalid_parameter_value', HINT = 'Only producers and readers can be confined.';
    END IF;
END $$;

-- Give a role a part: producer, worker, janitor or reader.
CREATE FUNCTION grant_v1(p_role text, p_to text) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_to CONSTANT regrole := known_role(p_to);
BEGIN
    IF (p_role IN ('producer', 'worker', 'janitor', 'reader')) IS NOT TRUE THEN
        RAISE EXCEPTION 'expected producer, worker, janitor or reader, got %', p_role USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOCK TABLE granted IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO granted (role, part)
    SELECT v_to, CASE
        WHEN EXISTS (SELECT 1 FROM tenant_roles AS t WHERE t.role = v_to)
            OR EXISTS (SELECT 1 FROM granted AS g WHERE g.role = v_to AND g.part LIKE 'confined %')
        THEN 'confined ' ELSE ''
    END || p_role
    ON CONFLICT DO NOTHING;
    PERFORM check_confined();
    PERFORM apply_rights(v_to);
END $$;

-- Take a part back.
CREATE FUNCTION revoke_v1(p_role text, p_to text) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_to CONSTANT regrole := known_role(p_to);
BEGIN
    LOCK TABLE granted IN SHARE ROW EXCLUSIVE MODE;
    DELETE FROM granted AS g WHERE g.role = v_to AND g.part IN (p_role, 'confined ' || p_role);
    PERFORM apply_rights(v_to);
END $$;

-- Confine a role to these tenants; NULL lifts it.
CREATE FUNCTION confine_v1(p_to text, p_tenants text[]) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_to CONSTANT regrole := known_role(p_to);
BEGIN
    IF cardinality(p_tenants) = 0 OR array_position(p_tenants, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'expected names of tenants, or NULL for all of them' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Keys get longer by that, and must fit into an index.
    PERFORM refuse(format('tenant: expected at most 1024 bytes in UTF-8, a / or %% counted as three, got %s', octet_length(key_scope(t))))
    FROM unnest(p_tenants) AS t WHERE octet_length(key_scope(t)) > 1025;
    LOCK TABLE granted IN SHARE ROW EXCLUSIVE MODE;
    DELETE FROM tenant_roles AS t WHERE t.role = v_to;
    INSERT INTO tenant_roles (role, tenant) SELECT DISTINCT v_to, t FROM unnest(p_tenants) AS t;
    UPDATE granted AS g SET part = CASE WHEN p_tenants IS NULL THEN '' ELSE 'confined ' END || replace(g.part, 'confined ', '')
    WHERE g.role = v_to;
    PERFORM check_confined();
    PERFORM apply_rights(v_to);
END $$;

SELECT seal();
