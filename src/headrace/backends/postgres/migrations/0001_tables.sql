-- A job's header and cells are in ``jobs``, written once. Its state is told by the table that has its id: ``ready``,
-- ``leased``, ``paused`` or ``ended``. What changes from run to run is stored there. Rows of these tables are inserted
-- and deleted, never updated (except to renew a lease), so nothing wide is ever rewritten.
--
-- Instants and durations are microseconds; instants count from 1970. States: 0 available, 1 running, 2 paused, 3
-- completed, 4 cancelled, 5 failed.
--
-- ``x.id = ANY (ARRAY[y.id])`` means ``x.id = y.id``, but allows only one join: look up x for each y. A cached plan
-- that was made while x was empty can then not turn the join around and scan x. Where only ids are wanted,
-- ``enable_indexonlyscan`` is off for the same reason. A comment behind a statement names the indexes that it relies
-- on.

-- The number of a queue follows from its name (``queue_number``), so two transactions that name a new queue agree on it
-- without waiting for each other. A transaction that may last writes the name into ``named``, where no two rows
-- conflict; the first claim of the queue, or a sweep, copies it into ``queues``.
--
-- ``used_at``: when jobs of the queue were last counted, to the hour. ``leaving``: the name is about to be forgotten
-- (see ``forget_queues_v1``). ``chosen``: the holder that makes room for jobs on their last chance, until
-- ``chosen_until``.
CREATE TABLE queues (
    qid integer NOT NULL PRIMARY KEY,
    name text NOT NULL UNIQUE,
    paused_until bigint NOT NULL DEFAULT 0,
    governed boolean NOT NULL DEFAULT false,
    used_at bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    leaving boolean NOT NULL DEFAULT false,
    chosen text,
    chosen_until bigint NOT NULL DEFAULT 0
);
CREATE INDEX queues_special ON queues (qid) WHERE governed OR paused_until > 0;

-- A name as an address, for ``numbers_differ``. No two names have the same.
CREATE FUNCTION address_of(p_name text) RETURNS inet LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT regexp_replace(left(encode(sha256(convert_to(p_name, 'UTF8')), 'hex'), 32), '(.{4})(?!$)', E'\\1:', 'g')::inet
$$;
-- One row. ``waits_for``: transactions that may use the number of a leaving queue without a lock on its row.
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
-- Which name has which number. The constraint keeps two names from getting one number, even in transactions that do not
-- see each other, and excludes nothing else. Only GiST supports <>, and only for addresses.
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
-- queues_pkey, queues_name_key, named_qid, named_name.
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

-- The hour, since 1970, of the object that a cell refers to; NULL where the cell is no reference.
CREATE FUNCTION reference_hour(p_cell bytea) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN octet_length(p_cell) = 25 AND get_byte(p_cell, 0) = 3 THEN
        get_byte(p_cell, 3) * 65536 + get_byte(p_cell, 4) * 256 + get_byte(p_cell, 5)
    END
$$;
-- That of the oldest of them. What an index is made with is bound here: the server finds no name while it makes one.
CREATE FUNCTION oldest_hour(p_parameters bytea, p_vm_state bytea, p_metadata bytea, p_blob bytea) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN least(reference_hour(p_parameters), reference_hour(p_vm_state), reference_hour(p_metadata), reference_hour(p_blob));

-- Partitioned by id, which for a UUIDv7 means by the day on which it was made: a day that is over is dropped as a
-- whole. Ids of other kinds are in the partitions before and after all days; days without a partition, long past or far
-- ahead, are in the default one (``jobs_default``). A cached plan that looks for ids locks every partition. So what is called for each
-- batch of jobs either writes only to the days of its ids, or is planned for them each time (``contents``).
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
CREATE INDEX jobs_objects ON jobs (oldest_hour(parameters, vm_state, metadata, blob), id)
WHERE oldest_hour(parameters, vm_state, metadata, blob) IS NOT NULL;

-- Cells that a run has replaced or cleared, by the bits of ``mask``: 1 parameters, 2 vm_state, 4 metadata, 8 blob. They
-- count instead of those in ``jobs``, which stay: a new state does not rewrite all that came with the job. Only a job
-- that has been leased can have some. ``object_hour``: none of them refers to an object of an earlier hour; it is a
-- column, so that a state that replaces another writes to no index.
CREATE TABLE patches (
    id uuid NOT NULL CONSTRAINT patches_pkey PRIMARY KEY,
    mask smallint NOT NULL,
    parameters bytea,
    vm_state bytea,
    metadata bytea,
    blob bytea,
    object_hour integer
) WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
ALTER TABLE patches ALTER parameters SET STORAGE EXTERNAL, ALTER vm_state SET STORAGE EXTERNAL,
    ALTER metadata SET STORAGE EXTERNAL, ALTER blob SET STORAGE EXTERNAL;
CREATE INDEX patches_objects ON patches (object_hour, id) WHERE object_hour IS NOT NULL;

-- AVAILABLE, delayed jobs included. ``dies_at``: the instant from which the job is both due and expired. ``epoch``:
-- that of the last lease, 0 if there was none; negative, here and in ``paused``, if no handler was ever called.
--
-- ``lane`` is where claims look for the job. NULL: in the line of its queue (``ready_line``). In a governed queue: an
-- even number made from its tenant (``lane_of``), or from its tenant and task once a claim has put it aside
-- (``lane_of_task``). A job that is not due waits apart until a claim promotes it: in lane 0, or in the odd lane after
-- its even one. A job that waits to be called in its group (``gid``) has a negative lane, where no claim looks.
--
-- Here and below, the order of the columns leaves no gaps, and what most jobs lack is NULL: both make less WAL.
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
-- Not by dies_at itself: ready_dying must stay the only way to the first of all.
CREATE INDEX ready_doomed ON ready ((coalesce(lane, qid)), (dies_at + 0)) WHERE dies_at IS NOT NULL;
-- ``ready_worst`` tells whether a job on its last chance is anywhere, ``ready_lost`` where. Most that were lost are not.
CREATE INDEX ready_worst ON ready (lost) WHERE lost > 0;
CREATE INDEX ready_lost ON ready ((coalesce(lane, qid)), (lost + 0), priority, run_at) WHERE lost > 0;
CREATE INDEX ready_group ON ready (gid, run_at, id) WHERE gid IS NOT NULL;
CREATE INDEX ready_called ON ready (gid) WHERE gid IS NOT NULL AND coalesce(lane, 0) >= 0;
CREATE INDEX ready_later ON ready (qid, run_at, id) WHERE lane = 0;
CREATE INDEX ready_turns ON ready (qid, run_at) WHERE lane >= 4611686018427387904 AND lane & 1 = 0;
CREATE INDEX ready_asleep ON ready (lane, run_at, id) WHERE lane >= 4611686018427387904 AND lane & 1 = 1;
CREATE INDEX ready_asleep_qid ON ready (qid, run_at) WHERE lane >= 4611686018427387904 AND lane & 1 = 1;

-- RUNNING. ``lost``: NULL if no lease was lost. ``begun``: NULL if no handler can have been called before this lease.
-- ``tid``: the number of the tenant, in a governed queue.
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
    error bytea,
    progress bytea
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX leased_until ON leased (lease_until);
CREATE INDEX leased_cancel ON leased (holder) WHERE cancel;
CREATE INDEX leased_group ON leased (gid) WHERE gid IS NOT NULL;
CREATE INDEX leased_tenant ON leased (tid, holder) WHERE tid IS NOT NULL;

-- Requests to cancel running jobs, from transactions that may last and so must not lock ``leased``. Nothing is unique
-- here, so no two wait for each other. If the job is no longer RUNNING, a reap cancels it. ``superseded``: a plan asked
-- for it.
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

-- A job of any state, with what travels from table to table; and as it is taken out of ``ready`` or ``leased``.
CREATE TYPE place AS (
    state smallint, id uuid, qid integer, priority smallint, run_at bigint, epoch bigint, attempt integer, lost integer,
    size integer, keyed boolean, error bytea, holder text, cancel boolean, held_until bigint, result bytea, lane bigint,
    gid bigint
);
CREATE FUNCTION place_of(y ready) RETURNS place LANGUAGE sql IMMUTABLE AS $$
    SELECT (
        0, y.id, y.qid, y.priority, y.run_at, y.epoch, y.attempt, y.lost, y.size, y.keyed, y.error, NULL, false, NULL, NULL, y.lane, y.gid
    )::place
$$;
CREATE FUNCTION place_of(l leased) RETURNS place LANGUAGE sql IMMUTABLE AS $$
    SELECT (
        1, l.id, l.qid, l.priority, l.run_at, l.epoch, l.attempt, coalesce(l.lost, 0), l.size, l.keyed, l.error, l.holder, l.cancel,
        NULL, NULL, NULL, l.gid
    )::place
$$;

-- COMPLETED, CANCELLED, FAILED. Partitioned as ``jobs`` is, so both lose a day together. ``lost`` is as in ``leased``;
-- only FAILED jobs have a ``tenant``.
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
-- Jobs whose result may still be held when their day is dropped.
CREATE INDEX ended_held ON ended (held_until) WHERE held_until - 86400000000 > finished_at;

-- The job that last took a key. ``held_until``: NULL while that job lives. ``failed``: it ended FAILED.
-- ``alone_until``: a copy of ``held_until`` once the key outlives its job, NULL before, so the end of a job writes to
-- no index.
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

-- Inboxes that get a hint when a job ends, and since when they wait. NULL: since the job was stored.
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

-- One row: since when some worker has been listed, and the last absence of the whole fleet (see ``Backend.renew``).
CREATE TABLE absence (
    one boolean NOT NULL CONSTRAINT absence_pkey PRIMARY KEY CHECK (one),
    at_work_since bigint NOT NULL,
    begins bigint NOT NULL DEFAULT 0,
    ends bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- How many jobs of a queue are in which state, and how many bytes of them have ended. Each transaction adds a row per
-- queue, so no two wait for each other over a counter; ``fold_deltas`` adds the rows up into ``totals``. State 6:
-- ticks. State 7: keys that outlive their jobs. FAILED jobs are counted by tenant too, and added up into ``shares``. The
-- number -1, which no queue has, counts for the whole store in ``totals``.
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

-- The counters of queues, and of the store, added up or not; and the jobs of each queue by state.
CREATE VIEW counts AS
SELECT t.qid, t.state, t.jobs, t.bytes FROM totals AS t WHERE t.qid <> -1
UNION ALL SELECT d.qid, d.state, d.jobs, d.bytes FROM deltas AS d;
CREATE VIEW store_counts AS
SELECT t.state, t.jobs, t.bytes FROM totals AS t WHERE t.qid = -1 UNION ALL SELECT d.state, d.jobs, d.bytes FROM deltas AS d;
CREATE VIEW queue_counts AS
SELECT c.qid,
    coalesce(sum(c.jobs) FILTER (WHERE c.state = 0), 0)::bigint AS available,
    coalesce(sum(c.jobs) FILTER (WHERE c.state = 1), 0)::bigint AS running,
    coalesce(sum(c.jobs) FILTER (WHERE c.state = 2), 0)::bigint AS jobs_paused,
    coalesce(sum(c.jobs) FILTER (WHERE c.state = 3), 0)::bigint AS completed,
    coalesce(sum(c.jobs) FILTER (WHERE c.state = 4), 0)::bigint AS cancelled,
    coalesce(sum(c.jobs) FILTER (WHERE c.state = 5), 0)::bigint AS failed
FROM counts AS c GROUP BY c.qid;

-- Work that one transaction does at a time: it locks the row of that name. Advisory locks would not do, since any user
-- of the database can take them. Groups, and queues with a depth, share a fixed number of names.
CREATE TABLE locks (
    name text NOT NULL CONSTRAINT locks_pkey PRIMARY KEY
);
INSERT INTO locks (name)
SELECT n FROM unnest(ARRAY['deltas', 'ended 3', 'ended 4', 'ended 5', 'keys', 'ticks', 'depth', 'days', 'absence']) AS n
UNION ALL SELECT 'depth ' || n FROM generate_series(0, 63) AS n
UNION ALL SELECT 'bell ' || n FROM generate_series(0, 3) AS n
UNION ALL SELECT 'groups ' || lpad(n::text, 4, '0') FROM generate_series(0, 4095) AS n;

-- Take a lock until the end of the transaction. False: somebody else has it.
CREATE FUNCTION try_lock(p_name text) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    PERFORM 1 FROM locks AS l WHERE l.name = p_name FOR NO KEY UPDATE SKIP LOCKED;  -- locks_pkey
    RETURN FOUND;
END $$;

-- Upkeep that one process does for all, not before ``next_at``. ``failures`` in a row make it wait longer.
CREATE TABLE duties (
    name text NOT NULL CONSTRAINT duties_pkey PRIMARY KEY,
    next_at bigint NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO duties (name) VALUES ('days');

-- Days whose partitions were detached, and renamed to ``gone_jobs_…`` and ``gone_ended_…``. Their jobs, all in this
-- state, are counted off up to the id ``mark``, except the ``kept`` ones, which were copied.
CREATE TABLE gone_days (
    day date NOT NULL CONSTRAINT gone_days_pkey PRIMARY KEY,
    state smallint NOT NULL,
    kept uuid[] NOT NULL,
    mark uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000'
);

-- The lowest id that a job made on this day (UTC) can have.
CREATE FUNCTION day_start(p_day date) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((p_day - date '1970-01-01')::bigint * 86400000), 12, '0') || repeat('0', 20))::uuid
$$;

-- The day (UTC) of an instant.
CREATE FUNCTION day_of(p_at bigint) RETURNS date LANGUAGE sql IMMUTABLE AS $$
    SELECT date '1970-01-01' + (p_at / 86400000000)::integer
$$;

-- Make a partition of both tables. Payloads arrive compressed, so those of a few kilobytes stay in the row.
CREATE FUNCTION make_partition(p_name text, p_bounds text) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    EXECUTE format('CREATE TABLE %I (LIKE jobs INCLUDING ALL) WITH (toast_tuple_target = 8160)', 'jobs_' || p_name);
    EXECUTE format('ALTER TABLE jobs ATTACH PARTITION %I %s', 'jobs_' || p_name, p_bounds);
    EXECUTE format('CREATE TABLE %I (LIKE ended INCLUDING ALL)', 'ended_' || p_name);
    EXECUTE format('ALTER TABLE ended ATTACH PARTITION %I %s', 'ended_' || p_name, p_bounds);
END $$;

SELECT
    make_partition('before', format('FOR VALUES FROM (MINVALUE) TO (%L)', day_start('2025-01-01'))),
    make_partition('after', format('FOR VALUES FROM (%L) TO (MAXVALUE)', day_start('2100-01-01')));

-- The default partition: all others, and the days to which jobs are moving (``make_day``). The others are scanned whenever
-- a day is made, so payloads do not stay in the row.
CREATE TABLE jobs_default (LIKE jobs INCLUDING ALL) PARTITION BY RANGE (id);
CREATE TABLE ended_default (LIKE ended INCLUDING ALL) PARTITION BY RANGE (id);
ALTER TABLE jobs ATTACH PARTITION jobs_default DEFAULT;
ALTER TABLE ended ATTACH PARTITION ended_default DEFAULT;
CREATE TABLE jobs_other (LIKE jobs INCLUDING ALL) WITH (toast_tuple_target = 128);
CREATE TABLE ended_other (LIKE ended INCLUDING ALL);
ALTER TABLE jobs_default ATTACH PARTITION jobs_other DEFAULT;
ALTER TABLE ended_default ATTACH PARTITION ended_other DEFAULT;

-- The days that have partitions, or that jobs are moving to (of the default partition).
CREATE FUNCTION days_of(p_parent regclass) RETURNS SETOF date LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT to_date(right(c.relname, 8), 'YYYYMMDD')
    FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = p_parent AND c.relname ~ '^jobs_[0-9]{8}$'
$$;

-- The first id of a day that the default partition still has after this many others; NULL if it has no more.
CREATE FUNCTION id_after(p_day date, p_limit integer) RETURNS uuid LANGUAGE sql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_sort = off AS $$
    SELECT o.id FROM jobs_other AS o WHERE o.id >= day_start(p_day) AND o.id < day_start(p_day + 1)  -- jobs_other_pkey
    ORDER BY o.id OFFSET p_limit LIMIT 1
$$;

-- Make the partitions of a day, and move its jobs there from the default partition: those with the lowest ids, up to
-- ``p_limit``. If there are more, the partitions begin with these ids only, as parts of the default one, and the next call
-- goes on. Returns false if somebody is in the way. Only those who look into the default partition wait for this, and it
-- waits for nobody longer than a moment: it can be repeated.
CREATE FUNCTION make_day(p_day date, p_limit integer DEFAULT 10000) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_from CONSTANT uuid := day_start(p_day);
    v_to CONSTANT uuid := day_start(p_day + 1);
    v_begun boolean;
    v_next uuid;
    v_table text;
    v_day text;
BEGIN
    IF p_day IN (SELECT days_of('jobs')) THEN
        RETURN true;
    END IF;
    PERFORM set_config('lock_timeout', '100ms', true);
    LOCK TABLE jobs_default, ended_default IN ACCESS EXCLUSIVE MODE;
    v_begun := p_day IN (SELECT days_of('jobs_default'));
    v_next := id_after(p_day, p_limit);
    FOREACH v_table IN ARRAY ARRAY['jobs', 'ended'] LOOP
        v_day := v_table || to_char(p_day, '_YYYYMMDD');
        IF v_begun THEN
            EXECUTE format('ALTER TABLE %I DETACH PARTITION %I', v_table || '_default', v_day);
        ELSE
            EXECUTE format(
                'CREATE TABLE %I (LIKE %I INCLUDING ALL, CONSTRAINT of_day CHECK (id >= %L AND id < %L)) %s',
                v_day, v_table, v_from, v_to, CASE v_table WHEN 'jobs' THEN 'WITH (toast_tuple_target = 8160)' END
            );
        END IF;
        EXECUTE format(  -- the keys of the default partition
            'WITH early AS (DELETE FROM %I AS o WHERE o.id >= $1 AND o.id < $2 RETURNING o.*) INSERT INTO %I SELECT * FROM early',
            v_table || '_other', v_day
        ) USING v_from, coalesce(v_next, v_to);
        EXECUTE format(
            'ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
            CASE WHEN v_next IS NULL THEN v_table ELSE v_table || '_default' END, v_day, v_from, coalesce(v_next, v_to)
        );
        IF v_next IS NULL THEN
            EXECUTE format('ALTER TABLE %I DROP CONSTRAINT of_day', v_day);
        END IF;
    END LOOP;
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected OR duplicate_table OR unique_violation THEN
    RETURN p_day IN (SELECT days_of('jobs'));  -- all but the first error: somebody else makes it too
END $$;

-- Make one of the next 14 days, or a part of it; those that are soon done come first. Returns whether there may be more
-- to make; NULL if somebody uses the tables.
CREATE FUNCTION make_day_v1(p_at bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_today CONSTANT date := day_of(clock(p_at));
    v_day date;
BEGIN
    IF NOT try_lock('days') THEN
        RETURN NULL;
    END IF;
    SELECT d.day INTO v_day FROM (
        SELECT v_today + ahead AS day FROM generate_series(0, 14) AS ahead UNION SELECT days_of('jobs_default')
    ) AS d WHERE d.day NOT IN (SELECT days_of('jobs')) ORDER BY id_after(d.day, 10000) IS NOT NULL, d.day LIMIT 1;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    RETURN nullif(make_day(v_day), false);
END $$;

SELECT make_day((clock_timestamp() AT TIME ZONE 'UTC')::date + ahead) FROM generate_series(0, 2) AS ahead;

-- Everything about a job, whatever its state. Always queried by id.
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
    e.finished_at, e.held_until, e.reason, e.result, l.progress
FROM jobs AS j
LEFT JOIN patches AS c ON c.id = ANY (ARRAY[j.id])
LEFT JOIN ready AS y ON y.id = ANY (ARRAY[j.id])
LEFT JOIN leased AS l ON l.id = ANY (ARRAY[j.id])
LEFT JOIN paused AS p ON p.id = ANY (ARRAY[j.id])
LEFT JOIN ended AS e ON e.id = ANY (ARRAY[j.id]);
