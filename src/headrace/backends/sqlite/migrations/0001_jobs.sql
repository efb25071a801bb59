-- A job's header and small cells lie in ``jobs``, written once. Where the job is, is told by the one of ``ready``,
-- ``running``, ``paused`` and ``ended`` that has its ``seq``; the counters that change from run to run travel there.
-- ``seq`` is an integer because rows that are found and deleted by rowid cost half of those found by a 16-byte id.

-- The queues in use, how many of their jobs are in which state, and until when claims from them are stopped.
-- ``policy`` is what was saved, of which ``turns`` (of a group), ``depth`` and ``holders`` are told apart, and whether it
-- bounds what runs; ``governed`` is 2 until the jobs that waited before have been brought into lanes; ``round`` and
-- ``full_at`` are those of its turns; ``outlived`` counts keys that outlive their jobs.
CREATE TABLE queues (
    qid INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    paused_until INTEGER NOT NULL DEFAULT 0,
    governed INTEGER NOT NULL DEFAULT 0,
    turns INTEGER NOT NULL DEFAULT 1,
    depth INTEGER,
    holders INTEGER,
    bounded INTEGER NOT NULL DEFAULT 0,
    round INTEGER NOT NULL DEFAULT 0,
    full_at INTEGER NOT NULL DEFAULT 0,
    chosen TEXT,
    chosen_until INTEGER NOT NULL DEFAULT 0,
    policy BLOB,
    available INTEGER NOT NULL DEFAULT 0,
    running INTEGER NOT NULL DEFAULT 0,
    jobs_paused INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    outlived INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX queues_stopped ON queues (name) WHERE paused_until > 0;
CREATE INDEX queues_ruled ON queues (name) WHERE governed OR policy IS NOT NULL;

-- Queues that nothing refers to: their names are forgotten by the next sweep.
CREATE INDEX queues_idle ON queues (paused_until)
WHERE NOT governed AND policy IS NULL
    AND available = 0 AND running = 0 AND jobs_paused = 0 AND completed = 0 AND cancelled = 0 AND failed = 0 AND outlived = 0;

-- headers, error and the four sections are NULL (absent), a BLOB (small), or the INTEGER that leads to ``cells``;
-- ``far`` says that there is such an integer. ``lane`` is where the job lies in ``ready``, when it does.
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    qid INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    task TEXT NOT NULL,
    tenant TEXT NOT NULL,
    key TEXT,
    grp TEXT,
    enqueued_at INTEGER NOT NULL,
    expires_at INTEGER,
    max_attempts INTEGER,
    timeout INTEGER,
    result_ttl INTEGER,
    far INTEGER NOT NULL,
    headers ANY,
    error ANY,
    parameters ANY,
    vm_state ANY,
    metadata ANY,
    blob ANY
) STRICT;

CREATE UNIQUE INDEX jobs_id ON jobs (id);

-- What is too big to be carried along with a job's row.
CREATE TABLE cells (
    cell INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- AVAILABLE. The table is its own claim index: what is due lies in its lane in the order of claims, what is not lies in
-- another lane (see 0006).
-- The lane is the qid; in a governed queue, that of the job's tenant and task; and of a job that waits for the turn of
-- its group, the group's line, the negative ``gid``, where every priority is 0 and no claim looks.
-- ``dies_at`` is the later of expiry and ``run_at``: from then on the job is due and expired.
-- ``epoch`` is that of the last lease, 0 if there was none; below 0, here and in ``paused``, if no lease ever began the job.
CREATE TABLE ready (
    lane INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    id BLOB NOT NULL,
    seq INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    size INTEGER NOT NULL,
    dies_at INTEGER,
    gid INTEGER NOT NULL,
    PRIMARY KEY (lane, priority, run_at, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX ready_dying ON ready (dies_at) WHERE dies_at IS NOT NULL;

-- RUNNING. ``gid`` is the job's group, ``tid`` its tenant in a governed queue; 0: none.
CREATE TABLE running (
    seq INTEGER PRIMARY KEY,
    qid INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    size INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    cancel INTEGER NOT NULL,
    holder TEXT NOT NULL,
    gid INTEGER NOT NULL,
    tid INTEGER NOT NULL
) STRICT;

CREATE INDEX running_lease ON running (lease_until);
CREATE INDEX running_cancel ON running (holder) WHERE cancel;

-- PAUSED.
CREATE TABLE paused (
    seq INTEGER PRIMARY KEY,
    qid INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    size INTEGER NOT NULL
) STRICT;

-- COMPLETED (3), CANCELLED (4), FAILED (5). ``result`` is stored as the cells of a job are.
CREATE TABLE ended (
    seq INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    held_until INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    size INTEGER NOT NULL,
    reason TEXT NOT NULL,
    result ANY
) STRICT;

-- ``held_until`` is in it so that a sweep passes over what is protected without looking at the rows.
CREATE INDEX ended_age ON ended (state, finished_at, held_until);
CREATE INDEX ended_held ON ended (held_until) WHERE result IS NOT NULL;

-- FAILED jobs of each tenant by the instant of their end, and how much that is.
CREATE TABLE dead (
    tenant TEXT NOT NULL,
    finished_at INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    size INTEGER NOT NULL,
    PRIMARY KEY (tenant, finished_at, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE shares (
    tenant TEXT PRIMARY KEY,
    jobs INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX shares_jobs ON shares (jobs);
CREATE INDEX shares_bytes ON shares (bytes);

-- How much lies in each of the three places, and how many keys outlive their jobs (6).
CREATE TABLE places (
    state INTEGER PRIMARY KEY,
    count INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO places (state) VALUES (3), (4), (5), (6);

-- The job that last took a key, live or ended. Of a key that outlives its job ``seq`` is 0, and ``id`` and ``held_until`` tell
-- what the job did; of others they are NULL.
CREATE TABLE keys (
    qid INTEGER NOT NULL,
    key TEXT NOT NULL,
    seq INTEGER NOT NULL,
    held_until INTEGER,
    id BLOB,
    PRIMARY KEY (qid, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX keys_outlived ON keys (held_until) WHERE held_until IS NOT NULL;

-- The inboxes that get a hint when the job ends, and since when they wait for it.
CREATE TABLE waiters (
    seq INTEGER NOT NULL,
    inbox TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (seq, inbox)
) STRICT, WITHOUT ROWID;

-- The workers that beat.
CREATE TABLE workers (
    holder TEXT PRIMARY KEY,
    worker TEXT NOT NULL,
    queues TEXT NOT NULL,
    slots INTEGER NOT NULL,
    busy INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    listed_until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
