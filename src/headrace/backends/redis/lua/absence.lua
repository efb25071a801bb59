-- Notes the times in which all workers were away at once.
-- Called for a beat of a worker that is not listed. If no other worker is listed either, all were away. The time is noted if at least two
-- workers that had been at work went away together.
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

-- Returns begin and end of the last such time.
local function last_absence()
    local noted = call('HMGET', base .. ':Wa', 'begins', 'ends')
    return tonumber(noted[1] or 0), tonumber(noted[2] or 0)
end
