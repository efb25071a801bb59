-- A schedule has a row in ``schedules``, written when it is saved, and one in ``agenda``: how far it is planned,
-- rewritten by every plan and so kept narrow. To write either, lock the row of ``agenda`` first; several are locked in
-- the order of their names, by code points. ``scoped``: a confined role saved it last, so the groups of its jobs are those of
-- its tenant.
CREATE TABLE schedules (
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    uid uuid NOT NULL,
    name text COLLATE "C" NOT NULL CONSTRAINT schedules_pkey PRIMARY KEY,
    queue text NOT NULL,
    tenant text NOT NULL,
    scoped boolean NOT NULL DEFAULT false,
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
    plan_priority smallint NOT NULL,
    bucket smallint NOT NULL,
    enabled boolean NOT NULL,
    name text COLLATE "C" NOT NULL CONSTRAINT agenda_pkey PRIMARY KEY
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX agenda_due ON agenda (plan_priority, look_at, name) WHERE enabled AND look_at IS NOT NULL;

-- A schedule, as clients send it, with the version that is expected; and as it is returned.
CREATE TYPE schedule_row AS (
    name text, uid uuid, queue text, definition bytea, tenant text, plan_priority smallint, bucket smallint, enabled boolean,
    slot bigint, look_at bigint, runs bigint, last_slot bigint, last_job uuid, version bigint, created_at bigint,
    updated_at bigint
);

-- Make, change and remove schedules. Returns the numbers of the changes that were done. ``p_mine``: the tenants that
-- the caller is confined to; it must not reach the schedules and jobs of others, nor keep planners from them: it starts
-- no schedule in the past, and nothing of its own is looked at before what is due already.
CREATE FUNCTION save_schedules(p_mine text[], p_at bigint, p_schedules schedule_row[], p_drops boolean[]) RETURNS integer[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    c_last CONSTANT bigint := 7258118400000000;  -- the year 2200
    v_now CONSTANT bigint := clock(p_at);
    v_done integer[] := '{}';
    v_found boolean;
    v_last_job uuid;
    v_slot bigint;
    n record;
BEGIN
    PERFORM refuse(format('%s: expected %s to %s, got %s', x.what, x.least, x.most, coalesce(x.got::text, 'none')))
    FROM unnest(p_schedules) WITH ORDINALITY AS g CROSS JOIN LATERAL (
        VALUES
            ('name, in bytes', octet_length(g.name)::bigint, 1, CASE WHEN p_mine IS NULL THEN 1024 ELSE 2049 END),
            ('queue, in bytes', octet_length(g.queue), 1, 1024), ('tenant, in bytes', octet_length(g.tenant), 0, 1024),
            ('definition, in bytes', octet_length(g.definition), 0, CASE WHEN p_mine IS NULL THEN 67108864 ELSE 262144 END),
            ('bucket', g.bucket, 0, 1023), ('slot', coalesce(g.slot, 0), 0, c_last), ('look_at', coalesce(g.look_at, 0), 0, c_last),
            ('runs', g.runs, 0, 1000000000000), ('last_slot', coalesce(g.last_slot, 0), 0, c_last)
    ) AS x (what, got, least, most)
    WHERE p_drops[g.ordinality] IS NOT TRUE AND (x.got BETWEEN x.least AND x.most) IS NOT TRUE LIMIT 1;
    FOR n IN
        SELECT g.*, coalesce(p_drops[g.ordinality], false) AS dropped FROM unnest(p_schedules) WITH ORDINALITY AS g
        ORDER BY g.name COLLATE "C", g.ordinality
    LOOP
        IF p_mine IS NOT NULL AND n.look_at < v_now THEN
            n.look_at := v_now;
        END IF;
        IF n.version = 0 THEN
            IF n.dropped THEN  -- agenda_pkey
                PERFORM 1 FROM agenda AS a WHERE a.name = n.name;
                v_found := NOT FOUND;
            ELSE
                INSERT INTO agenda (slot, look_at, last_slot, runs, version, uid, last_job, plan_priority, bucket, enabled, name)
                VALUES (
                    n.slot, n.look_at, n.last_slot, n.runs, 1, n.uid, n.last_job, n.plan_priority, n.bucket, n.enabled, n.name
                ) ON CONFLICT (name) DO NOTHING;
                v_found := FOUND;
            END IF;
            v_last_job := NULL;
            v_slot := NULL;
        ELSE
            SELECT a.last_job, a.slot INTO v_last_job, v_slot FROM agenda AS a WHERE a.name = n.name AND a.version = n.version FOR UPDATE;
            v_found := FOUND;
        END IF;
        IF p_mine IS NOT NULL THEN
            PERFORM check_own_schedule(p_mine, n.name, n.uid);
            IF v_found AND NOT n.dropped AND n.last_job IS DISTINCT FROM v_last_job THEN
                PERFORM refuse_tenant(format('role "%s" names a job that is not the last one of its schedule', caller()));
            ELSIF v_found AND NOT n.dropped AND n.slot < least(v_slot, v_now - 3600000000) THEN
                PERFORM refuse(format('slot: expected none of the past, got %s', n.slot));
            END IF;
        END IF;
        CONTINUE WHEN NOT v_found;
        v_done := v_done || n.ordinality::integer;
        IF n.dropped THEN
            DELETE FROM agenda AS a WHERE a.name = n.name;
            DELETE FROM schedules AS s WHERE s.name = n.name;
        ELSIF n.version = 0 THEN
            INSERT INTO schedules (created_at, updated_at, uid, name, queue, tenant, scoped, definition)
            VALUES (v_now, v_now, n.uid, n.name, n.queue, n.tenant, p_mine IS NOT NULL, n.definition);
        ELSE
            UPDATE agenda AS a SET slot = n.slot, look_at = n.look_at, last_slot = n.last_slot, runs = n.runs,
                version = a.version + 1, uid = n.uid, last_job = n.last_job, plan_priority = n.plan_priority, bucket = n.bucket,
                enabled = n.enabled
            WHERE a.name = n.name;
            UPDATE schedules AS s SET updated_at = v_now, uid = n.uid, queue = n.queue, tenant = n.tenant,
                scoped = p_mine IS NOT NULL, definition = n.definition
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

CREATE FUNCTION save_v1(p_at bigint, p_schedules schedule_row[], p_drops boolean[]) RETURNS integer[]
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT save_schedules(NULL, p_at, p_schedules, p_drops)
$$;

-- The stored name of a schedule of a confined role: with its tenant's prefix, or one that somebody else made for one of
-- its tenants.
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

-- ``save_v1`` for a confined role. Its schedules do not come before those of others.
CREATE FUNCTION own_save_v1(p_at bigint, p_schedules schedule_row[], p_drops boolean[]) RETURNS integer[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_mine CONSTANT text[] := own_tenants();
    v_schedules schedule_row[] := '{}';
    n schedule_row;
BEGIN
    FOREACH n IN ARRAY p_schedules LOOP
        IF p_drops[cardinality(v_schedules) + 1] IS NOT TRUE AND (n.tenant = ANY (v_mine)) IS NOT TRUE THEN
            PERFORM refuse_tenant(format('role "%s" is confined to other tenants than "%s"', caller(), n.tenant));
        ELSIF (octet_length(n.name) BETWEEN 1 AND 1024) IS NOT TRUE THEN
            PERFORM refuse(format('name: expected 1 to 1024 bytes in UTF-8, got %s', coalesce(octet_length(n.name)::text, 'none')));
        ELSIF n.plan_priority < 0 THEN
            PERFORM refuse(format('plan_priority: expected 0 or more of a role that is confined to tenants, got %s', n.plan_priority));
        END IF;
        PERFORM refuse_control(n.queue);
        n.name := own_schedule(v_mine, CASE WHEN p_drops[cardinality(v_schedules) + 1] THEN v_mine[1] ELSE n.tenant END, n.name);
        v_schedules := v_schedules || n;
    END LOOP;
    RETURN save_schedules(v_mine, NULL, v_schedules, p_drops);
END $$;

-- Schedules by name: the named ones, or all. Planned each time: by schedules_pkey, schedules_tenant or schedules_queue;
-- agenda_pkey.
CREATE FUNCTION find_v1(p_names text[], p_tenant text, p_queue text, p_after text, p_limit integer)
RETURNS SETOF schedule_row LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN QUERY
    SELECT
        s.name::text, a.uid, s.queue, s.definition, s.tenant, a.plan_priority, a.bucket, a.enabled, a.slot, a.look_at, a.runs,
        a.last_slot, a.last_job, a.version, s.created_at, s.updated_at
    FROM schedules AS s JOIN agenda AS a ON a.name = ANY (ARRAY[s.name])
    WHERE (p_names IS NULL OR s.name = ANY (p_names)) AND (p_tenant IS NULL OR s.tenant = p_tenant)
        AND (p_queue IS NULL OR s.queue = p_queue) AND (p_after IS NULL OR s.name > p_after)
    ORDER BY s.name LIMIT p_limit;
END $$;

-- The ranges of names in which a confined role sees its schedules in order: the names with the prefix of each tenant,
-- from ``p_after`` on, and the names between the prefixes. ``high`` is excluded.
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

-- The names of the first schedules that a confined role sees, in its order. Of each range and tenant, no more are read
-- than asked for.
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
        n.name, f.uid, f.queue, f.definition, f.tenant, f.plan_priority, f.bucket, f.enabled, f.slot, f.look_at, f.runs, f.last_slot,
        f.last_job, f.version, f.created_at, f.updated_at
    FROM own_tenants() AS o (mine)
    CROSS JOIN LATERAL find_v1(
        CASE
            WHEN p_names IS NULL THEN own_names(o.mine, p_tenant, p_queue, p_after, p_limit)
            ELSE p_names || ARRAY(SELECT key_scope(t) || n FROM unnest(o.mine) AS t CROSS JOIN unnest(p_names) AS n)
        END, p_tenant, p_queue, NULL, NULL
    ) AS f
    CROSS JOIN LATERAL unscoped(o.mine, f.name) AS n (name)
    WHERE f.tenant = ANY (o.mine) AND (p_after IS NULL OR n.name > p_after COLLATE "C") ORDER BY n.name COLLATE "C" LIMIT p_limit
$$;

-- Due schedules, by (plan_priority, look_at, name). The last row is none: its ``updated_at`` is the clock, and its
-- ``look_at`` when the next one is due, if there are fewer than asked for.
CREATE FUNCTION due_v1(p_at bigint, p_limit integer, p_shard integer, p_shards integer) RETURNS SETOF schedule_row
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_left integer := p_limit;
    v_got integer;
    v_priority smallint;
    v_later bigint;
    v_next bigint;
BEGIN
    WHILE v_left > 0 LOOP
        SELECT a.plan_priority INTO v_priority FROM agenda AS a  -- agenda_due: the next plan_priority in use
        WHERE a.enabled AND a.look_at IS NOT NULL AND a.plan_priority > coalesce(v_priority, -32769) ORDER BY a.plan_priority LIMIT 1;
        EXIT WHEN NOT FOUND;
        RETURN QUERY
        WITH head AS MATERIALIZED (  -- agenda_due; schedules_pkey
            SELECT a.* FROM agenda AS a
            WHERE a.enabled AND a.plan_priority = v_priority AND a.look_at <= v_now AND a.bucket % p_shards = p_shard
            ORDER BY a.plan_priority, a.look_at, a.name LIMIT v_left
        )
        SELECT
            h.name::text, h.uid, s.queue, s.definition, s.tenant, h.plan_priority, h.bucket, h.enabled, h.slot, h.look_at, h.runs,
            h.last_slot, h.last_job, h.version, s.created_at, s.updated_at
        FROM head AS h JOIN schedules AS s ON s.name = ANY (ARRAY[h.name])
        ORDER BY h.look_at, h.name;
        GET DIAGNOSTICS v_got = ROW_COUNT;
        v_left := v_left - v_got;
        EXIT WHEN v_left <= 0;
        SELECT a.look_at INTO v_later FROM agenda AS a  -- agenda_due
        WHERE a.enabled AND a.plan_priority = v_priority AND a.look_at > v_now AND a.bucket % p_shards = p_shard
        ORDER BY a.plan_priority, a.look_at LIMIT 1;
        v_next := least(v_next, v_later);
    END LOOP;
    RETURN NEXT (
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, CASE WHEN v_left > 0 THEN v_next END, NULL, NULL, NULL, NULL,
        NULL, v_now
    )::schedule_row;
END $$;

-- A confined role does not plan: it is told the time only.
CREATE FUNCTION own_due_v1(p_at bigint, p_limit integer, p_shard integer, p_shards integer) RETURNS SETOF schedule_row
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT * FROM due_v1(p_at, 0, p_shard, p_shards)
$$;
