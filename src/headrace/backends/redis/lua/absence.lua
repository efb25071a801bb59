-- A worker beats that was not listed. If nobody else is either, all were away: if two or more of a fleet at work went together, that
-- time is noted.
local function note_absence(now, gap, at_work)
    local last = call('ZREVRANGE', base .. ':X', 0, 1, 'WITHSCORES')
    if last[2] and tonumber(last[2]) > now then
        return
    end
    local one, other = last[1] and worker_of(last[1]), last[3] and worker_of(last[3])
    if one and other then
        local first, second = tonumber(one[6]), tonumber(other[6])
        local seen = math.max(first, second)
        local since = tonumber(call('HGET', base .. ':Wa', 'since') or 0)
        if math.abs(first - second) <= gap and seen - since >= at_work then
            call('HSET', base .. ':Wa', 'begins', number(seen), 'ends', number(now))
        end
    end
    call('HSET', base .. ':Wa', 'since', number(now))
end

-- The last time that was noted.
local function last_absence()
    local noted = call('HMGET', base .. ':Wa', 'begins', 'ends')
    return tonumber(noted[1] or 0), tonumber(noted[2] or 0)
end
