-- A job's header and cells lie in ``jobs``, written once. Where the job is, is told by the one of ``ready``, ``leased``,
-- ``paused`` and ``ended`` that has its id; what changes from run to run travels there. Those tables are only inserted
-- into and deleted from (a renewed lease aside), so that nothing wide is ever rewritten.
--
-- Instants and durations are microseconds; instants count from 1970. States: 0 available, 1 running, 2 paused,
-- 3 completed, 4 cancelled, 5 failed.
--
-- In these steps ``x.id = ANY (ARRAY[y.id])`` says what ``x.id = y.id`` would, but leaves only one way to join the two: look
-- up x for each y. A plan that is made while x is empty, and kept, can then not turn the join around and walk through x.
-- Where nothing but ids is wanted, ``enable_indexonlyscan`` is off for the same reason.

-- The number of a queue follows from its name (``queue_number``): two transactions that name a new queue agree on it, and neither
-- waits for the other. One that may last writes the name into ``named``, where no two rows exclude each other; it comes into
-- ``queues`` with the first claim of the queue, or a sweep.
-- ``used_at``: when jobs of the queue were counted last, to the hour. ``leaving``: its name is about to be forgotten, see
-- ``forget_queues_v1``; ``waits_for`` are the transactions that may have its number in hand without having locked its row.
CREATE TABLE queues (
    qid integer NOT NULL PRIMARY KEY,
    name text NOT NULL UNIQUE,
    paused_until bigint NOT NULL DEFAULT 0,
    governed boolean NOT NULL DEFAULT false,
    used_at bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    leaving boolean NOT NULL DEFAULT false,
    chosen text,  -- who makes room for jobs on their last chance, and until when
    chosen_until bigint NOT NULL DEFAULT 0
);
CREATE INDEX queues_special ON queues (qid) WHERE governed OR paused_until > 0;

-- A name as an address: no two have the same.
CREATE FUNCTION address_of(p_name text) RETURNS inet LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT regexp_replace(left(encode(sha256(convert_to(p_name, 'UTF8')), 'hex'), 32), '(.{4})(?!$)', E'\\1:', 'g')::inet
$$;
CREATE TABLE forgetting (
    waits_for text[]
);
INSERT INTO forgetting DEFAULT VALUES;
CREATE TABLE named (
    qid integer NOT NULL,
    name text NOT NULL
);
CREATE INDEX named_name ON named (name);
CREATE INDEX named_qid ON named (qid);
-- Which name has which number, however it came about. It excludes two names under one number, also where the transactions that name them
-- do not see each other, and nothing else: only GiST knows "differs", and only of addresses.
CREATE TABLE numbers (
    qid integer NOT NULL,
    name text NOT NULL,
    CONSTRAINT numbers_differ EXCLUDE USING gist (
        ('0.0.0.0'::inet + qid) inet_ops WITH =, (address_of(name)) inet_ops WITH <>
    )
);
CREATE INDEX numbers_qid ON numbers (qid);
CREATE VIEW all_queues AS
SELECT q.qid, q.name, q.paused_until, q.governed FROM queues AS q
UNION ALL
SELECT DISTINCT n.qid, n.name, 0::bigint, false FROM named AS n WHERE NOT EXISTS (SELECT 1 FROM queues AS q WHERE q.qid = n.qid);
-- queues_pkey, queues_name_key, named_qid, named_name
CREATE FUNCTION name_of(p_qid integer) RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT coalesce(
        (SELECT q.name FROM queues AS q WHERE q.qid = p_qid), (SELECT n.name FROM named AS n WHERE n.qid = p_qid LIMIT 1)
    )
$$;
CREATE FUNCTION qid_of(p_name text) RETURNS integer LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT coalesce(
        (SELECT q.qid FROM queues AS q WHERE q.name = p_name), (SELECT n.qid FROM named AS n WHERE n.name = p_name LIMIT 1)
    )
$$;

-- By id, which for a UUIDv7 means by the day of its making: a day that is over goes as a whole. Ids of another kind lie
-- in the partitions before and after all days; those of days that have no partition, long past or far ahead, in the default one.
-- A statement that looks for ids by a plan which is kept locks every partition: what is called for each batch of jobs either
-- writes to the days of its ids only, or is planned for them (``contents``).
CREATE TABLE jobs (
    id uuid NOT NULL,
    enqueued_at bigint NOT NULL,
    expires_at bigint,
    timeout bigint,
    result_ttl bigint,
    max_attempts integer,
    task text NOT NULL,
    tenant text NOT NULL,
    key text,
    group_name text,
    headers bytea,
    parameters bytea,
    vm_state bytea,
    metadata bytea,
    blob bytea
) PARTITION BY RANGE (id);
ALTER TABLE jobs ALTER parameters SET STORAGE EXTERNAL, ALTER vm_state SET STORAGE EXTERNAL,
    ALTER metadata SET STORAGE EXTERNAL, ALTER blob SET STORAGE EXTERNAL, ALTER headers SET STORAGE EXTERNAL;
ALTER TABLE jobs ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);

-- Cells that a run has replaced or cleared, by the bits of ``mask``: 1 parameters, 2 vm_state, 4 metadata, 8 blob. They
-- count instead of those in ``jobs``, which stay, so that a new state does not rewrite all that came with the job. Only a
-- job that has been leased before can have some.
CREATE TABLE patches (
    id uuid NOT NULL CONSTRAINT patches_pkey PRIMARY KEY,
    mask smallint NOT NULL,
    parameters bytea,
    vm_state bytea,
    metadata bytea,
    blob bytea
) WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
ALTER TABLE patches ALTER parameters SET STORAGE EXTERNAL, ALTER vm_state SET STORAGE EXTERNAL,
    ALTER metadata SET STORAGE EXTERNAL, ALTER blob SET STORAGE EXTERNAL;

-- AVAILABLE, the scheduled ones included. ``dies_at``: from when on it is due and expired. ``lane`` is where claims look for
-- it: none in the line of its queue (``ready_line``); in a governed queue, a number of its tenant and task (``lane_of``), which is even.
-- What is not due waits apart until a claim promotes it: in lane 0, or in the odd one beside that of its tenant and task. That of a job
-- that waits for the turn of its group (``gid``) is below 0, where no claim looks. ``epoch`` is that of the last lease, 0 if there was
-- none; below 0, here and in ``paused``, if no lease ever began the job. Here and below, the order of the columns leaves no gap, and what
-- most jobs do not have is NULL: both make less to log.
CREATE TABLE ready (
    run_at bigint NOT NULL,
    id uuid NOT NULL CONSTRAINT ready_pkey PRIMARY KEY,
    epoch bigint NOT NULL,
    qid integer NOT NULL,
    attempt integer NOT NULL,
    lost integer NOT NULL,
    size integer NOT NULL CHECK (size >= 0),
    priority smallint NOT NULL,
    keyed boolean NOT NULL,
    lane bigint,
    dies_at bigint,
    gid bigint,
    error bytea
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX ready_line ON ready (qid, priority, run_at, id) WHERE lane IS NULL;
CREATE UNIQUE INDEX ready_lane ON ready (lane, priority, run_at, id) WHERE lane IS NOT NULL;
CREATE INDEX ready_dying ON ready (dies_at) WHERE dies_at IS NOT NULL;
-- Not by dies_at itself: then ready_dying would not be the only way to the first of all.
CREATE INDEX ready_doomed ON ready ((coalesce(lane, qid)), (dies_at + 0)) WHERE dies_at IS NOT NULL;
CREATE INDEX ready_lost ON ready ((coalesce(lane, qid)), priority, run_at) WHERE lost > 0;
CREATE INDEX ready_group ON ready (gid, run_at, id) WHERE gid IS NOT NULL;
CREATE INDEX ready_called ON ready (gid) WHERE gid IS NOT NULL AND coalesce(lane, 0) >= 0;
CREATE INDEX ready_later ON ready (qid, run_at, id) WHERE lane = 0;
CREATE INDEX ready_turns ON ready (qid, run_at) WHERE lane >= 4611686018427387904 AND lane & 1 = 0;
CREATE INDEX ready_asleep ON ready (lane, run_at, id) WHERE lane >= 4611686018427387904 AND lane & 1 = 1;
CREATE INDEX ready_asleep_qid ON ready (qid, run_at) WHERE lane >= 4611686018427387904 AND lane & 1 = 1;

-- RUNNING. ``lost``: none if no lease of it ever was. ``begun``: a handler may have been called for it before this lease; none if not.
-- ``tid`` is the number of its tenant where that is counted, as it is in a governed queue.
CREATE TABLE leased (
    lease_until bigint NOT NULL,
    run_at bigint NOT NULL,
    id uuid NOT NULL CONSTRAINT leased_pkey PRIMARY KEY,
    epoch bigint NOT NULL,
    qid integer NOT NULL,
    attempt integer NOT NULL,
    lost integer,
    size integer NOT NULL CHECK (size >= 0),
    priority smallint NOT NULL,
    keyed boolean NOT NULL,
    cancel boolean NOT NULL DEFAULT false,
    begun boolean,
    gid bigint,
    tid bigint,
    holder text NOT NULL,
    error bytea
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX leased_until ON leased (lease_until);
CREATE INDEX leased_cancel ON leased (holder) WHERE cancel;
CREATE INDEX leased_group ON leased (gid) WHERE gid IS NOT NULL;
CREATE INDEX leased_tenant ON leased (tid, holder) WHERE tid IS NOT NULL;

-- Running jobs that are to be cancelled, where whoever asks must not touch ``leased``: a transaction that may last. Nothing is unique
-- here, so that no two wait for each other. A job that is no longer RUNNING is cancelled by a reap. ``superseded``: it was a plan that asked.
CREATE TABLE asks (
    id uuid NOT NULL,
    superseded boolean NOT NULL
);
CREATE INDEX asks_id ON asks (id);

CREATE TABLE paused (
    run_at bigint NOT NULL,
    id uuid NOT NULL CONSTRAINT paused_pkey PRIMARY KEY,
    epoch bigint NOT NULL,
    qid integer NOT NULL,
    attempt integer NOT NULL,
    lost integer NOT NULL,
    size integer NOT NULL CHECK (size >= 0),
    priority smallint NOT NULL,
    keyed boolean NOT NULL,
    error bytea
);

-- COMPLETED, CANCELLED, FAILED: by id as ``jobs`` is, so that both lose a day together. ``lost`` as in ``leased``; ``tenant`` is
-- told of FAILED ones only.
CREATE TABLE ended (
    finished_at bigint NOT NULL,
    held_until bigint NOT NULL,
    run_at bigint NOT NULL,
    id uuid NOT NULL,
    epoch bigint NOT NULL,
    qid integer NOT NULL,
    attempt integer NOT NULL,
    lost integer,
    size integer NOT NULL CHECK (size >= 0),
    state smallint NOT NULL,
    priority smallint NOT NULL,
    keyed boolean NOT NULL,
    reason text NOT NULL,
    tenant text,
    error bytea,
    result bytea
) PARTITION BY RANGE (id);
ALTER TABLE ended ALTER error SET STORAGE EXTERNAL, ALTER result SET STORAGE EXTERNAL;
ALTER TABLE ended ADD CONSTRAINT ended_pkey PRIMARY KEY (id);
CREATE INDEX ended_age ON ended (state, finished_at);
CREATE INDEX ended_dead ON ended (tenant, finished_at) WHERE state = 5;
CREATE INDEX ended_results ON ended (held_until) WHERE result IS NOT NULL;
-- What may still be held when its day goes.
CREATE INDEX ended_held ON ended (held_until) WHERE held_until - 86400000000 > finished_at;

-- Who last took a key. ``held_until`` is NULL while that job lives; ``failed``: it ended FAILED. ``alone_until`` is the same
-- again once the key outlives the record of its job, and NULL before: so the end of a job writes to no index.
CREATE TABLE keys (
    qid integer NOT NULL,
    key text NOT NULL,
    id uuid NOT NULL,
    held_until bigint,
    failed boolean NOT NULL DEFAULT false,
    alone_until bigint,
    CONSTRAINT keys_pkey PRIMARY KEY (qid, key)
) WITH (fillfactor = 90);
CREATE INDEX keys_alone ON keys (alone_until) WHERE alone_until IS NOT NULL;

-- Inboxes that get a hint when a job ends, and since when they wait for it; NULL: since it was stored.
CREATE TABLE waiters (
    id uuid NOT NULL,
    inbox text NOT NULL,
    since bigint,
    CONSTRAINT waiters_pkey PRIMARY KEY (id, inbox)
);

CREATE TABLE workers (
    holder text NOT NULL CONSTRAINT workers_pkey PRIMARY KEY,
    worker text NOT NULL,
    queues text[] NOT NULL,
    slots integer NOT NULL,
    busy integer NOT NULL,
    started_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    listed_until bigint NOT NULL,
    steady_since bigint NOT NULL
) WITH (fillfactor = 50);

-- One row: since when somebody has been listed, and the last time in which nobody was, after a fleet that was at work.
CREATE TABLE absence (
    one boolean NOT NULL CONSTRAINT absence_pkey PRIMARY KEY CHECK (one),
    at_work_since bigint NOT NULL,
    begins bigint NOT NULL DEFAULT 0,
    ends bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- How many jobs of a queue are in which state, and how many bytes of them have ended: a row per transaction and queue,
-- added up into ``totals`` now and then. So no two transactions wait for each other over a counter. State 7: keys that outlive
-- the records of their jobs. FAILED ones are told by tenant too, and added up into ``shares``: who has how many of them.
CREATE TABLE deltas (
    qid integer NOT NULL,
    state smallint NOT NULL,
    jobs bigint NOT NULL,
    bytes bigint NOT NULL DEFAULT 0,
    tenant text
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE totals (
    qid integer NOT NULL,
    state smallint NOT NULL,
    jobs bigint NOT NULL,
    bytes bigint NOT NULL,
    CONSTRAINT totals_pkey PRIMARY KEY (qid, state)
) WITH (fillfactor = 50);
CREATE TABLE shares (
    tenant text NOT NULL CONSTRAINT shares_pkey PRIMARY KEY,
    jobs bigint NOT NULL,
    bytes bigint NOT NULL
);
CREATE INDEX shares_jobs ON shares (jobs);
CREATE INDEX shares_bytes ON shares (bytes);

-- What is done by one at a time: whoever does it has locked the row of its name. A lock in memory would not do: whoever is let
-- into the database can take those. Jobs of groups, and jobs that count towards a depth, share some of the names.
CREATE TABLE locks (
    name text NOT NULL CONSTRAINT locks_pkey PRIMARY KEY
);
INSERT INTO locks (name)
SELECT n FROM unnest(ARRAY['deltas', 'ended 3', 'ended 4', 'ended 5', 'keys', 'ticks', 'depth', 'days', 'absence']) AS n
UNION ALL SELECT 'depth ' || n FROM generate_series(0, 63) AS n
UNION ALL SELECT 'bell ' || n FROM generate_series(0, 3) AS n
UNION ALL SELECT 'groups ' || lpad(n::text, 4, '0') FROM generate_series(0, 4095) AS n;

-- Whether nobody else has this lock; the caller has it then, until the end of the transaction.
CREATE FUNCTION try_lock(p_name text) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    PERFORM 1 FROM locks AS l WHERE l.name = p_name FOR NO KEY UPDATE SKIP LOCKED;  -- locks_pkey
    RETURN FOUND;
END $$;

-- What is done by one process for all, now and then: not before ``next_at``. ``failures`` in a row make it wait longer.
CREATE TABLE duties (
    name text NOT NULL CONSTRAINT duties_pkey PRIMARY KEY,
    next_at bigint NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO duties (name) VALUES ('days');

-- Days whose partitions were taken out, as ``gone_jobs_…`` and ``gone_ended_…``: their jobs, all in this state but for the
-- ``kept`` ones, of which there are copies, are counted off up to the id ``mark``.
CREATE TABLE gone_days (
    day date NOT NULL CONSTRAINT gone_days_pkey PRIMARY KEY,
    state smallint NOT NULL,
    kept uuid[] NOT NULL,
    mark uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000'
);

-- The lowest id that a job made on this day, by UTC, can have.
CREATE FUNCTION day_start(p_day date) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((p_day - date '1970-01-01')::bigint * 86400000), 12, '0') || repeat('0', 20))::uuid
$$;

-- The day, by UTC, of an instant.
CREATE FUNCTION day_of(p_at bigint) RETURNS date LANGUAGE sql IMMUTABLE AS $$
    SELECT date '1970-01-01' + (p_at / 86400000000)::integer
$$;

-- A partition of both tables. Its storage differs from PostgreSQL's usual one: payloads come compressed, if that helps
-- at all, and those of a few kilobytes stay in the row; but not in the default one, which is read through whenever a day is made.
CREATE FUNCTION make_partition(p_name text, p_bounds text) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    EXECUTE format(
        'CREATE TABLE %I (LIKE jobs INCLUDING ALL) WITH (toast_tuple_target = %s)', 'jobs_' || p_name, CASE p_name WHEN 'other' THEN 128 ELSE 8160 END
    );
    EXECUTE format('ALTER TABLE jobs ATTACH PARTITION %I %s', 'jobs_' || p_name, p_bounds);
    EXECUTE format('CREATE TABLE %I (LIKE ended INCLUDING ALL)', 'ended_' || p_name);
    EXECUTE format('ALTER TABLE ended ATTACH PARTITION %I %s', 'ended_' || p_name, p_bounds);
END $$;

SELECT
    make_partition('before', format('FOR VALUES FROM (MINVALUE) TO (%L)', day_start('2025-01-01'))),
    make_partition('after', format('FOR VALUES FROM (%L) TO (MAXVALUE)', day_start('2100-01-01'))),
    make_partition('other', 'DEFAULT');

-- Whether too many jobs of this day lie in the default partition already to be moved at once: the day stays there.
CREATE FUNCTION crowded(p_day date) RETURNS boolean LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT count(*) > 10000 FROM (  -- jobs_other_pkey
        SELECT 1 FROM jobs_other AS o WHERE o.id >= day_start(p_day) AND o.id < day_start(p_day + 1) LIMIT 10001
    ) AS few
$$;

-- A place for the jobs of this day, unless it has one; whether it has one now. Those that came before it move there. Nobody waits
-- for this but who looks into the default partition, and this waits for nobody longer than a moment: there is another time.
CREATE FUNCTION make_day(p_day date) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_from CONSTANT uuid := day_start(p_day);
    v_to CONSTANT uuid := day_start(p_day + 1);
    v_name CONSTANT text := to_char(p_day, 'YYYYMMDD');
    v_table text;
BEGIN
    IF to_regclass('jobs_' || v_name) IS NOT NULL THEN
        RETURN true;
    ELSIF crowded(p_day) THEN
        RETURN false;
    END IF;
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE format('CREATE TABLE %I (LIKE jobs INCLUDING ALL) WITH (toast_tuple_target = 8160)', 'jobs_' || v_name);
    EXECUTE format('CREATE TABLE %I (LIKE ended INCLUDING ALL)', 'ended_' || v_name);
    LOCK TABLE jobs_other, ended_other IN ACCESS EXCLUSIVE MODE;
    FOREACH v_table IN ARRAY ARRAY['jobs', 'ended'] LOOP
        EXECUTE format('CREATE TABLE %I (LIKE %I)', 'early_' || v_table, v_table);
        EXECUTE format(  -- the keys of the default partition
            'WITH early AS (DELETE FROM %I AS o WHERE o.id >= $1 AND o.id < $2 RETURNING o.*) INSERT INTO %I SELECT * FROM early',
            v_table || '_other', 'early_' || v_table
        ) USING v_from, v_to;
        EXECUTE format(
            'ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', v_table, v_table || '_' || v_name, v_from, v_to
        );
        EXECUTE format('INSERT INTO %I SELECT * FROM %I', v_table, 'early_' || v_table);
        EXECUTE format('DROP TABLE %I', 'early_' || v_table);
    END LOOP;
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected OR duplicate_table OR unique_violation THEN
    RETURN to_regclass('jobs_' || v_name) IS NOT NULL;  -- but for the first, somebody else makes it at the same time
END $$;

-- Two weeks of days are made ahead, by the store's clock, one with each call; whether there is one more to make, or NULL where
-- somebody has the tables in hand.
CREATE FUNCTION make_day_v1(p_at bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_today CONSTANT date := day_of(clock(p_at));
    v_day date;
BEGIN
    IF NOT try_lock('days') THEN
        RETURN NULL;
    END IF;
    FOR v_day IN
        SELECT v_today + ahead FROM generate_series(0, 14) AS ahead
        WHERE to_regclass('jobs_' || to_char(v_today + ahead, 'YYYYMMDD')) IS NULL
    LOOP
        IF make_day(v_day) THEN
            RETURN true;
        ELSIF NOT crowded(v_day) THEN
            RETURN NULL;
        END IF;
    END LOOP;
    RETURN false;
END $$;

SELECT make_day((clock_timestamp() AT TIME ZONE 'UTC')::date + ahead) FROM generate_series(0, 2) AS ahead;

-- Everything about one job, wherever it lies; always asked for by id.
CREATE VIEW entries AS
SELECT
    j.id, j.enqueued_at, j.expires_at, j.timeout, j.result_ttl, j.max_attempts, j.task, j.tenant, j.key, j.group_name,
    j.headers,
    CASE WHEN c.mask & 1 <> 0 THEN c.parameters ELSE j.parameters END AS parameters,
    CASE WHEN c.mask & 2 <> 0 THEN c.vm_state ELSE j.vm_state END AS vm_state,
    CASE WHEN c.mask & 4 <> 0 THEN c.metadata ELSE j.metadata END AS metadata,
    CASE WHEN c.mask & 8 <> 0 THEN c.blob ELSE j.blob END AS blob,
    (CASE WHEN y.id IS NOT NULL THEN 0 WHEN l.id IS NOT NULL THEN 1 WHEN p.id IS NOT NULL THEN 2 ELSE e.state END)::smallint
        AS state,
    coalesce(y.qid, l.qid, p.qid, e.qid) AS qid, coalesce(y.priority, l.priority, p.priority, e.priority) AS priority,
    coalesce(y.run_at, l.run_at, p.run_at, e.run_at) AS run_at, abs(coalesce(y.epoch, l.epoch, p.epoch, e.epoch)) AS epoch,
    coalesce(y.attempt, l.attempt, p.attempt, e.attempt) AS attempt, coalesce(y.lost, l.lost, p.lost, e.lost, 0) AS lost,
    coalesce(y.size, l.size, p.size, e.size) AS size, coalesce(y.keyed, l.keyed, p.keyed, e.keyed) AS keyed,
    coalesce(y.error, l.error, p.error, e.error) AS error,
    l.lease_until, l.holder, coalesce(l.cancel OR EXISTS (SELECT 1 FROM asks AS a WHERE a.id = l.id), false) AS cancel,
    e.finished_at, e.held_until, e.reason, e.result
FROM jobs AS j
LEFT JOIN patches AS c ON c.id = ANY (ARRAY[j.id])
LEFT JOIN ready AS y ON y.id = ANY (ARRAY[j.id])
LEFT JOIN leased AS l ON l.id = ANY (ARRAY[j.id])
LEFT JOIN paused AS p ON p.id = ANY (ARRAY[j.id])
LEFT JOIN ended AS e ON e.id = ANY (ARRAY[j.id]);
