-- What a stage needs beside the store: a schema in which scenes are kept.

-- name: tables
SELECT c.relname FROM pg_class AS c
WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND c.relname NOT IN ('migrations', 'locks', 'duties', 'forgetting')

-- name: scenes
CREATE SCHEMA {schema}_scenes;
SET search_path = {schema};
CREATE FUNCTION {schema}_scenes.set_days() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass('jobs_{next_day}') IS NOT NULL THEN
        DROP TABLE jobs_{next_day}, ended_{next_day};
    END IF;
    IF to_regclass('jobs_{day}') IS NULL THEN
        PERFORM make_day('{day}');
    END IF;
END $$;
CREATE FUNCTION {schema}_scenes.migrate(p_column text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    v_step text;
BEGIN
    FOR v_step IN
        SELECT format('ALTER TABLE %I ADD COLUMN %I integer', c.relname, p_column) FROM pg_class AS c
        WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        UNION ALL
        SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE p.pronamespace = '{schema}'::regnamespace AND p.prokind = 'f'
    LOOP
        EXECUTE v_step;
    END LOOP;
END $$;
-- The fewer partitions, the sooner a scene is set.
DO $$
DECLARE
    v_name text;
BEGIN
    FOR v_name IN
        SELECT c.relname FROM pg_class AS c
        WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'r' AND c.relname ~ '_[0-9]{8}$'
    LOOP
        EXECUTE format('DROP TABLE %I', v_name);
    END LOOP;
END $$
