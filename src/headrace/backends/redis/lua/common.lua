-- Begins every script: the keys of a store and how its values are laid out. All keys begin with KEYS[1], whose hash tag
-- puts them into one slot:
--
--   :j          hash    id -> job as it was enqueued: a head (JOB), then what only clients read
--   :s          hash    id -> where the job is and what changed since (STATE); none: AVAILABLE, and never leased
--   :a          zset    every id, all with the score 0, so by id
--   :u:TENANT   zset    likewise the ids of one tenant   :u  set   tenants that have any
--   :r:Q:P      zset    AVAILABLE jobs of queue number Q and priority P by run_at: those that are due, or were once
--   :pq         zset    numbers of queues by the lowest priority that has such jobs    :p:Q zset  further such priorities of Q
--   :f:Q        zset    AVAILABLE jobs of Q that are delayed (priority + 32768 in 2 bytes, id) by run_at
--   :fq         zset    numbers of queues by the instant of the first of these; of a governed queue by the instant from which a claim
--                       may find something
--   :i:Q:GROUP  zset    AVAILABLE jobs that are not called in their group, by run_at; they are not in the claim index
--   :ic:Q:GROUP zset    jobs that are called, by run_at, or with -1 if they are known to stay called
--   :i          zset    Q:GROUP of every group that has jobs in these two, all with the score 0
--   :ir         hash    Q -> where to continue when jobs are called again: within a group, then the group
--   :y          zset    AVAILABLE jobs that can expire, by the instant at which they are both due and expired
--   :l          zset    RUNNING jobs by the end of their lease
--   :lp         hash    id -> epoch (8 bytes) and progress of a RUNNING job that has told it
--   :x:HOLDER   set     RUNNING jobs of a holder whose cancellation was requested
--   :d:STATE    zset    ended jobs of one state by the instant of their end
--   :D:TENANT   zset    FAILED jobs of one tenant, likewise
--   :Dj         zset    tenants by how many these are    :Db zset  by their bytes
--   :E          zset    what sweeps have removed: hour, state, length of the task, task and tenant, by the hour
--   :Ej         hash    the same -> how many jobs        :Eb hash  the same -> their bytes
--   :dm         string  INSTANT:TILL:ID: what ended before and is still here is held until TILL at least
--   :h          hash    id -> result                     :hx zset  these jobs by the instant until which it is held
--   :e          hash    id -> error                      :c  hash  id -> cells that a run has replaced or cleared
--   :k          hash    Q:KEY -> who last took the key (KEY)
--   :kx         zset    keys that outlive the record of their job, by the instant until which they are held
--   :R          zset    jobs by the hour of the oldest object that their cells refer to
--   :w          hash    id -> inboxes that wait for the job's end
--   :q          hash    queue name -> number             :qn hash  number -> name          :qi  the last number
--   :z          zset    numbers of paused queues by the end of the pause (FOREVER: until they are resumed)
--   :n          hash    Q:STATE -> jobs, and w -> waiting jobs (AVAILABLE or PAUSED) of all queues
--   :b          hash    STATE -> bytes of ended jobs
--   :P          hash    Q -> policy (POLICY); 0 is the store              :Pk:Q hash  task -> its rate
--   :W          hash    holder -> worker                 :X  zset  holders by the instant until which they are listed
--   :Wa         hash    since when any worker has been listed; begin and end of the last time when none was
--   :g:QUEUE    list    signals to workers that wait for jobs of a queue
--   :S          hash    name of a schedule -> how far it is planned (SCHEDULE)         :Sd hash  name -> its definition
--   :Sn         zset    every such name, all with the score 0, so by name
--   :Sl:R:B     zset    enabled schedules of plan_priority R and bucket B by the instant at which they must be looked at
--   :Sh:R       zset    the first of each of these lists, likewise   :Sr zset  plan_priorities that have any
--   :T:UID      zset    what became of the slots of a schedule (TICK) by slot
--   :T          zset    the slots of all schedules (PLANNED) by the instant at which they were planned
--   :K          hash    name of a document -> its version (8 bytes) and body
--   :Ys:L:NAME  string  a sheet of a tracker that begins at L (SHEET); NAME is how long its tracker's name is, that name, and the tier
--   :Yl:NAME    zset    where the sheets of one tier begin, by the same number
--   :Yd:TRACKER zset    the sheets of a tracker (L:TIER) by the instant at which they must be looked at
--   :Yn         hash    NAME -> how many sheets, subjects and bytes of content (msgpack)
--   :L          hash    legs of transfers that are open here
--   :Ld:LEG     zset    jobs that departed on a leg, all with the score 0, so by id    :La:LEG zset  jobs that arrived
--   :Lo:LEG     zset    likewise those whose parcels were not confirmed
--   :Lp:LEG     hash    id -> parcel (msgpack)           :Lk:LEG hash  length of the queue's name, that name and the key -> id
--   :parts:ID   zset    parts that a running job has sent (epoch and number in 8 bytes each, body), all with the score 0; they expire
--   :v          string  the layout of all this
--
-- and for governed queues, whose jobs are in lanes instead, one for each tenant, priority and task:
--
--   :G:N:P:TASK zset    AVAILABLE jobs of tenant number N by run_at: those that are due, or were once
--   :Gp:N       zset    its lanes by priority: run_at in 8 bytes and id of the first job, priority + 32768 in 2 bytes, task
--   :Gc:N       zset    its shut lanes, which are not among these: length of the task in 4 bytes, task, priority, run_at and id as above,
--                       all with the score 0
--   :Gt:N       zset    tasks of these by the instant from which they may be open
--   :Gf:N       zset    its delayed jobs (priority + 32768 in 2 bytes, id, task) by run_at
--   :H:Q        zset    lanes (N:P:TASK) of Q by the run_at of their first jobs
--   :F:Q        zset    delayed jobs of Q by run_at
--   :o          hash    Q -> its round                   :ow hash  Q -> the tenant after which all are still to be woken (WAKING)
--   :oc         hash    Q -> where to continue counting its running jobs
--   :of:Q       hash    buckets of rates (BUCKET): of the queue (q), of tasks (kTASK)
--   :oz:Q       zset    paused tasks by the end of the pause
--   :M          hash    N -> tenant (TENANT)             :Mn string  the last number
--   :V:Q        zset    tenants (NAME, a zero byte, N in 8 bytes), all with the score 0, so by name
--   :A:Q        zset    awake tenants (since when in 8 bytes, then as above) by their counts
--   :O:Q:HOLDER zset    awake tenants whose jobs only their present holders may claim, for each of these holders, likewise
--   :B:Q        zset    numbers of tenants asleep by the instant at which they wake
--   :Mi         zset    numbers of tenants that have nothing, by the instant from which they may be removed
--
-- and, if the store has several shards, numbered ones:
--
--   :t:TARGET   list    entries on their way to another shard, oldest first      :tn hash  TARGET -> the last number given out
--   :tr:SOURCE  hash    replid of its server -> the number up to which its entries were taken in
--   :to         hash    jobs on their way -> serial of the entry, number:replid
--   :m          zset    traces of jobs that have left lately, or found no room and went elsewhere, by when they did
--   :So         hash    schedules on their way -> serial of the entry
--
-- Channels, where PREFIX is what comes before the hash tag: PREFIX:inbox:NAME with the id of a job that ended,
-- PREFIX:holder:NAME when a cancellation waits for a holder, and PREFIX:schedules:all when schedules have changed.
--
-- States: 0 available, 1 running, 2 paused, 3 completed, 4 cancelled, 5 failed. Instants are microseconds since 1970,
-- which a Lua number holds exactly until the year 2255.

local base = KEYS[1]
local call = redis.call

-- enqueued_at, size, qid, priority, flags (1: it has a key, 2: a group), expires_at (0: never)
local JOB = '>I8I4I4i2BI8'
local JOB_SIZE = 27
-- state, cancel, lost, instant (lease_until, finished_at), held_until, attempt, then what JOB has from its size on,
-- run_at, epoch; then the holder or the reason. A lease is the last two. The flags also have 4 if a handler may have
-- been called for the job before its lease, or before it last waited. While a job of a governed queue is running,
-- held_until has its tenant's number.
local STATE = '>BBI4I8I8I4I4I4i2BI8I8I8'
local STATE_SIZE = 61
local LOST_AT, HELD_AT, ATTEMPT_AT, SIZE_AT, QID_AT, LEASE_AT = 3, 15, 23, 27, 31, 54
local JOB_SIZE_AT = 9
-- After JOB: the length of what follows (4 bytes); key, task, tenant and others, and a group if there is one (msgpack);
-- five lengths (of the headers and of each section, NONE: there is none); then their bytes.
local NONE = 4294967295
local NO_CELLS = string.rep('\255', 16)
-- id, held_until, kind: 0 its job lives, 1 it ended, 2 it failed, 3 the key outlives its record
local KEY = '>c16I8B'
local KEY_SIZE = 25
local OUTLIVES = 3

local AVAILABLE, RUNNING, PAUSED, COMPLETED, CANCELLED, FAILED = 0, 1, 2, 3, 4, 5
local MANY = 2000
local FOREVER = 9007199254740991

-- The time of this call.
local instant

local function clock(given)
    if given ~= '' then
        instant = tonumber(given)
    else
        local t = call('TIME')
        instant = tonumber(t[1]) * 1000000 + tonumber(t[2])
    end
    return instant
end

local function number(n)
    return string.format('%.0f', n)
end

-- Whether a number has a flag, which is a power of 2.
local function is_set(flags, flag)
    return math.floor(flags / flag) % 2 == 1
end

-- Returns a function that returns what ``make`` makes when it is first needed.
local function once(make)
    local made
    return function()
        made = made or make()
        return made
    end
end

-- Appends values to a list.
local function push(list, ...)
    for _, value in ipairs({...}) do
        list[#list + 1] = value
    end
end

-- Returns the ids, of 16 bytes each, that were given in one string.
local function ids_in(packed)
    local ids = {}
    for i = 1, #packed / 16 do
        ids[i] = string.sub(packed, 16 * i - 15, 16 * i)
    end
    return ids
end

-- Sends one command with many arguments, in pieces that fit on the stack.
local function many(command, key, args)
    local count = #args
    if count == 0 then
        return
    elseif count <= MANY then
        return call(command, key, unpack(args))
    end
    for first = 1, count, MANY do
        call(command, key, unpack(args, first, math.min(first + MANY - 1, count)))
    end
end

local function ask(command, key, args)
    local count = #args
    if count <= MANY then
        if count == 0 then
            return {}
        end
        return call(command, key, unpack(args))
    end
    local found = {}
    for first = 1, count, MANY do
        local last = math.min(first + MANY - 1, count)
        local part = call(command, key, unpack(args, first, last))
        for i = 1, last - first + 1 do
            found[first + i - 1] = part[i]
        end
    end
    return found
end
