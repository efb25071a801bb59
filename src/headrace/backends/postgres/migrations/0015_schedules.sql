-- What a schedule says lies in ``schedules``, and is written when it is saved; how far it is planned, in ``agenda``, which
-- every plan rewrites, and which is therefore narrow. Each schedule has a row in both. Whoever writes either has locked that
-- of ``agenda``, and who locks several goes in the order of their names, by code points.
CREATE TABLE schedules (
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    uid uuid NOT NULL,
    name text COLLATE "C" NOT NULL CONSTRAINT schedules_pkey PRIMARY KEY,
    queue text NOT NULL,
    tenant text NOT NULL,
    definition bytea NOT NULL
);
CREATE INDEX schedules_tenant ON schedules (tenant, name);
CREATE INDEX schedules_queue ON schedules (queue, name);
CREATE INDEX schedules_queue_tenant ON schedules (queue, tenant, name);
CREATE INDEX schedules_uid ON schedules (uid);

CREATE TABLE agenda (
    slot bigint,
    look_at bigint,
    last_slot bigint,
    runs bigint NOT NULL,
    version bigint NOT NULL,
    uid uuid NOT NULL,
    last_job uuid,
    rank smallint NOT NULL,
    bucket smallint NOT NULL,
    enabled boolean NOT NULL,
    name text COLLATE "C" NOT NULL CONSTRAINT agenda_pkey PRIMARY KEY
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX agenda_due ON agenda (rank, look_at, name) WHERE enabled AND look_at IS NOT NULL;

-- A schedule as it is told.
CREATE TYPE schedule_row AS (
    name text, uid uuid, queue text, definition bytea, tenant text, rank smallint, bucket smallint, enabled boolean,
    slot bigint, look_at bigint, runs bigint, last_slot bigint, last_job uuid, version bigint, created_at bigint,
    updated_at bigint
);

-- Make, change and remove schedules; the numbers of the changes that were done. ``p_mine`` are the tenants that the caller
-- is confined to, if it is: it must not come near the schedules and jobs of others.
CREATE FUNCTION save_schedules(
    p_mine text[], p_at bigint, p_names text[], p_expects bigint[], p_drops boolean[], p_uids uuid[], p_queues text[],
    p_definitions bytea[], p_tenants text[], p_ranks smallint[], p_buckets smallint[], p_enabled boolean[], p_slots bigint[],
    p_look_ats bigint[], p_runs bigint[], p_last_slots bigint[], p_last_jobs uuid[]
) RETURNS integer[] LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    c_last CONSTANT bigint := 7258118400000000;  -- the year 2200
    v_now CONSTANT bigint := clock(p_at);
    v_done integer[] := '{}';
    v_found boolean;
    v_last_job uuid;
    n record;
BEGIN
    PERFORM refuse(format('%s: expected %s to %s, got %s', x.what, x.least, x.most, coalesce(x.got::text, 'none')))
    FROM unnest(p_names, p_drops, p_queues, p_definitions, p_tenants, p_buckets, p_slots, p_look_ats, p_runs, p_last_slots) AS g (
        name, dropped, queue, definition, tenant, bucket, slot, look_at, runs, last_slot
    ) CROSS JOIN LATERAL (
        VALUES
            ('name, in bytes', octet_length(g.name)::bigint, 1, CASE WHEN p_mine IS NULL THEN 1024 ELSE 2049 END),
            ('queue, in bytes', octet_length(g.queue), 1, 1024), ('tenant, in bytes', octet_length(g.tenant), 0, 1024),
            ('definition, in bytes', octet_length(g.definition), 0, CASE WHEN p_mine IS NULL THEN 67108864 ELSE 262144 END),
            ('bucket', g.bucket, 0, 1023), ('slot', coalesce(g.slot, 0), 0, c_last), ('look_at', coalesce(g.look_at, 0), 0, c_last),
            ('runs', g.runs, 0, 1000000000000), ('last_slot', coalesce(g.last_slot, 0), 0, c_last)
    ) AS x (what, got, least, most)
    WHERE NOT g.dropped AND (x.got BETWEEN x.least AND x.most) IS NOT TRUE LIMIT 1;
    FOR n IN
        SELECT g.* FROM unnest(
            p_names, p_expects, p_drops, p_uids, p_queues, p_definitions, p_tenants, p_ranks, p_buckets, p_enabled, p_slots,
            p_look_ats, p_runs, p_last_slots, p_last_jobs
        ) WITH ORDINALITY AS g (
            name, expect, dropped, uid, queue, definition, tenant, rank, bucket, enabled, slot, look_at, runs, last_slot,
            last_job, ord
        )
        ORDER BY g.name COLLATE "C", g.ord
    LOOP
        IF n.expect = 0 THEN
            IF n.dropped THEN  -- agenda_pkey
                PERFORM 1 FROM agenda AS a WHERE a.name = n.name;
                v_found := NOT FOUND;
            ELSE
                INSERT INTO agenda (slot, look_at, last_slot, runs, version, uid, last_job, rank, bucket, enabled, name)
                VALUES (
                    n.slot, n.look_at, n.last_slot, n.runs, 1, n.uid, n.last_job, n.rank, n.bucket, n.enabled, n.name
                ) ON CONFLICT (name) DO NOTHING;
                v_found := FOUND;
            END IF;
            v_last_job := NULL;
        ELSE
            SELECT a.last_job INTO v_last_job FROM agenda AS a WHERE a.name = n.name AND a.version = n.expect FOR UPDATE;
            v_found := FOUND;
        END IF;
        IF p_mine IS NOT NULL THEN
            PERFORM check_own_schedule(p_mine, n.name, n.uid);
            IF v_found AND NOT n.dropped AND n.last_job IS DISTINCT FROM v_last_job THEN
                PERFORM refuse_tenant(format('role "%s" names a job that is not the last one of its schedule', caller()));
            END IF;
        END IF;
        CONTINUE WHEN NOT v_found;
        v_done := v_done || n.ord::integer;
        IF n.dropped THEN
            DELETE FROM agenda AS a WHERE a.name = n.name;
            DELETE FROM schedules AS s WHERE s.name = n.name;
        ELSIF n.expect = 0 THEN
            INSERT INTO schedules (created_at, updated_at, uid, name, queue, tenant, definition)
            VALUES (v_now, v_now, n.uid, n.name, n.queue, n.tenant, n.definition);
        ELSE
            UPDATE agenda AS a SET slot = n.slot, look_at = n.look_at, last_slot = n.last_slot, runs = n.runs,
                version = a.version + 1, uid = n.uid, last_job = n.last_job, rank = n.rank, bucket = n.bucket,
                enabled = n.enabled
            WHERE a.name = n.name;
            UPDATE schedules AS s SET updated_at = v_now, uid = n.uid, queue = n.queue, tenant = n.tenant,
                definition = n.definition
            WHERE s.name = n.name;
        END IF;
    END LOOP;
    RETURN v_done;
END $$;

CREATE FUNCTION check_own_schedule(p_mine text[], p_name text, p_uid uuid) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    PERFORM refuse_tenant(format('role "%s" is confined to other tenants than the one that has this schedule', caller()))
    FROM schedules AS s WHERE s.name = p_name AND (s.tenant = ANY (p_mine)) IS NOT TRUE;
    PERFORM refuse_tenant(format('role "%s" is confined to other tenants than the one that has this uid', caller()))
    FROM schedules AS s WHERE s.uid = p_uid AND (s.tenant = ANY (p_mine)) IS NOT TRUE;
END $$;

CREATE FUNCTION save_v1(
    p_at bigint, p_names text[], p_expects bigint[], p_drops boolean[], p_uids uuid[], p_queues text[],
    p_definitions bytea[], p_tenants text[], p_ranks smallint[], p_buckets smallint[], p_enabled boolean[], p_slots bigint[],
    p_look_ats bigint[], p_runs bigint[], p_last_slots bigint[], p_last_jobs uuid[]
) RETURNS integer[] LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT save_schedules(
        NULL, p_at, p_names, p_expects, p_drops, p_uids, p_queues, p_definitions, p_tenants, p_ranks, p_buckets, p_enabled,
        p_slots, p_look_ats, p_runs, p_last_slots, p_last_jobs
    )
$$;

-- The name under which a schedule is stored that a confined role calls so: its tenant's own; or one that somebody else has made
-- for a tenant of its.
CREATE FUNCTION own_schedule(p_mine text[], p_tenant text, p_name text) RETURNS text LANGUAGE sql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT coalesce(
        (
            SELECT s.name FROM schedules AS s  -- schedules_pkey
            WHERE s.name = ANY (ARRAY(SELECT key_scope(t) || p_name FROM unnest(p_mine) AS t) || p_name) AND s.tenant = ANY (p_mine)
            ORDER BY s.name = p_name, s.tenant <> p_tenant, s.name LIMIT 1
        ),
        key_scope(p_tenant) || p_name
    )
$$;

-- ``save_v1`` for a role that is confined. It does not get in before the schedules of others.
CREATE FUNCTION own_save_v1(
    p_at bigint, p_names text[], p_expects bigint[], p_drops boolean[], p_uids uuid[], p_queues text[],
    p_definitions bytea[], p_tenants text[], p_ranks smallint[], p_buckets smallint[], p_enabled boolean[], p_slots bigint[],
    p_look_ats bigint[], p_runs bigint[], p_last_slots bigint[], p_last_jobs uuid[]
) RETURNS integer[] LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_mine CONSTANT text[] := own_tenants();
BEGIN
    PERFORM refuse_tenant(format('role "%s" is confined to other tenants than "%s"', caller(), n.tenant))
    FROM unnest(p_tenants, p_drops) AS n (tenant, dropped)
    WHERE NOT n.dropped AND (n.tenant = ANY (v_mine)) IS NOT TRUE LIMIT 1;
    PERFORM refuse(format('name: expected 1 to 1024 bytes in UTF-8, got %s', coalesce(octet_length(n)::text, 'none')))
    FROM unnest(p_names) AS n WHERE (octet_length(n) BETWEEN 1 AND 1024) IS NOT TRUE LIMIT 1;
    PERFORM refuse(format('rank: expected 0 or more of a role that is confined to tenants, got %s', r))
    FROM unnest(p_ranks) AS r WHERE r < 0 LIMIT 1;
    RETURN save_schedules(
        v_mine, NULL, ARRAY(
            SELECT own_schedule(v_mine, CASE WHEN n.dropped THEN v_mine[1] ELSE n.tenant END, n.name)
            FROM unnest(p_names, p_tenants, p_drops) WITH ORDINALITY AS n (name, tenant, dropped, ord) ORDER BY n.ord
        ), p_expects, p_drops, p_uids, p_queues, p_definitions, p_tenants, p_ranks, p_buckets, p_enabled,
        p_slots, p_look_ats, p_runs, p_last_slots, p_last_jobs
    );
END $$;

-- Schedules in the order of their names: those named, or all; of the caller's tenants, if ``p_mine`` says which. Planned anew
-- each time: by schedules_pkey, schedules_tenant or schedules_queue, as is asked for; agenda_pkey.
CREATE FUNCTION find_schedules(p_mine text[], p_names text[], p_tenant text, p_queue text, p_after text, p_limit integer)
RETURNS SETOF schedule_row LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_custom_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT
        s.name::text, a.uid, s.queue, s.definition, s.tenant, a.rank, a.bucket, a.enabled, a.slot, a.look_at, a.runs,
        a.last_slot, a.last_job, a.version, s.created_at, s.updated_at
    FROM schedules AS s JOIN agenda AS a ON a.name = ANY (ARRAY[s.name])
    WHERE (p_names IS NULL OR s.name = ANY (p_names)) AND (p_tenant IS NULL OR s.tenant = p_tenant)
        AND (p_queue IS NULL OR s.queue = p_queue) AND (p_after IS NULL OR s.name > p_after)
        AND (p_mine IS NULL OR s.tenant = ANY (p_mine))
    ORDER BY s.name LIMIT p_limit;
END $$;

CREATE FUNCTION find_v1(p_names text[], p_tenant text, p_queue text, p_after text, p_limit integer)
RETURNS SETOF schedule_row LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT * FROM find_schedules(NULL, p_names, p_tenant, p_queue, p_after, p_limit)
$$;

-- The stretches of names in which a role that is confined to these tenants sees an order: what is scoped under one of them, from
-- ``p_after`` on without that scope, and what lies between the scopes. ``high`` does not belong to it.
CREATE FUNCTION stretches(p_mine text[], p_after text) RETURNS TABLE (low text, high text)
LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT AS $$
    WITH scopes AS (
        SELECT key_scope(t) COLLATE "C" AS low, (left(key_scope(t), -1) || '0') COLLATE "C" AS high FROM unnest(p_mine) AS t  -- 0 follows /
    ), start AS (  -- the first name beyond it
        SELECT coalesce(p_after || chr(1), '') COLLATE "C" AS name
    )
    SELECT s.low || n.name, s.high FROM scopes AS s CROSS JOIN start AS n
    UNION ALL
    SELECT greatest(g.low, n.name), g.high FROM (
        SELECT coalesce(lag(s.high) OVER (ORDER BY s.high), '') AS low, s.low AS high
        FROM (SELECT s.* FROM scopes AS s UNION ALL SELECT repeat(chr(1114111), 1000), repeat(chr(1114111), 1000)) AS s
    ) AS g CROSS JOIN start AS n WHERE g.high > n.name
$$;

-- The names of the first schedules of these tenants that a role which is confined to them sees, in its order; of each stretch and tenant no
-- more are looked at than asked for.
CREATE FUNCTION own_names(p_mine text[], p_tenant text, p_queue text, p_after text, p_limit integer) RETURNS text[]
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN ARRAY(  -- schedules_tenant, or schedules_queue_tenant
        SELECT x.name FROM unnest(p_mine) AS t (tenant) CROSS JOIN stretches(p_mine, p_after) AS r CROSS JOIN LATERAL (
            SELECT s.name FROM schedules AS s
            WHERE s.tenant = t.tenant AND (p_queue IS NULL OR s.queue = p_queue) AND s.name >= r.low AND s.name < r.high
            ORDER BY s.name LIMIT p_limit
        ) AS x
        WHERE p_tenant IS NULL OR t.tenant = p_tenant ORDER BY unscoped(p_mine, x.name) COLLATE "C" LIMIT p_limit
    );
END $$;

CREATE FUNCTION own_find_v1(p_names text[], p_tenant text, p_queue text, p_after text, p_limit integer)
RETURNS SETOF schedule_row LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT
        n.name, f.uid, f.queue, f.definition, f.tenant, f.rank, f.bucket, f.enabled, f.slot, f.look_at, f.runs, f.last_slot,
        f.last_job, f.version, f.created_at, f.updated_at
    FROM own_tenants() AS o (mine)
    CROSS JOIN LATERAL find_schedules(
        o.mine, CASE
            WHEN p_names IS NULL THEN own_names(o.mine, p_tenant, p_queue, p_after, p_limit)
            ELSE p_names || ARRAY(SELECT key_scope(t) || n FROM unnest(o.mine) AS t CROSS JOIN unnest(p_names) AS n)
        END, p_tenant, p_queue, NULL, NULL
    ) AS f
    CROSS JOIN LATERAL unscoped(o.mine, f.name) AS n (name)
    WHERE p_after IS NULL OR n.name > p_after COLLATE "C" ORDER BY n.name COLLATE "C" LIMIT p_limit
$$;

-- The schedules that must be looked at, by (rank, look_at, name). The last row is none: it tells the clock, in
-- ``updated_at``, and, when the others are fewer than asked for, when the next one must be, in ``look_at``.
CREATE FUNCTION due_v1(p_at bigint, p_limit integer, p_shard integer, p_shards integer) RETURNS SETOF schedule_row
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_left integer := p_limit;
    v_got integer;
    v_rank smallint;
    v_later bigint;
    v_next bigint;
BEGIN
    WHILE v_left > 0 LOOP
        SELECT a.rank INTO v_rank FROM agenda AS a  -- agenda_due: the next rank in use
        WHERE a.enabled AND a.look_at IS NOT NULL AND a.rank > coalesce(v_rank, -32769) ORDER BY a.rank LIMIT 1;
        EXIT WHEN NOT FOUND;
        RETURN QUERY
        WITH head AS MATERIALIZED (  -- agenda_due; schedules_pkey
            SELECT a.* FROM agenda AS a
            WHERE a.enabled AND a.rank = v_rank AND a.look_at <= v_now AND a.bucket % p_shards = p_shard
            ORDER BY a.rank, a.look_at, a.name LIMIT v_left
        )
        SELECT
            h.name::text, h.uid, s.queue, s.definition, s.tenant, h.rank, h.bucket, h.enabled, h.slot, h.look_at, h.runs,
            h.last_slot, h.last_job, h.version, s.created_at, s.updated_at
        FROM head AS h JOIN schedules AS s ON s.name = ANY (ARRAY[h.name])
        ORDER BY h.look_at, h.name;
        GET DIAGNOSTICS v_got = ROW_COUNT;
        v_left := v_left - v_got;
        EXIT WHEN v_left <= 0;
        SELECT a.look_at INTO v_later FROM agenda AS a  -- agenda_due
        WHERE a.enabled AND a.rank = v_rank AND a.look_at > v_now AND a.bucket % p_shards = p_shard
        ORDER BY a.rank, a.look_at LIMIT 1;
        v_next := least(v_next, v_later);
    END LOOP;
    RETURN NEXT (
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, CASE WHEN v_left > 0 THEN v_next END, NULL, NULL, NULL, NULL,
        NULL, v_now
    )::schedule_row;
END $$;

-- A role that is confined plans for nobody: it is told the time.
CREATE FUNCTION own_due_v1(p_at bigint, p_limit integer, p_shard integer, p_shards integer) RETURNS SETOF schedule_row
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT * FROM due_v1(p_at, 0, p_shard, p_shards)
$$;
