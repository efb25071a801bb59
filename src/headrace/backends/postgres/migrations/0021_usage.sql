-- Bytes that deleted rows have left in tables that get new rows, roughly: those fill them before the tables grow. Only
-- what a vacuum has seen to counts, and only while the server's statistics know of it: rows that are dead, tables that
-- nobody has vacuumed since the server crashed, and days that are over count as full. At most as much is free as was
-- deleted. Indexes are as full as their tables. A row takes up its columns, 36 bytes, and its share of what is left of
-- the page, or a page if nobody knows its columns; of large cells, four pieces fit on a page.
CREATE FUNCTION free_bytes() RETURNS bigint LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    WITH page (size) AS (SELECT current_setting('block_size')::double precision), known AS MATERIALIZED (
        SELECT c.relname, c.reltoastrelid AS large, pg_relation_size(c.oid) AS bytes, pg_indexes_size(c.oid) AS indexes,
            pg_stat_get_live_tuples(c.oid) + pg_stat_get_dead_tuples(c.oid) AS rows,
            pg_stat_get_tuples_deleted(c.oid) + pg_stat_get_tuples_updated(c.oid) - pg_stat_get_dead_tuples(c.oid) AS gone
        FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND c.relname <> 'reserve'
            AND coalesce(pg_stat_get_last_vacuum_time(c.oid), pg_stat_get_last_autovacuum_time(c.oid)) IS NOT NULL
            AND (c.relname !~ '^(jobs|ended)_[0-9]{8}$' OR right(c.relname, 8) >= to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD'))
    ), widths AS (
        SELECT k.*, p.size / greatest(floor((p.size - 24) / w.width), 1) AS share
        FROM known AS k CROSS JOIN page AS p CROSS JOIN LATERAL (
            SELECT 36 + sum(s.avg_width * (1 - s.null_frac)) AS width FROM pg_catalog.pg_stats AS s
            WHERE s.schemaname = current_schema() AND s.tablename = k.relname
        ) AS w WHERE k.bytes > 0 AND k.gone > 0
    ), free AS (
        SELECT w.bytes, w.indexes, CASE
            WHEN w.rows = 0 THEN w.bytes
            ELSE greatest(least(w.bytes - w.rows * w.share, w.gone * w.share), 0)
        END AS left_over
        FROM widths AS w
    ), large AS (
        SELECT greatest(pg_relation_size(k.large)
            - (pg_stat_get_live_tuples(k.large) + pg_stat_get_dead_tuples(k.large)) * p.size / 4, 0) AS left_over
        FROM known AS k CROSS JOIN page AS p
        WHERE k.large <> 0 AND pg_stat_get_tuples_deleted(k.large) > 0
            AND coalesce(pg_stat_get_last_vacuum_time(k.large), pg_stat_get_last_autovacuum_time(k.large)) IS NOT NULL
    )
    SELECT (
        coalesce((SELECT sum(f.left_over * (1 + f.indexes::double precision / f.bytes)) FROM free AS f), 0)
        + coalesce((SELECT sum(l.left_over) FROM large AS l), 0)
    )::bigint
$$;

-- What the store takes up: bytes of all tables with their indexes, without what is free in them; rows that are dead but
-- not vacuumed, how far the server's log of writes has come, in bytes since it was made, and what is free. What is kept
-- aside does not count as used. And how much the server has to do: commits of this database, and how often a part of the
-- log could not be archived, both since its statistics begin.
CREATE FUNCTION usage_v1() RETURNS TABLE (
    used bigint, dead_tuples bigint, wal bigint, reserve bigint, free bigint, commits bigint, archive_failures bigint
) LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT s.bytes - f.free, s.dead, CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint END,
        coalesce(pg_relation_size(to_regclass('reserve')), 0), f.free,
        (SELECT d.xact_commit FROM pg_catalog.pg_stat_database AS d WHERE d.datname = current_database()),
        (SELECT a.failed_count FROM pg_catalog.pg_stat_archiver AS a)
    FROM (
        SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint AS bytes, coalesce(sum(pg_stat_get_dead_tuples(c.oid)), 0)::bigint AS dead
        FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND c.relname <> 'reserve'
    ) AS s CROSS JOIN free_bytes() AS f (free)
$$;

SELECT seal();
