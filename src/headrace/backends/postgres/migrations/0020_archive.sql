-- Small values that the core keeps for itself, under names.
CREATE TABLE documents (
    name text COLLATE "C" NOT NULL CONSTRAINT documents_pkey PRIMARY KEY,
    version bigint NOT NULL,
    body bytea NOT NULL
) WITH (fillfactor = 50);

-- The documents of these names; documents_pkey.
CREATE FUNCTION documents_v1(p_names text[]) RETURNS TABLE (name text, version bigint, body bytea) LANGUAGE sql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT d.name, d.version, d.body FROM documents AS d WHERE d.name = ANY (p_names)
$$;

-- Documents whose names begin with a prefix, after a name, by name; documents_pkey.
CREATE FUNCTION find_documents_v1(p_prefix text, p_after text, p_limit integer)
RETURNS TABLE (name text, version bigint, body bytea) LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT d.name, d.version, d.body FROM documents AS d
    WHERE d.name >= p_prefix AND d.name > p_after AND starts_with(d.name, p_prefix) ORDER BY d.name LIMIT p_limit
$$;

-- Replace a document, or remove it if there is no body. Returns whether its version was the expected one (0: there is none).
CREATE FUNCTION put_document_v1(p_name text, p_body bytea, p_version bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    IF p_version = 0 AND p_body IS NOT NULL THEN
        INSERT INTO documents AS d (name, version, body) VALUES (p_name, 1, p_body) ON CONFLICT (name) DO NOTHING;
    ELSIF p_version = 0 THEN
        RETURN NOT EXISTS (SELECT 1 FROM documents AS d WHERE d.name = p_name);
    ELSIF p_body IS NULL THEN
        DELETE FROM documents AS d WHERE d.name = p_name AND d.version = p_version;
    ELSE
        UPDATE documents AS d SET version = d.version + 1, body = p_body WHERE d.name = p_name AND d.version = p_version;
    END IF;
    RETURN FOUND;
END $$;

-- The ends of jobs of one state, after an instant and an id, oldest first, and what the jobs weigh.
CREATE FUNCTION ends_v1(p_state smallint, p_after bigint, p_id uuid, p_limit integer)
RETURNS TABLE (ended_at bigint, id uuid, size integer) LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY  -- ended_age of each partition
    SELECT e.finished_at, e.id, e.size FROM ended AS e
    WHERE e.state = p_state AND e.finished_at >= p_after AND (e.finished_at > p_after OR e.id > p_id)
    ORDER BY e.state, e.finished_at, e.id LIMIT p_limit;
END $$;

-- The time, and the transactions that may have ended jobs and are not committed.
CREATE FUNCTION ending_v1(p_at bigint) RETURNS TABLE (now bigint, transactions text[]) LANGUAGE sql VOLATILE
SET search_path FROM CURRENT AS $$
    SELECT clock(p_at), coalesce(array_agg(DISTINCT l.virtualtransaction), '{}') FROM locks_of_others AS l
    WHERE l.relation = 'ended'::regclass AND l.mode = 'RowExclusiveLock'
$$;

-- Remove jobs that ended in this state under these epochs, long enough ago, and whose result is not held.
CREATE FUNCTION sweep_named_v1(
    p_at bigint, p_state smallint, p_ids uuid[], p_epochs bigint[], p_age bigint, p_dry boolean, p_spare bigint, p_ended_by bigint
) RETURNS TABLE (removed bigint, bytes bigint, kept bigint, more boolean) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_latest CONSTANT bigint := least(v_now - p_spare, v_now - p_age, p_ended_by);
    v_doomed doomed[];
BEGIN
    v_doomed := ARRAY(  -- ended_pkey: one job after the other, whatever the server believes of their number
        SELECT e.doomed FROM (SELECT u.id, u.epoch FROM unnest(p_ids, p_epochs) AS u (id, epoch) ORDER BY u.id) AS n
        CROSS JOIN LATERAL (
            SELECT (e.id, e.qid, e.size, e.tenant)::doomed AS doomed FROM ended AS e
            WHERE e.id = ANY (ARRAY[n.id]) AND e.state + 0 = p_state AND abs(e.epoch) = n.epoch AND e.finished_at <= v_latest
                AND NOT (p_state = 3 AND e.held_until > v_now)
            FOR UPDATE SKIP LOCKED
        ) AS e
    );
    IF NOT p_dry THEN
        v_doomed := with_keys(v_doomed);
    END IF;
    SELECT count(*), coalesce(sum(d.size), 0) INTO removed, bytes FROM unnest(v_doomed) AS d;
    SELECT x.jobs - removed INTO kept FROM places_v1() AS x WHERE x.state = p_state;
    more := false;
    IF removed > 0 AND NOT p_dry THEN
        PERFORM remove_doomed(v_doomed, p_state, v_now);
    END IF;
    RETURN NEXT;
END $$;

SELECT seal();
