-- Adds up jobs per queue and state, and the bytes of ended jobs, and writes the sums once.

local counted, weighed, waiting = {}, {}, 0

-- Queue and state as one number: faster to make than a string.
local STATES = 8

local function count(qid, state, jobs)
    local place = qid * STATES + state
    counted[place] = (counted[place] or 0) + jobs
    if state == AVAILABLE or state == PAUSED then
        waiting = waiting + jobs
    end
end

local function weigh(state, bytes)
    weighed[state] = (weighed[state] or 0) + bytes
end

local function settle_counts()
    for place, jobs in pairs(counted) do
        if jobs ~= 0 then
            local name = math.floor(place / STATES) .. ':' .. place % STATES
            if call('HINCRBY', base .. ':n', name, number(jobs)) == 0 then
                call('HDEL', base .. ':n', name)
            end
        end
    end
    for state, bytes in pairs(weighed) do
        if bytes ~= 0 then
            call('HINCRBY', base .. ':b', state, number(bytes))
        end
    end
    if waiting ~= 0 and call('HINCRBY', base .. ':n', 'w', number(waiting)) == 0 then
        call('HDEL', base .. ':n', 'w')
    end
    counted, weighed, waiting = {}, {}, 0
end
