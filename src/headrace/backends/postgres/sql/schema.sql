-- How far a store has come, and what surrounds each step that takes it further. A schema's name may hold anything: it stands
-- here as an identifier or as a literal, and never inside of quoted code.

-- name: look
SELECT
    (
        SELECT array_agg(a.attname::text) FROM pg_catalog.pg_attribute AS a
        JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = {name} AND c.relname = 'migrations' AND a.attnum > 0
    ),
    coalesce((
        SELECT bool_and(p.proname = 'own_fetch_v1') FROM pg_catalog.pg_proc AS p
        JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = {name} AND p.proname IN ('fetch_v1', 'own_fetch_v1') AND has_function_privilege(p.oid, 'EXECUTE')
    ), false),
    (
        SELECT jsonb_object_agg(t.typname, t.oid::bigint) FROM pg_catalog.pg_type AS t
        JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace
        WHERE n.nspname = {name} AND t.typname IN ('job_row', 'settlement_row', 'schedule_row', 'swap_row', 'parcel_row', 'tick_row')
    )

-- name: ledger
SELECT version, name, applied_at FROM {schema}.migrations ORDER BY version

-- name: names
SELECT c.relname::text FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = {name}
UNION
SELECT p.proname::text FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = {name}

-- name: patience
SELECT set_config('lock_timeout', '{milliseconds}', true);

-- name: begin
SELECT set_config('headrace.schema', {name}, true);
SET LOCAL search_path = {schema}, pg_temp;

-- name: first
DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_namespace AS n WHERE n.nspname = current_setting('headrace.schema')) THEN
        EXECUTE format('CREATE SCHEMA %I', current_setting('headrace.schema'));
    END IF;
END $$;
CREATE TABLE migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- Everything in a store has one owner, whichever role migrates it. One process migrates at a time: it locks the table.
-- name: alone
DO $$
DECLARE
    v_owner CONSTANT name := (
        SELECT r.rolname FROM pg_class AS c JOIN pg_roles AS r ON r.oid = c.relowner WHERE c.oid = 'migrations'::regclass
    );
BEGIN
    IF v_owner <> current_user THEN
        EXECUTE format('SET LOCAL ROLE %I', v_owner);
    END IF;
END $$;
LOCK TABLE migrations IN SHARE ROW EXCLUSIVE MODE;

-- name: next
DO $$
DECLARE
    v_found CONSTANT integer := (SELECT max(m.version) FROM migrations AS m);
BEGIN
    IF v_found IS DISTINCT FROM {before} THEN
        RAISE EXCEPTION 'the step after version {before} came, but the store is at version %', v_found;
    END IF;
END $$;

-- name: last
INSERT INTO migrations (version, name) VALUES ({version}, '{step}');

-- name: save
SELECT set_config('headrace.lock_timeout', current_setting('lock_timeout'), true),
    set_config('headrace.search_path', current_setting('search_path'), true),
    set_config('headrace.role', current_setting('role'), true);

-- name: restore
SELECT set_config('lock_timeout', current_setting('headrace.lock_timeout'), true),
    set_config('search_path', current_setting('headrace.search_path'), true),
    set_config('role', current_setting('headrace.role'), true);

-- name: grant
SELECT {schema}.grant_v1(%s, %s)

-- name: revoke
SELECT {schema}.revoke_v1(%s, %s)

-- name: confine
SELECT {schema}.confine_v1(%s, %s)
