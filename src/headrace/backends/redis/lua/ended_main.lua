-- Finds ended jobs that a sweep may remove.
-- ARGV: now or '', state, older_than (-1: no bound), limit, whether there are other bounds, whether it is a dry run, how long ago they must
-- have ended at least, and the last instant at which they may have ('': none). Answers how many there are and their bytes; id, instant, size and whether it is too old, of each that may go (with
-- other bounds the first ``limit``; of those that are too old at most ``limit``); and whether it stopped half way.

local now = clock(ARGV[1])
local state, age, limit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local first = ARGV[5] == '1' and limit or 0
local dry = ARGV[6] == '1'
local spared = math.min(now - tonumber(ARGV[7]), tonumber(ARGV[8]) or now)
local key = base .. ':d:' .. state

local answers, aged = {}, 0

local function look(from, to, pass)
    local ids, ends, states = ended_jobs(key, from, to)
    for i, id in ipairs(ids) do
        local j = read_state(states[i])
        local past = age >= 0 and tonumber(ends[i]) <= now - age
        local old = past and not (state == COMPLETED and j.held_until > now)
        if tonumber(ends[i]) > spared or not pass(id, ends[i], j, past, old) then
            return 0
        end
    end
    return #ids
end

local function add(id, instant, j, old)
    aged = aged + (old and 1 or 0)
    for _, fact in ipairs({id, instant, j.size, old and 1 or 0}) do
        answers[#answers + 1] = fact
    end
end

if first > 0 then
    look(0, first - 1, function(id, instant, j, past, old)
        add(id, instant, j, old)
        return true
    end)
end

-- Held jobs are remembered only as long as none before them may go: that one may still be here next time.
local at, walked, last, earliest = 0, nil, nil, nil
if state == COMPLETED then
    at, walked, last, earliest = after_held(now)
end
local known = at
local budget, more = at + 50 * limit, false
while age >= 0 and aged < limit do
    local seen = look(at, at + MANY / 2 - 1, function(id, instant, j, past, old)
        if not past or aged >= limit then
            return false
        end
        if old then
            if at >= first then
                add(id, instant, j, true)
            end
        elseif aged == 0 then
            walked, last, earliest = instant, id, math.min(earliest or j.held_until, j.held_until)
        end
        at = at + 1
        return true
    end)
    if seen < MANY / 2 then
        break
    end
    if at > budget then
        more = not dry
        break
    end
end
if not dry and state == COMPLETED and at > known and walked then
    remember_held(walked, last, earliest)
end
return {call('ZCARD', key), call('HGET', base .. ':b', state) or '0', answers, more and 1 or 0}
