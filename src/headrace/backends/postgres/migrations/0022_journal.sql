-- What operators did.
CREATE TABLE journal (
    number bigint GENERATED ALWAYS AS IDENTITY,
    at bigint NOT NULL,
    body bytea NOT NULL,
    CONSTRAINT journal_pkey PRIMARY KEY (number)
);

-- Write an entry. Every hundredth removes what is too old (journal_pkey).
CREATE FUNCTION write_journal_v1(p_at bigint, p_body bytea, p_kept bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_number bigint;
BEGIN
    IF octet_length(p_body) > 65536 THEN
        PERFORM refuse(format('journal: expected at most 65536 bytes, got %s', octet_length(p_body)));
    END IF;
    INSERT INTO journal (at, body) VALUES (clock(p_at), p_body) RETURNING number INTO v_number;
    IF v_number % 100 = 0 THEN
        DELETE FROM journal AS j WHERE j.number <= v_number - greatest(p_kept, 1000);
    END IF;
    RETURN v_number;
END $$;

-- Entries, newest first (journal_pkey).
CREATE FUNCTION read_journal_v1(p_before bigint, p_limit integer) RETURNS TABLE (number bigint, at bigint, body bytea)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT j.number, j.at, j.body FROM journal AS j
    WHERE p_before IS NULL OR j.number < p_before ORDER BY j.number DESC LIMIT p_limit
$$;

SELECT seal();
