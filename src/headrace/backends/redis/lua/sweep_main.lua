-- Removes ended jobs, oldest end first; FAILED jobs that are too old, or if none is, those that are too many.
-- ARGV: now or '', state (0: results), older_than, max_count, max_bytes (-1: no bound), limit, whether it is a dry run, how long ago they
-- must have ended at least, and the last instant at which they may have ('': none). Answers removed, bytes, kept, more.

local now = clock(ARGV[1])
local state = tonumber(ARGV[2])
local age, most, most_bytes, limit = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local dry = ARGV[7] == '1'
local spared = math.min(now - tonumber(ARGV[8]), tonumber(ARGV[9]) or now)

if state == 0 then
    local ids = call('ZRANGEBYSCORE', base .. ':hx', '-inf', number(now), 'LIMIT', 0, limit + 1)
    local more = #ids > limit
    ids[limit + 1] = nil
    local freed = 0
    for _, id in ipairs(ids) do
        local size = call('HSTRLEN', base .. ':h', id)
        freed = freed + size
        if not dry then
            local j = read_state(call('HGET', base .. ':s', id))
            if not j.unreadable then
                j.size = j.size - size
                save(id, j)
                weigh(j.state, -size)
            end
            call('HDEL', base .. ':h', id)
            call('ZREM', base .. ':hx', id)
        end
    end
    settle_counts()
    return {#ids, number(freed), 0, more and 1 or 0}
end

local jobs = call('ZCARD', base .. ':d:' .. state)
local bytes = tonumber(call('HGET', base .. ':b', state) or 0)
local excess = state ~= FAILED and most >= 0 and jobs - most or 0
local over = state ~= FAILED and most_bytes >= 0 and bytes - most_bytes or 0
local bounded = excess > 0 or over > 0
local found, more = find_ended(now, state, {
    age = age, most = limit + 1, first = bounded and limit + 1 or 0, last = spared, dry = dry, goes = not bounded,
})
local doomed, freed = {}, 0
for _, one in ipairs(found) do
    if one.old or #doomed < excess or freed < over then
        if #doomed == limit then
            more = true
            break
        end
        doomed[#doomed + 1] = one
        freed = freed + one.j.size
    end
end
if state == FAILED then
    local bound = 'age'
    if #doomed == 0 then
        bound, excess = bound_of(jobs, bytes, most, most_bytes)
        doomed = bound and condemn(bound, excess, spared, limit, dry) or doomed
        more = #doomed > limit
        doomed[limit + 1] = nil
        for _, one in ipairs(doomed) do
            freed = freed + one.j.size
        end
    end
    local left = bound_of(jobs - #doomed, bytes - freed, most, most_bytes)
    more = more or (#doomed > 0 and left and left ~= bound and (bound ~= 'age' or now - age < spared))
end
if not dry then
    for _, one in ipairs(doomed) do
        removals.remove(one.id, one.j, now)
    end
    removals.settle()
end
return {#doomed, number(freed), jobs - #doomed, more and 1 or 0}
