-- Lets sweeps skip completed jobs whose results are held.
-- They stay beyond their age. A sweep remembers up to where all that is left is held, and until when at least, so that the next one does
-- not read them again.

-- Seconds for which that is remembered.
local MEMORY = 3600

-- Returns the rank to continue at; and, if something is remembered, the last of the held jobs (its instant, its id) and until when all of
-- them are held.
local function after_held(now)
    local instant, till, id = string.match(call('GET', base .. ':dm') or '', '^(%d+):(%d+):(.+)$')
    if not till or tonumber(till) <= now then
        return 0
    end
    local key = base .. ':d:' .. COMPLETED
    local rank = call('ZRANK', key, id)
    return rank and rank + 1 or call('ZCOUNT', key, '-inf', '(' .. instant), instant, id, tonumber(till)
end

local function remember_held(instant, id, till)
    call('SETEX', base .. ':dm', MEMORY, instant .. ':' .. number(till) .. ':' .. id)
end

-- Returns ids, ends and states of ended jobs, by the rank of their ends.
local function ended_jobs(key, from, to)
    local flat, ids, ends = call('ZRANGE', key, from, to, 'WITHSCORES'), {}, {}
    for i = 1, #flat, 2 do
        ids[#ids + 1], ends[#ends + 1] = flat[i], flat[i + 1]
    end
    return ids, ends, ask('HMGET', base .. ':s', ids)
end
