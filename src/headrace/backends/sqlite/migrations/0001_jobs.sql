-- ``jobs`` has one row per job, with its small cells. The state of a job is told by the table that has its ``seq``:
-- ``ready``, ``running``, ``paused`` or ``ended``. What changes from run to run is kept there.
-- ``seq`` is an integer because it costs half as much to find and delete a row by rowid as by a 16-byte id.
-- Instants and durations are microseconds; instants count from 1970.

-- The queues in use, their rules, and how many of their jobs are in which state. Nothing is claimed from a queue before
-- ``paused_until``. ``policy`` is the policy as it was saved. Copies of its rules: ``turns`` is ``group_running``,
-- ``holders`` is ``tenant_workers``; ``bounded`` says whether any rule limits what runs. ``governed`` is 2 until the
-- jobs that waited before have been brought into the lanes of their tenants. ``round`` and ``full_at``: see
-- ``Backend.claim`` and ``Rate``. ``chosen`` is the holder that is chosen for jobs on their last chance. ``outlived``
-- counts keys that outlive their jobs.
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

-- Queues that nothing refers to. The next sweep forgets them.
CREATE INDEX queues_idle ON queues (paused_until)
WHERE NOT governed AND policy IS NULL
    AND available = 0 AND running = 0 AND jobs_paused = 0 AND completed = 0 AND cancelled = 0 AND failed = 0 AND outlived = 0;

-- headers, error and the four sections are NULL (absent), a BLOB (small), or an INTEGER (a row of ``cells``). ``far``
-- is 1 if one of them is an INTEGER. ``lane`` is the lane of the job in ``ready``, or the last one it was in.
-- ``object_hour`` is the hour, since 1970, of the oldest object that a cell refers to.
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
    blob ANY,
    object_hour INTEGER
) STRICT;

CREATE UNIQUE INDEX jobs_id ON jobs (id);
CREATE INDEX jobs_objects ON jobs (object_hour, id) WHERE object_hour IS NOT NULL;

-- Cells that are too big for their job's row.
CREATE TABLE cells (
    cell INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- AVAILABLE. The table is its own claim index: the jobs of a lane lie in claim order. The lane is
--
-- * the qid; in a governed queue, the lane of the job's tenant and task (see ``lanes``);
-- * while the job is delayed, the lane of delayed jobs beside that one: -2**40 minus its number. Every priority is 0;
-- * while the job is not called, the line of its group: the negative ``gid``. Every priority is 0, and no claim looks.
--
-- ``dies_at`` is the expiry or ``run_at``, whichever is later: from then on the job is due and expired. ``epoch`` is
-- the one of the last lease, 0 if there was none. Here and in ``paused`` it is negative if the job has not begun.
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

-- Jobs that can expire, by lane: claims find out in one probe whether any of a lane has.
CREATE INDEX ready_doomed ON ready (lane, dies_at) WHERE dies_at IS NOT NULL;

-- Jobs that were lost at least once. Claims pass over those that were lost too often. Mostly empty.
CREATE INDEX ready_lost ON ready (lane, priority, run_at, lost) WHERE lost > 0;

-- RUNNING. ``gid`` is the job's group, ``tid`` its tenant in a governed queue; 0: none. ``cancel`` is 1 if somebody has
-- requested the cancellation, 2 if a plan was the first to do so. ``begun`` says whether the job had begun before this
-- lease. ``progress`` is what its holder last said of it.
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
    tid INTEGER NOT NULL,
    begun INTEGER NOT NULL DEFAULT 0,
    progress BLOB
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

-- COMPLETED (3), CANCELLED (4), FAILED (5). ``result`` is stored like the cells of a job.
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

-- With ``held_until`` in the index, a sweep passes over what is held without reading the rows.
CREATE INDEX ended_age ON ended (state, finished_at, held_until);
CREATE INDEX ended_held ON ended (held_until) WHERE result IS NOT NULL;

-- The dead letters of each tenant, in the order of their ends; and how many each tenant has, and how many bytes.
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

-- How many jobs have ended in each state, and their bytes; how many keys outlive their jobs (6); how many ticks (7).
CREATE TABLE places (
    state INTEGER PRIMARY KEY,
    count INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO places (state) VALUES (3), (4), (5), (6), (7);

-- The job that last took a key, live or ended. If the key outlives its job, ``seq`` is 0, and ``id`` and ``held_until``
-- are those of the job; otherwise both are NULL.
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

-- The workers, as their last beats left them, and since when each has been steady. ``queues`` is a JSON array.
CREATE TABLE workers (
    holder TEXT PRIMARY KEY,
    worker TEXT NOT NULL,
    queues TEXT NOT NULL,
    slots INTEGER NOT NULL,
    busy INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    listed_until INTEGER NOT NULL,
    steady_since INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- One row: since when somebody has been listed without a break, and the last absence of the fleet that was nobody's
-- fault (see ``Backend.renew``).
CREATE TABLE absence (
    at_work_since INTEGER NOT NULL,
    begins INTEGER NOT NULL,
    ends INTEGER NOT NULL
) STRICT;

INSERT INTO absence VALUES (0, 0, 0);
