-- How far sources outside have been read, part by part: moved in the transaction that stores what was read.
CREATE TABLE positions (
    source text NOT NULL,
    part text NOT NULL,
    next bigint NOT NULL,
    CONSTRAINT positions_pkey PRIMARY KEY (source, part)
);

-- The sources that have positions, by the beginning of their names. There are few.
CREATE FUNCTION sources_v1(p_prefix text) RETURNS TABLE (source text)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT DISTINCT p.source FROM positions AS p WHERE starts_with(p.source, p_prefix)
$$;

-- The positions of a source (positions_pkey).
CREATE FUNCTION positions_v1(p_source text) RETURNS TABLE (part text, next bigint)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT p.part, p.next FROM positions AS p WHERE p.source = p_source
$$;

-- Move positions: all of them, or none if one is no longer where the caller has seen it. Steps are [part, seen, next] in the
-- order of their parts; whoever comes second waits for the first to commit (positions_pkey).
CREATE FUNCTION advance_v1(p_source text, p_steps jsonb) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_step jsonb;
BEGIN
    IF length(p_source) > 255 OR jsonb_array_length(p_steps) > 10000 THEN
        PERFORM refuse(format('positions: expected a source of at most 255 characters and at most 10000 steps, got %s and %s',
            length(p_source), jsonb_array_length(p_steps)));
    END IF;
    FOR v_step IN SELECT s.value FROM jsonb_array_elements(p_steps) AS s ORDER BY s.value ->> 0 LOOP
        IF length(v_step ->> 0) > 255 OR (v_step ->> 2)::bigint < 0 THEN
            PERFORM refuse(format('positions: expected a part of at most 255 characters and a position from 0 on, got %s', left(v_step::text, 300)));
        END IF;
        IF v_step ->> 1 IS NULL THEN
            INSERT INTO positions (source, part, next) VALUES (p_source, v_step ->> 0, (v_step ->> 2)::bigint) ON CONFLICT DO NOTHING;
        ELSE
            UPDATE positions AS p SET next = (v_step ->> 2)::bigint
            WHERE p.source = p_source AND p.part = v_step ->> 0 AND p.next = (v_step ->> 1)::bigint;
        END IF;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END $$;

SELECT seal();
