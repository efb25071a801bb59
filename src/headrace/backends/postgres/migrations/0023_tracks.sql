-- The sheets of trackers: each holds the subjects of one tier whose points are at ``low`` or above, up to the next one.
-- What is on them is in a table of its own, because looking for what is due changes ``look_at`` and nothing else. To
-- write sheets, lock their rows in the order of (tier, low); to make new ones, or to rely on there being none, lock the
-- row of the tracker first.
CREATE TABLE trackers (
    tracker text COLLATE "C" NOT NULL CONSTRAINT trackers_pkey PRIMARY KEY
);

CREATE TABLE sheets (
    sid bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT sheets_pkey PRIMARY KEY,
    low bigint NOT NULL,
    version bigint NOT NULL,
    due_at bigint NOT NULL,
    look_at bigint NOT NULL,
    ran_at bigint,
    run bigint NOT NULL,
    subjects integer NOT NULL,
    bytes integer NOT NULL,
    tracker text COLLATE "C" NOT NULL,
    tier text COLLATE "C" NOT NULL,
    CONSTRAINT sheets_place UNIQUE (tracker, tier, low)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
CREATE INDEX sheets_due ON sheets (tracker, look_at, tier, low);

-- A sheet fits into a page beside its next version, so that a page clears itself.
CREATE TABLE sheet_contents (
    sid bigint NOT NULL CONSTRAINT sheet_contents_pkey PRIMARY KEY,
    content bytea NOT NULL
) WITH (fillfactor = 60, toast_tuple_target = 4080, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
ALTER TABLE sheet_contents ALTER COLUMN content SET STORAGE EXTERNAL;

CREATE TYPE sheet_row AS (
    now bigint, tier text, low bigint, version bigint, due_at bigint, run bigint, ran_at bigint, subjects integer, content bytea
);

-- The sheets that points lie on, each once. Without any, one row that has nothing but ``now``.
CREATE FUNCTION sheets_v1(p_at bigint, p_tracker text, p_tiers text[], p_points bigint[]) RETURNS SETOF sheet_row
LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
    SELECT n.now, f.tier, f.low, f.version, f.due_at, f.run, f.ran_at, f.subjects, f.content
    FROM (SELECT clock(p_at) AS now) AS n
    LEFT JOIN (
        SELECT s.*, c.content
        FROM (
            SELECT DISTINCT x.sid
            FROM unnest(p_tiers, p_points) AS w (tier, point)
            CROSS JOIN LATERAL (  -- sheets_place, one entry
                SELECT s.sid FROM sheets AS s
                WHERE s.tracker = p_tracker AND s.tier = w.tier AND s.low <= w.point ORDER BY s.tracker DESC, s.tier DESC, s.low DESC LIMIT 1
            ) AS x
        ) AS d
        JOIN sheets AS s ON s.sid = d.sid  -- sheets_pkey, sheet_contents_pkey
        JOIN sheet_contents AS c ON c.sid = d.sid
    ) AS f ON true
    ORDER BY f.tier, f.low
$$;

-- Sheets of a tier from ``p_start`` on, likewise.
CREATE FUNCTION walk_sheets_v1(p_at bigint, p_tracker text, p_tier text, p_start bigint, p_limit integer) RETURNS SETOF sheet_row
LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
    SELECT n.now, f.tier, f.low, f.version, f.due_at, f.run, f.ran_at, f.subjects, f.content
    FROM (SELECT clock(p_at) AS now) AS n
    LEFT JOIN (
        SELECT s.*, c.content
        FROM sheets AS s JOIN sheet_contents AS c ON c.sid = s.sid  -- sheets_place, sheet_contents_pkey
        WHERE s.tracker = p_tracker AND s.tier = p_tier AND s.low >= p_start ORDER BY s.low LIMIT p_limit
    ) AS f ON true
    ORDER BY f.low
$$;

-- Lock sheets that are expected to be there. Returns whether all of them are, in the version that is expected, and none
-- is there that is not.
CREATE FUNCTION lock_sheets(p_tracker text, p_tiers text[], p_lows bigint[], p_expects bigint[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_found bigint;
BEGIN
    IF 0 = ANY (p_expects) THEN
        INSERT INTO trackers (tracker) VALUES (p_tracker) ON CONFLICT (tracker) DO NOTHING;
        PERFORM 1 FROM trackers AS t WHERE t.tracker = p_tracker FOR NO KEY UPDATE;  -- trackers_pkey
    END IF;
    SELECT count(*) INTO v_found
    FROM (  -- sheets_place
        SELECT s.version, w.expect
        FROM unnest(p_tiers, p_lows, p_expects) AS w (tier, low, expect)
        JOIN sheets AS s ON s.tracker = p_tracker AND s.tier = w.tier AND s.low = w.low
        ORDER BY s.tier, s.low FOR NO KEY UPDATE OF s
    ) AS f WHERE f.version = f.expect;
    RETURN v_found = (SELECT count(*) FROM unnest(p_expects) AS e WHERE e > 0) AND NOT EXISTS (
        SELECT 1 FROM unnest(p_tiers, p_lows, p_expects) AS w (tier, low, expect)
        JOIN sheets AS s ON s.tracker = p_tracker AND s.tier = w.tier AND s.low = w.low WHERE w.expect = 0
    );
END $$;

-- Change sheets, all or none. ``p_kinds``: 0 write, 1 check, 2 erase.
CREATE FUNCTION write_sheets_v1(
    p_tracker text, p_kinds smallint[], p_tiers text[], p_lows bigint[], p_expects bigint[], p_versions bigint[], p_dues bigint[],
    p_runs bigint[], p_rans bigint[], p_subjects integer[], p_contents bytea[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM refuse(format('%s: expected %s to %s, got %s', x.what, x.least, x.most, coalesce(x.got::text, 'none')))
    FROM unnest(p_kinds, p_tiers, p_lows, p_expects, p_versions, p_dues, p_subjects, p_contents)
        AS w (kind, tier, low, expect, version, due, subjects, content)
    CROSS JOIN LATERAL (
        VALUES
            ('tracker, in bytes', octet_length(p_tracker)::bigint, 1, 1024::bigint), ('tier, in bytes', octet_length(w.tier), 1, 1024),
            ('low', w.low, 0, 4503599627370495), ('expect', w.expect, 0, 4503599627370495),
            ('version', CASE WHEN w.kind = 0 THEN w.version ELSE 1 END, 1, 4503599627370495),
            ('due_at', CASE WHEN w.kind = 0 THEN w.due ELSE 0 END, 0, 7258118400000000),
            ('subjects', CASE WHEN w.kind = 0 THEN w.subjects ELSE 0 END, 0, 1048576),
            ('content, in bytes', CASE WHEN w.kind = 0 THEN octet_length(w.content) ELSE 0 END, 0, 1048576)
    ) AS x (what, got, least, most)
    WHERE (x.got BETWEEN x.least AND x.most) IS NOT TRUE LIMIT 1;
    IF NOT lock_sheets(p_tracker, p_tiers, p_lows, p_expects) THEN
        RETURN false;
    END IF;
    WITH wanted AS (
        SELECT * FROM unnest(p_kinds, p_tiers, p_lows, p_expects, p_versions, p_dues, p_runs, p_rans, p_subjects, p_contents)
            AS w (kind, tier, low, expect, version, due, run, ran, subjects, content)
    ),
    erased AS (  -- sheets_place
        DELETE FROM sheets AS s USING wanted AS w
        WHERE w.kind = 2 AND s.tracker = p_tracker AND s.tier = w.tier AND s.low = w.low RETURNING s.sid
    ),
    emptied AS (  -- sheet_contents_pkey
        DELETE FROM sheet_contents AS c USING erased AS e WHERE c.sid = e.sid
    ),
    changed AS (  -- sheets_place
        UPDATE sheets AS s
        SET version = w.version, due_at = w.due, look_at = w.due, run = w.run, ran_at = w.ran, subjects = w.subjects,
            bytes = octet_length(w.content)
        FROM wanted AS w
        WHERE w.kind = 0 AND w.expect > 0 AND s.tracker = p_tracker AND s.tier = w.tier AND s.low = w.low
        RETURNING s.sid, w.content
    ),
    filled AS (  -- sheet_contents_pkey
        UPDATE sheet_contents AS c SET content = g.content FROM changed AS g WHERE c.sid = g.sid AND c.content <> g.content
    ),
    added AS (
        INSERT INTO sheets (tracker, tier, low, version, due_at, look_at, run, ran_at, subjects, bytes)
        SELECT p_tracker, w.tier, w.low, w.version, w.due, w.due, w.run, w.ran, w.subjects, octet_length(w.content)
        FROM wanted AS w WHERE w.kind = 0 AND w.expect = 0
        RETURNING sid, tier, low
    )
    INSERT INTO sheet_contents (sid, content)
    SELECT a.sid, w.content FROM added AS a JOIN wanted AS w ON w.tier = a.tier AND w.low = a.low;
    RETURN true;
END $$;

-- Sheets that must be looked at, and not again before ``p_hold`` is over, unless they are written. The last row has
-- nothing but ``now`` and, as ``due_at``, when to look again, unless the limit was reached.
CREATE FUNCTION due_sheets_v1(p_at bigint, p_tracker text, p_limit integer, p_hold bigint) RETURNS SETOF sheet_row
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_sids bigint[];
BEGIN
    v_sids := ARRAY(  -- sheets_due
        SELECT s.sid FROM sheets AS s WHERE s.tracker = p_tracker AND s.look_at <= v_now
        ORDER BY s.tracker, s.look_at, s.tier, s.low LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED
    );
    RETURN QUERY  -- sheets_pkey
        SELECT v_now, s.tier, s.low, s.version, s.due_at, s.run, s.ran_at, s.subjects, ''::bytea
        FROM unnest(v_sids) WITH ORDINALITY AS t (sid, ord) JOIN sheets AS s ON s.sid = t.sid ORDER BY t.ord;
    UPDATE sheets AS s SET look_at = v_now + p_hold WHERE s.sid = ANY (v_sids);
    RETURN QUERY  -- sheets_due, one entry
        SELECT v_now, NULL::text, NULL::bigint, NULL::bigint, CASE WHEN cardinality(v_sids) < p_limit THEN (
            SELECT s.look_at FROM sheets AS s WHERE s.tracker = p_tracker ORDER BY s.tracker, s.look_at LIMIT 1
        ) END, NULL::bigint, NULL::bigint, NULL::integer, NULL::bytea;
END $$;

-- The tiers of a tracker, or of all. There are some thousand sheets for a million subjects.
CREATE FUNCTION tally_sheets_v1(p_tracker text)
RETURNS TABLE (tracker text, tier text, sheets bigint, subjects bigint, bytes bigint) LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT s.tracker, s.tier, count(*), sum(s.subjects)::bigint, sum(s.bytes)::bigint FROM sheets AS s
    WHERE p_tracker IS NULL OR s.tracker = p_tracker GROUP BY s.tracker, s.tier ORDER BY s.tracker, s.tier
$$;

SELECT seal();
