-- Counts what the store has, some queues and some workers at a time.
-- ARGV: now or '', queue names (msgpack; '' : all), the cursor to continue with all queues ('' : no more), the worker to begin with
-- ('' : none). Answers for each queue: name, whether it is paused, jobs that are available, scheduled, running, paused,
-- completed, cancelled, failed, how long the first has been due (-1: none is), the end of the pause (-1: none), in how long the first
-- of those that are scheduled is due (-1: none is), and the level to continue with in search of older jobs ('' : none); the cursor to
-- continue with ('0': no more queues); holders and their workers; the worker to continue with (-1: no more); jobs and bytes of each
-- ended state; ticks; keys that outlive their jobs.

-- How many queues, levels and bytes of workers one call reads, roughly.
local QUEUES, LEVELS, MOST_READ = 200, 1000, 1024 * 1024

local now = clock(ARGV[1])
local at = number(now)

local titles, qids, cursor = {}, {}, '0'
if ARGV[2] ~= '' then
    titles = cmsgpack.unpack(ARGV[2])
    qids = ask('HMGET', base .. ':q', titles)
elseif ARGV[3] ~= '' then
    local found = call('HSCAN', base .. ':q', ARGV[3], 'COUNT', QUEUES)
    cursor = found[1]
    for i = 1, #found[2], 2 do
        titles[#titles + 1], qids[#qids + 1] = found[2][i], found[2][i + 1]
    end
end

-- Returns how long the first job by run_at has been due; -1: it is not due.
local function age_of(key)
    local first = tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    return first and first <= now and now - first or -1
end

-- Returns when the first job by run_at that is not due is.
local function after(key)
    return tonumber(call('ZRANGEBYSCORE', key, '(' .. at, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]) or math.huge
end

local left = LEVELS

-- Returns that time for the levels of a queue after its first, and the level to continue with.
local function age_in(qid, from)
    local age = -1
    local levels = call('ZRANGEBYSCORE', base .. ':p:' .. qid, from, '+inf', 'LIMIT', 0, math.max(1, left) + 1)
    for i, priority in ipairs(levels) do
        if left <= 0 then
            return age, priority
        end
        age, left = math.max(age, age_of(base .. ':r:' .. qid .. ':' .. priority)), left - 1
    end
    return age, ''
end

local function look_at(name, qid, counts, pause)
    local scheduled = call('ZCOUNT', base .. ':f:' .. qid, '(' .. at, '+inf')
    local later = after(base .. ':f:' .. qid)
    local first, age, rest = call('ZSCORE', base .. ':pq', qid), age_in(qid, '-inf')
    age = math.max(age, first and age_of(base .. ':r:' .. qid .. ':' .. first) or -1, age_of(base .. ':f:' .. qid))
    if is_governed(qid) then
        scheduled = scheduled + call('ZCOUNT', base .. ':F:' .. qid, '(' .. at, '+inf')
        later = math.min(later, after(base .. ':F:' .. qid))
        age = math.max(age, age_of(base .. ':H:' .. qid), age_of(base .. ':F:' .. qid))
    end
    return {
        name, pause > now and 1 or 0, counts[1], scheduled, counts[2], counts[3], counts[4], counts[5], counts[6], number(age),
        pause > now and pause < FOREVER and number(pause) or -1,
        later < math.huge and number(later - now) or -1, rest,
    }
end

local answers, known, asked = {}, {}, {}
for i, qid in ipairs(qids) do
    if qid then
        known[#known + 1] = {titles[i], qid}
        for state = AVAILABLE, FAILED do
            asked[#asked + 1] = qid .. ':' .. state
        end
    end
end
local found = ask('HMGET', base .. ':n', asked), {}
for i, one in ipairs(known) do
    local counts, any = {}, false
    for state = AVAILABLE, FAILED do
        local jobs = tonumber(found[6 * (i - 1) + state + 1] or 0)
        counts[state + 1], any = jobs, any or jobs > 0
    end
    local pause = tonumber(call('ZSCORE', base .. ':z', one[2]) or 0)
    if any or pause > now then
        answers[#answers + 1] = look_at(one[1], one[2], counts, pause)
    end
end

local workers, next_worker, bytes = {}, tonumber(ARGV[4]) or -1, 0
while next_worker >= 0 and bytes < MOST_READ do
    local holder = call('ZRANGEBYSCORE', base .. ':X', '(' .. at, '+inf', 'LIMIT', next_worker, 1)[1]
    if not holder then
        next_worker = -1
        break
    end
    local worker = call('HGET', base .. ':W', holder)
    workers[#workers + 1] = {holder, worker}
    next_worker, bytes = next_worker + 1, bytes + #worker + 1000
end
local ends = {}
for state = COMPLETED, FAILED do
    push(ends, call('ZCARD', base .. ':d:' .. state), tonumber(call('HGET', base .. ':b', state) or 0))
end
return {answers, cursor, workers, next_worker, ends, call('ZCARD', base .. ':T'), call('ZCARD', base .. ':kx')}
