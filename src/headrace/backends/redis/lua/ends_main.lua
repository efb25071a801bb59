-- Lists the ends of jobs, oldest first. ARGV: now or '', state, instant and id to begin after (-1: at the first), limit. Answers now; then
-- instant, id and size of each.

local now, state, after, id = clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local key, limit, answers = base .. ':d:' .. state, 3 * tonumber(ARGV[5]), {}
local at = after < 0 and 0 or call('ZCOUNT', key, '-inf', '(' .. ARGV[3])
repeat
    local ids, ends, states = ended_jobs(key, at, at + MANY / 2 - 1)
    for i, found in ipairs(ids) do
        if #answers < limit and (tonumber(ends[i]) > after or before(id, found)) then
            push(answers, ends[i], found, read_state(states[i]).size)
        end
    end
    at = at + #ids
until #answers == limit or #ids < MANY / 2
return {number(now), answers}
