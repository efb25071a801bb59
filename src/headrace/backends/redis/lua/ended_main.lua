-- Ended jobs that a sweep may condemn, oldest end first. ARGV: now or '', state, older_than (-1: no bound), limit. Answers how many there
-- are, their bytes, and id, instant, size and whether age condemns it, of the first ``limit`` and of those beyond that age condemns.

local now = clock(ARGV[1])
local state, age, limit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local key = base .. ':d:' .. state
local told, listed, aged, at = {}, 0, 0, 0
local done = false
while not done do
    local piece = call('ZRANGE', key, at, at + MANY / 2 - 1, 'WITHSCORES')
    local ids = {}
    for i = 1, #piece, 2 do
        ids[#ids + 1] = piece[i]
    end
    local states = ask('HMGET', base .. ':s', ids)
    for i, id in ipairs(ids) do
        local j = read_state(states[i])
        local past = age >= 0 and tonumber(piece[2 * i]) <= now - age
        local old = past and not (state == COMPLETED and j.held_until > now)
        if listed >= limit and (not past or aged >= limit) then
            done = true
            break
        end
        if old or listed < limit then
            listed = listed + 1
            aged = aged + (old and 1 or 0)
            for _, fact in ipairs({id, piece[2 * i], j.size, old and 1 or 0}) do
                told[#told + 1] = fact
            end
        end
    end
    at = at + #ids
    done = done or #ids < MANY / 2 or at > 50 * limit
end
return {call('ZCARD', key), call('HGET', base .. ':b', state) or '0', told}
