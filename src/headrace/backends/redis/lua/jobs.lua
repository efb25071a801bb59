-- Reads and writes jobs and their states.

-- The values of ``cancel``: 0, or a client (1) or a plan (3) requested the cancellation of a running job, which then ends with this reason;
-- or ``left``: the job is on its way to another shard.
local asked = {[1] = 'cancelled', [3] = 'superseded', left = 2}

-- Whether a job, and its state, are as they were written, judging by their lengths. Anything else is read as nothing, and never stops a
-- script; see ``set_aside``.
local function is_whole_job(job)
    return job and #job >= JOB_SIZE + 24 and JOB_SIZE + 24 + struct.unpack('>I4', job, JOB_SIZE + 1) <= #job
end

local function is_whole_state(packed)
    return packed and #packed >= STATE_SIZE and string.byte(packed) <= FAILED
end

local function head(job)
    if not job or #job < JOB_SIZE then
        return 0, 0, 0, 0, 0, 0
    end
    local enqueued_at, size, qid, priority, flags, expires_at = struct.unpack(JOB, job)
    return enqueued_at, expires_at, qid, size, priority, flags
end

local function read_state(packed)
    if not is_whole_state(packed) then
        return {
            state = FAILED, qid = 0, epoch = 0, attempt = 0, lost = 0, size = 0, priority = 0, keyed = 0, grouped = false,
            begun = true, cancel = 0, run_at = 0, instant = 0, held_until = 0, expires_at = 0, text = 'corrupt', unreadable = true,
        }
    end
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

-- Returns the run_at of a job that is not in the index of ungoverned queues.
local elsewhere

-- Returns a job that was never leased: its head says where it is. If it is on no list, it cannot be read.
local function fresh(id, job)
    local _, expires_at, qid, size, priority, flags = head(job)
    local listed = is_whole_job(job) and (call('ZSCORE', base .. ':r:' .. qid .. ':' .. priority, id)
        or call('ZSCORE', base .. ':f:' .. qid, struct.pack('>I2', priority + 32768) .. id)
        or elsewhere(id, job, qid, priority, flags >= 2))
    if not listed then
        return read_state(false)
    end
    return {
        state = AVAILABLE, qid = qid, epoch = 0, attempt = 0, lost = 0, size = size, priority = priority,
        keyed = flags % 2, grouped = flags >= 2, begun = false, cancel = 0,
        run_at = tonumber(listed), instant = 0, held_until = 0,
        expires_at = expires_at, text = '',
    }
end

local function find(id)
    local packed = call('HGET', base .. ':s', id)
    if packed then
        return read_state(packed)
    end
    local job = call('HGET', base .. ':j', id)
    return (job or call('ZSCORE', base .. ':a', id)) and fresh(id, job)
end

-- Sets aside a job that cannot be read.
local set_aside

-- Returns the name of the holder's worker, or false if the worker is not listed any more.
local worker_of

do
    local known = {}

    -- Its queues may be very many: only the name is decoded, which comes first after the byte that begins the array.
    local function read_name(holder)
        local fine, _, name = pcall(cmsgpack.unpack_one, call('HGET', base .. ':W', holder) or '', 1)
        return fine and type(name) == 'string' and name
    end

    function worker_of(holder, now)
        if known[holder] == nil then
            local listed = call('ZSCORE', base .. ':X', holder)
            known[holder] = listed and tonumber(listed) > now and read_name(holder)
        end
        return known[holder]
    end
end

-- Returns the progress of a RUNNING job, or false.
local function progress_of(id, j)
    local told = j.state == RUNNING and call('HGET', base .. ':lp', id)
    return told and #told >= 8 and struct.unpack('>I8', told) == j.epoch and string.sub(told, 9)
end

local function save(id, j)
    call('HSET', base .. ':s', id, write_state(j))
end

-- Returns key, task, tenant and (at 7) group of a job, and where its lengths begin.
local function labels_of(job)
    if is_whole_job(job) then
        local length = struct.unpack('>I4', job, JOB_SIZE + 1)
        local fine, labels = pcall(cmsgpack.unpack, string.sub(job, JOB_SIZE + 5, JOB_SIZE + 4 + length))
        if fine and type(labels) == 'table' and type(labels[2]) == 'string' and type(labels[3]) == 'string' then
            return labels, JOB_SIZE + 5 + length
        end
    end
    return {nil, '', ''}
end

-- Returns a job with its headers, but without its cells.
local function without_cells(job)
    local _, at = labels_of(job)
    if not at then
        return ''
    end
    local headers = struct.unpack('>I4', job, at)
    local length = headers == NONE and 0 or headers
    return string.sub(job, 1, at + 3) .. NO_CELLS .. string.sub(job, at + 20, at + 19 + length)
end
