-- ARGV: run id, at, holder, limit, how long leases last, bytes, bytes of the largest entry, 1 if jobs that have lost a worker are to be passed
-- over, queues. Answers each job: number of its queue, epoch, begun, job; then each queue: mode, feeds, look, full, instant of the next job or '',
-- jobs left, how long ago somebody looked, how long it stays closed.
local holder, limit, lease_for = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local bytes, largest = tonumber(ARGV[6]), tonumber(ARGV[7])
-- How many jobs that have become due one claim brings into line, of all queues together.
local promoting = 1000
local lines, told, jobs = {}, {}, {}

-- b(arred): it is open, but may have a job that is to be passed over, which only PostgreSQL can do.
local function mode_of(queue)
    local mode, lost = unpack(call('HMGET', key('m', queue), 'mode', 'lost'))
    return mode == 'o' and lost and ARGV[8] == '1' and 'b' or mode
end

local function promote(queue, i)
    local due = promoting > 0 and call('ZRANGEBYSCORE', key('d', queue), '-inf', whole(now), 'LIMIT', 0, promoting) or {}
    promoting = promoting - #due
    for _, id in ipairs(due) do
        local band, at, weight, epoch, begun, job = unpack(cmsgpack.unpack(call('HGET', key('e', queue), id)))
        to_line(queue, id, band, at, weight, epoch, begun, job)
        call('ZREM', key('d', queue), id)
        call('HDEL', key('e', queue), id)
    end
    for _, band in ipairs(call('ZRANGE', key('b', queue), 0, -1)) do
        table.insert(lines, {assert(tonumber(band)), #lines, i, queue})
    end
end

for i = 9, #ARGV do
    local queue = ARGV[i]
    if mode_of(queue) == 'o' then
        try(queue, promote, queue, i)
    end
end
table.sort(lines, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)

local until_ = whole(now + lease_for)
local function hand_out(queue, band, i)
    local source = stream(queue, band)
    while limit > 0 and bytes > 0 do
        local count = math.max(1, math.min(limit, math.floor(bytes / largest)))
        local read = call('XREADGROUP', 'GROUP', GROUP, holder, 'COUNT', count, 'STREAMS', source, '>')
        if not read then
            return
        end
        local found = read[1][2]
        local held, leases, known, given, weighs = {}, {}, {}, {}, 0
        for _, one in ipairs(found) do
            local _, id, _, at, _, weight, _, before, _, begun, _, job = unpack(one[2])
            assert(job and is_epoch(before))
            if tonumber(at) > now then  -- the clock was set back
                call('XACK', source, GROUP, one[1])
                call('XDEL', source, one[1])
                to_later(queue, id, band, at, weight, before, begun, job)
            else
                local epoch = whole(math.max(now, tonumber(before) + 1, floor))
                table.insert(held, id)
                table.insert(held, cmsgpack.pack({epoch, holder, band, one[1], begun}))
                table.insert(leases, until_)
                table.insert(leases, id)
                table.insert(known, id)
                weighs = weighs + tonumber(weight)
                table.insert(given, {i - 9, epoch, begun, job})
            end
        end
        many('HDEL', key('k', queue), known)
        many('HSET', key('h', queue), held)
        many('ZADD', key('l', queue), leases)
        bytes = bytes - weighs
        limit = limit - #given
        for _, one in ipairs(given) do
            table.insert(jobs, one)
        end
        if #found < count then
            return
        end
    end
end
for _, line in ipairs(lines) do
    local band, _, i, queue = unpack(line)
    try(queue, hand_out, queue, band, i)
end

for i = 9, #ARGV do
    local queue = ARGV[i]
    local mode = mode_of(queue)
    local feeds, look, full, at, looked, ends = unpack(call('HMGET', key('m', queue), 'feeds', 'look', 'full', 'at', 'looked', 'until'))
    local left, first = 0, ''
    if mode == 'o' then
        left = call('HLEN', key('k', queue))
        local later, delayed = tonumber(at) or LAST, tonumber(call('ZRANGE', key('d', queue), 0, 0, 'WITHSCORES')[2]) or LAST
        if later <= now then
            look = '1'
        end
        later = math.min(later, delayed)
        first = later < LAST and whole(later) or ''
    end
    local since, rest = whole(real - (tonumber(looked) or 0)), whole((tonumber(ends) or 0) - real)
    table.insert(told, {mode or '', feeds or '', look or '0', full or '0', first, left, since, rest})
end
return {'OK', jobs, told, bytes <= 0 and 1 or 0, whole(now), whole(tonumber(ARGV[6]) - bytes), floor}
