-- Pages that are kept aside, so that there is room to clean up on a full disk. Each has some rows of 92 bytes and is left
-- nearly empty. The table has no log: if the server went down for want of room, it comes up with these pages gone, and so
-- with room. It has no index and no side table either: to empty it on a full disk, nothing has to be written for them.
CREATE UNLOGGED TABLE reserve (filler name NOT NULL) WITH (fillfactor = 10, autovacuum_enabled = false);

-- Keep about this many bytes aside, in steps of 8 MiB; 0: give them up. Returns how many are kept now. If somebody else
-- is about to change it, that one does the work.
CREATE FUNCTION reserve_v1(p_bytes bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    c_step CONSTANT bigint := 8388608;
    c_rows CONSTANT bigint := 8;
    v_page CONSTANT bigint := current_setting('block_size')::bigint;
    v_held bigint := pg_relation_size('reserve');
BEGIN
    IF p_bytes < 0 OR p_bytes > 1099511627776 THEN
        RAISE EXCEPTION 'expected 0 to 1 TiB to keep aside, got %', p_bytes USING ERRCODE = 'invalid_parameter_value';
    ELSIF v_held BETWEEN p_bytes AND p_bytes + c_step AND (p_bytes > 0 OR v_held = 0) THEN
        RETURN v_held;
    END IF;
    BEGIN
        LOCK TABLE reserve IN ACCESS EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN v_held;
    END;
    IF p_bytes < v_held THEN
        TRUNCATE reserve;
        v_held := 0;
    END IF;
    INSERT INTO reserve (filler)
    SELECT repeat('x', 63) FROM generate_series(1, c_rows * ((least(p_bytes - v_held, c_step) + v_page - 1) / v_page));
    RETURN pg_relation_size('reserve');
END $$;

SELECT seal();
