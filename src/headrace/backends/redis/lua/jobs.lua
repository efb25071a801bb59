-- Jobs: what they came with, and where they are.

-- In the place of ``cancel``: the job is on its way to another shard.
local LEFT = 2

local function head(job)
    local enqueued_at, size, qid, priority, flags, expires_at = struct.unpack(JOB, job)
    return enqueued_at, expires_at, qid, size, priority, flags
end

local function read_state(packed)
    local state, cancel, lost, instant, held_until, attempt, size, qid, priority, flags, expires_at, run_at, epoch =
        struct.unpack(STATE, packed)
    return {
        state = state, qid = qid, epoch = epoch, attempt = attempt, lost = lost, size = size, priority = priority,
        keyed = flags % 2, grouped = flags % 4 >= 2, begun = flags >= 4, cancel = cancel, run_at = run_at, instant = instant,
        held_until = held_until, expires_at = expires_at, text = string.sub(packed, STATE_SIZE + 1),
    }
end

local function write_state(j)
    return struct.pack(
        STATE, j.state, j.cancel, j.lost, j.instant, j.held_until, j.attempt, j.size, j.qid, j.priority,
        j.keyed + (j.grouped and 2 or 0) + (j.begun and 4 or 0), j.expires_at, j.run_at, j.epoch
    ) .. j.text
end

-- Under which instant a job is listed that is not in the line of its queue.
local elsewhere

-- A job that nobody has leased yet; where it is follows from what it came with.
local function fresh(id, job)
    local enqueued_at, expires_at, qid, size, priority, flags = head(job)
    local listed = call('ZSCORE', base .. ':r:' .. qid .. ':' .. priority, id)
    return {
        state = AVAILABLE, qid = qid, epoch = 0, attempt = 0, lost = 0, size = size, priority = priority,
        keyed = flags % 2, grouped = flags >= 2, begun = false, cancel = 0,
        run_at = tonumber(listed or elsewhere(id, job, qid, priority, flags >= 2)), instant = 0, held_until = 0,
        expires_at = expires_at, text = '',
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

-- Key, task, tenant and (the seventh) group of a job, and where its lengths begin.
local function described(job)
    local length = struct.unpack('>I4', job, JOB_SIZE + 1)
    return cmsgpack.unpack(string.sub(job, JOB_SIZE + 5, JOB_SIZE + 4 + length)), JOB_SIZE + 5 + length
end

-- A job with its headers, but without its cells.
local function without_cells(job)
    local _, at = described(job)
    local headers = struct.unpack('>I4', job, at)
    local length = headers == NONE and 0 or headers
    return string.sub(job, 1, at + 3) .. NO_CELLS .. string.sub(job, at + 20, at + 19 + length)
end
