-- What the store takes up: bytes of all tables with their indexes, rows that are dead but not vacuumed, and how far the
-- server's log of writes has come, in bytes since it was made. What is kept aside does not count as used.
CREATE FUNCTION usage_v1() RETURNS TABLE (used bigint, dead_tuples bigint, wal bigint, reserve bigint) LANGUAGE sql VOLATILE
SET search_path FROM CURRENT AS $$
    SELECT
        (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_catalog.pg_class AS c
            WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND c.relname <> 'reserve'),
        (SELECT coalesce(sum(s.n_dead_tup), 0)::bigint FROM pg_catalog.pg_stat_all_tables AS s WHERE s.schemaname = current_schema()),
        CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint END,
        coalesce(pg_relation_size(to_regclass('reserve')), 0)
$$;

SELECT seal();
