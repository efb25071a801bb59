-- What every script begins with. All keys of a store begin with KEYS[1], whose hash tag puts them into one slot:
--
--   :j          hash    id -> job as it was enqueued: a head (JOB), then what only clients read
--   :s          hash    id -> where the job is and what changed since (STATE); none: AVAILABLE, and never leased
--   :a          zset    every id, all with the score 0, so by id
--   :r:Q:P      zset    AVAILABLE jobs of queue number Q and priority P by run_at
--   :p:Q        zset    priorities of Q that have AVAILABLE jobs
--   :y          zset    AVAILABLE jobs that can expire, by the instant from which on they are due and expired
--   :l          zset    RUNNING jobs by the end of their lease
--   :x:HOLDER   set     RUNNING jobs of a holder whose cancellation was asked for
--   :d:STATE    zset    ended jobs of one state by the instant of their end
--   :h          hash    id -> result                     :hx zset  those jobs by the instant until which it is held
--   :e          hash    id -> error                      :c  hash  id -> cells that a run has replaced or cleared
--   :k          hash    Q:KEY -> who last took the key (KEY)
--   :w          hash    id -> inboxes that wait for the job's end
--   :q          hash    queue name -> number             :qn hash  number -> name          :qi  the last number
--   :z          set     numbers of paused queues
--   :n          hash    Q:STATE -> jobs                  :b  hash  STATE -> bytes of ended jobs
--   :W          hash    holder -> worker                 :X  zset  holders by the instant until which they are listed
--   :g:QUEUE    list    signals to those who wait for jobs of a queue
--   :v          string  the layout of all this
--
-- and where a store is made of several shards, those numbered:
--
--   :t:TARGET   list    entries on their way to another shard, oldest first      :tn hash  TARGET -> the last number given out
--   :tr         hash    SOURCE -> the number up to which its entries were taken in
--   :to         hash    jobs on their way -> number of the entry
--   :m          zset    jobs that have left, by the instant; they stay in :a for a while
--
-- Channels, where PREFIX is what comes before the hash tag: PREFIX:inbox:NAME with the id of a job that ended, and
-- PREFIX:holder:NAME when a cancellation waits for a holder.
--
-- States: 0 available, 1 running, 2 paused, 3 completed, 4 cancelled, 5 failed. Instants are microseconds since 1970,
-- which a Lua number holds exactly until the year 2255.

local base = KEYS[1]
local call = redis.call

-- enqueued_at, size, qid, priority, keyed, expires_at (0: never)
local JOB = '>I8I4I4i2BI8'
local JOB_SIZE = 27
-- state, cancel, lost, instant (lease_until, finished_at), held_until, attempt, then what JOB has from its size on, run_at,
-- epoch; then the holder or the reason. A lease is the last two.
local STATE = '>BBI4I8I8I4I4I4i2BI8I8I4'
local STATE_SIZE = 57
local ATTEMPT_AT, SIZE_AT, QID_AT, LEASE_AT = 23, 27, 31, 54
local JOB_SIZE_AT = 9
-- After JOB: the length of what follows (4 bytes); key, task, tenant and others (msgpack); five lengths (of the headers and
-- of each section, NONE: there is none); the bytes of these.
local NONE = 4294967295
local NO_CELLS = string.rep('\255', 16)
-- id, held_until, kind: 0 its job lives, 1 it ended, 2 it failed
local KEY = '>c16I8B'

local AVAILABLE, RUNNING, PAUSED, COMPLETED, CANCELLED, FAILED = 0, 1, 2, 3, 4, 5
local MANY = 2000
local SIGNALS = 8
local SIGNAL_TTL = 60
local ONES = {'', '', '', '', '', '', '', ''}

local function clock(given)
    if given ~= '' then
        return tonumber(given)
    end
    local t = call('TIME')
    return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

local function number(n)
    return string.format('%.0f', n)
end

-- One command with many arguments, in pieces that fit on the stack.
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

local counted, weighed = {}, {}

local function count(qid, state, jobs)
    local name = qid .. ':' .. state
    counted[name] = (counted[name] or 0) + jobs
end

local function weigh(state, bytes)
    weighed[state] = (weighed[state] or 0) + bytes
end

local function settle_counts()
    for name, jobs in pairs(counted) do
        if jobs ~= 0 and call('HINCRBY', base .. ':n', name, number(jobs)) == 0 then
            call('HDEL', base .. ':n', name)
        end
    end
    for state, bytes in pairs(weighed) do
        if bytes ~= 0 then
            call('HINCRBY', base .. ':b', state, number(bytes))
        end
    end
    counted, weighed = {}, {}
end

-- Queues

local names = {}

local function qid_of(name)
    local found = call('HGET', base .. ':q', name)
    if not found then
        found = call('INCR', base .. ':qi')
        call('HSET', base .. ':q', name, found)
        call('HSET', base .. ':qn', found, name)
    end
    found = tonumber(found)
    names[found] = name
    return found
end

local function name_of(qid)
    local found = names[qid]
    if not found then
        found = call('HGET', base .. ':qn', qid) or ''
        names[qid] = found
    end
    return found
end

-- Signals. One wakes one of those who wait; whoever finds more than it can take passes it on.

local function tell(kind, name, what)
    call('PUBLISH', string.match(base, '^[^{]*') .. ':' .. kind .. ':' .. name, what)
end

local woken = {}

local function wake(qid, jobs)
    woken[qid] = (woken[qid] or 0) + jobs
end

local function settle_signals()
    for qid, jobs in pairs(woken) do
        local key = base .. ':g:' .. name_of(qid)
        local there = call('LLEN', key)
        local more = math.min(jobs, SIGNALS - there)
        if more > 0 then
            call('LPUSH', key, unpack(ONES, 1, more))
        end
        if there == 0 then
            call('EXPIRE', key, SIGNAL_TTL)
        end
    end
    woken = {}
end

local function tell_waiters(id)
    local packed = call('HGET', base .. ':w', id)
    if packed then
        call('HDEL', base .. ':w', id)
        for _, inbox in ipairs(cmsgpack.unpack(packed)) do
            tell('inbox', inbox, id)
        end
    end
end

local function watch(id, inbox)
    local packed = call('HGET', base .. ':w', id)
    local inboxes = packed and cmsgpack.unpack(packed) or {}
    for _, known in ipairs(inboxes) do
        if known == inbox then
            return
        end
    end
    inboxes[#inboxes + 1] = inbox
    call('HSET', base .. ':w', id, cmsgpack.pack(inboxes))
end

-- Jobs

local function head(job)
    local enqueued_at, size, qid, priority, keyed, expires_at = struct.unpack(JOB, job)
    return enqueued_at, expires_at, qid, size, priority, keyed
end

local function read_state(packed)
    local state, cancel, lost, instant, held_until, attempt, size, qid, priority, keyed, expires_at, run_at, epoch =
        struct.unpack(STATE, packed)
    return {
        state = state, qid = qid, epoch = epoch, attempt = attempt, lost = lost, size = size, priority = priority,
        keyed = keyed, cancel = cancel, run_at = run_at, instant = instant, held_until = held_until,
        expires_at = expires_at, text = string.sub(packed, STATE_SIZE + 1),
    }
end

local function write_state(j)
    return struct.pack(
        STATE, j.state, j.cancel, j.lost, j.instant, j.held_until, j.attempt, j.size, j.qid, j.priority, j.keyed,
        j.expires_at, j.run_at, j.epoch
    ) .. j.text
end

-- A job that nobody has leased yet; where it is follows from what it came with.
local function fresh(id, job)
    local enqueued_at, expires_at, qid, size, priority, keyed = head(job)
    local run_at = tonumber(call('ZSCORE', base .. ':r:' .. qid .. ':' .. priority, id))
    return {
        state = AVAILABLE, qid = qid, epoch = 0, attempt = 0, lost = 0, size = size, priority = priority, keyed = keyed,
        cancel = 0, run_at = run_at, instant = 0, held_until = 0, expires_at = expires_at, text = '',
    }
end

local function find(id)
    local packed = call('HGET', base .. ':s', id)
    if packed then
        return read_state(packed)
    end
    local job = call('HGET', base .. ':j', id)
    return job and fresh(id, job)
end

local function save(id, j)
    call('HSET', base .. ':s', id, write_state(j))
end

local function put_ready(id, j)
    local key = base .. ':r:' .. j.qid .. ':' .. j.priority
    if call('ZADD', key, number(j.run_at), id) == 1 and call('ZCARD', key) == 1 then
        call('ZADD', base .. ':p:' .. j.qid, j.priority, j.priority)
    end
    if j.expires_at > 0 then
        call('ZADD', base .. ':y', number(math.max(j.expires_at, j.run_at)), id)
    end
end

local function leave_ready(id, j)
    local key = base .. ':r:' .. j.qid .. ':' .. j.priority
    call('ZREM', key, id)
    if call('EXISTS', key) == 0 then
        call('ZREM', base .. ':p:' .. j.qid, j.priority)
    end
    if j.expires_at > 0 then
        call('ZREM', base .. ':y', id)
    end
end

local function leave_running(id, j)
    call('ZREM', base .. ':l', id)
    if j.cancel == 1 then
        call('SREM', base .. ':x:' .. j.text, id)
    end
end

-- Out of the place that it is in, which is counted.
local function leave(id, j)
    count(j.qid, j.state, -1)
    if j.state == AVAILABLE then
        leave_ready(id, j)
    elseif j.state == RUNNING then
        leave_running(id, j)
    elseif j.state >= COMPLETED then
        call('ZREM', base .. ':d:' .. j.state, id)
        weigh(j.state, -j.size)
    end
end

-- Key, task and tenant of a job, and where its lengths begin.
local function described(job)
    local length = struct.unpack('>I4', job, JOB_SIZE + 1)
    return cmsgpack.unpack(string.sub(job, JOB_SIZE + 5, JOB_SIZE + 4 + length)), JOB_SIZE + 5 + length
end

-- Keys

local function key_of(id)
    return described(call('HGET', base .. ':j', id))[1]
end

local function key_field(qid, key)
    return qid .. ':' .. key
end

-- Who has the key now: the id, and whether that keeps others from taking it.
local function key_holder(qid, key, now, hold_failed)
    local packed = call('HGET', base .. ':k', key_field(qid, key))
    if not packed then
        return nil, false
    end
    local id, held_until, kind = struct.unpack(KEY, packed)
    return id, kind == 0 or held_until > now or (kind == 2 and hold_failed)
end

local function take_key(id, qid, key)
    call('HSET', base .. ':k', key_field(qid, key), struct.pack(KEY, id, 0, 0))
end

-- The end of the job that has it.
local function end_key(id, j, held_until)
    if j.keyed == 1 then
        local field = key_field(j.qid, key_of(id))
        local packed = call('HGET', base .. ':k', field)
        if packed and string.sub(packed, 1, 16) == id then
            call('HSET', base .. ':k', field, struct.pack(KEY, id, held_until, j.state == FAILED and 2 or 1))
        end
    end
end

local function drop_key(id, j)
    if j.keyed == 1 then
        local field = key_field(j.qid, key_of(id))
        local packed = call('HGET', base .. ':k', field)
        if packed and string.sub(packed, 1, 16) == id then
            call('HDEL', base .. ':k', field)
        end
    end
end

-- The job has left its place and ends.
local function finish(id, j, state, now, reason, held_until)
    j.state = state
    j.cancel = 0
    j.instant = now
    j.held_until = held_until or 0
    j.text = reason
    save(id, j)
    call('ZADD', base .. ':d:' .. state, number(now), id)
    count(j.qid, state, 1)
    weigh(state, j.size)
    end_key(id, j, j.held_until)
    tell_waiters(id)
end

-- Nothing is left of an ended job, or of one that has left its place.
local function forget(id, j)
    drop_key(id, j)
    call('HDEL', base .. ':j', id)
    call('HDEL', base .. ':s', id)
    call('HDEL', base .. ':e', id)
    call('HDEL', base .. ':c', id)
    call('HDEL', base .. ':w', id)
    if call('HDEL', base .. ':h', id) == 1 then
        call('ZREM', base .. ':hx', id)
    end
    call('ZREM', base .. ':a', id)
end
