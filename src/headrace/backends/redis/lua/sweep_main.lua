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

local key = base .. ':d:' .. state
local jobs = call('ZCARD', key)
local bytes = tonumber(call('HGET', base .. ':b', state) or 0)
local excess = state ~= FAILED and most >= 0 and jobs - most or 0
local over = state ~= FAILED and most_bytes >= 0 and bytes - most_bytes or 0
local doomed, freed, more = {}, 0, false
local at, done = 0, false

local by_age = state == COMPLETED and age >= 0 and excess <= 0 and over <= 0
local walked, last, earliest
if by_age then
    at, walked, last, earliest = after_held(now)
end
local budget = at + 50 * limit
while not done do
    local ids, ends, states = ended_jobs(key, at, at + MANY / 2 - 1)
    for i, id in ipairs(ids) do
        local j = read_state(states[i])
        j.state = state
        local past = age >= 0 and tonumber(ends[i]) <= now - age
        local old = past and not (state == COMPLETED and j.held_until > now)
        if tonumber(ends[i]) > spared then
            done = true
            break
        elseif old or #doomed < excess or freed < over then
            if #doomed == limit then
                more, done = true, true
                break
            end
            doomed[#doomed + 1] = {id, j}
            freed = freed + j.size
        elseif not past then
            done = true
            break
        else
            walked, last, earliest = ends[i], id, math.min(earliest or j.held_until, j.held_until)
        end
    end
    at = at + #ids
    done = done or #ids < MANY / 2
    if at > budget and not done then
        more, done = not dry, true
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
            freed = freed + one[2].size
        end
    end
    local left = bound_of(jobs - #doomed, bytes - freed, most, most_bytes)
    more = more or (#doomed > 0 and left and left ~= bound and (bound ~= 'age' or now - age < spared))
end
if not dry then
    for _, one in ipairs(doomed) do
        removals.add(one[1], one[2])
        leave(one[1], one[2])
        forget(one[1], one[2], now)
    end
    removals.settle()
    settle_counts()
    if by_age and walked then
        remember_held(walked, last, earliest)
    end
end
return {#doomed, number(freed), jobs - #doomed, more and 1 or 0}
