-- The store in numbers. ARGV: now or '', how far to count, and, where only some of its queues are meant, their names (msgpack).
local now = clock(ARGV[1])
local cap = tonumber(ARGV[2])
local queues = {}
local function queue(qid)
    qid = tostring(qid)
    if not queues[qid] then
        queues[qid] = {name_of(tonumber(qid)), 0, 0, 0, 0, 0, 0, 0, 0, -1, -1}
    end
    return queues[qid]
end
local COLUMN = {[0] = 3, [1] = 5, [2] = 6, [3] = 7, [4] = 8, [5] = 9}
local function pause(qid, ends)
    queue(qid)[2] = 1
    queue(qid)[11] = tonumber(ends) < FOREVER and ends or -1
end

local function read_all()
    local counts = call('HGETALL', base .. ':n')
    for i = 1, #counts, 2 do
        local qid, state = string.match(counts[i], '^(%d+):(%d)$')
        if qid then
            queue(qid)[COLUMN[tonumber(state)]] = tonumber(counts[i + 1])
        end
    end
    local paused = call('ZRANGEBYSCORE', base .. ':z', '(' .. number(now), '+inf', 'WITHSCORES')
    for i = 1, #paused, 2 do
        pause(paused[i], paused[i + 1])
    end
end

local function read_one(name)
    local qid = call('HGET', base .. ':q', name)
    if not qid then
        return
    end
    for state, column in pairs(COLUMN) do
        local jobs = call('HGET', base .. ':n', qid .. ':' .. state)
        if jobs then
            queue(qid)[column] = tonumber(jobs)
        end
    end
    local ends = call('ZSCORE', base .. ':z', qid)
    if ends and tonumber(ends) > now then
        pause(qid, ends)
    end
end

if ARGV[3] then
    for _, name in ipairs(cmsgpack.unpack(ARGV[3])) do
        read_one(name)
    end
else
    read_all()
end

-- Of jobs by run_at: how many are to come, and how long the first is due.
local function look_at(stats, key, heads)
    stats[4] = math.min(cap, stats[4] + call('ZCOUNT', key, '(' .. number(now), '+inf'))
    local first = tonumber(call('ZRANGE', heads or key, 0, 0, 'WITHSCORES')[2])
    if first and first <= now then
        stats[10] = math.max(stats[10], now - first)
    end
end

local told = {}
for qid, stats in pairs(queues) do
    for _, priority in ipairs(call('ZRANGE', base .. ':p:' .. qid, 0, -1)) do
        look_at(stats, base .. ':r:' .. qid .. ':' .. priority)
    end
    if is_governed(qid) then
        look_at(stats, base .. ':F:' .. qid, base .. ':H:' .. qid)
    end
    stats[10] = number(stats[10])
    told[#told + 1] = stats
end
local workers = {}
for _, holder in ipairs(call('ZRANGEBYSCORE', base .. ':X', '(' .. number(now), '+inf')) do
    workers[#workers + 1] = {holder, call('HGET', base .. ':W', holder)}
end
local places = {}
for state = COMPLETED, FAILED do
    places[#places + 1] = call('ZCARD', base .. ':d:' .. state)
    places[#places + 1] = tonumber(call('HGET', base .. ':b', state) or 0)
end
return {told, workers, places, call('ZCARD', base .. ':T'), call('ZCARD', base .. ':kx')}
