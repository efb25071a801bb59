-- Records the beat of a worker and renews its leases.
-- ARGV: now or '', holder, the worker (msgpack: name, queues, slots, busy), ttl, lease_for, whether it is leaving, (id, epoch) of its
-- leases, the longest gap between beats, how long workers must have been at work before an absence counts, how many of the first leases to
-- look through for its own, the progress of some
-- (number of the lease, length, bytes). Answers: numbers of the leases that are lost, jobs to cancel, paused queues, its own leases among those that
-- expire first (id, epoch, whether it had begun before), and whether any leases have expired.

local LEASE = '>c16I8'
local LEASE_SIZE = 24

local now = clock(ARGV[1])
local holder = ARGV[2]
local worker = cmsgpack.unpack(ARGV[3])
if ARGV[6] == '1' then
    call('HDEL', base .. ':W', holder)
    call('ZREM', base .. ':X', holder)
else
    local before = worker_of(holder)
    if tonumber(call('ZSCORE', base .. ':X', holder) or 0) <= now then
        note_absence(now, tonumber(ARGV[8]), tonumber(ARGV[9]))
    end
    local started, steady = before and before[5] or number(now), number(now)
    if before and now - tonumber(before[6]) <= tonumber(ARGV[8]) then
        steady = before[7]
    end
    local listed = {worker[1], worker[2], worker[3], worker[4], started, number(now), steady}
    call('HSET', base .. ':W', holder, cmsgpack.pack(listed))
    call('ZADD', base .. ':X', number(now + tonumber(ARGV[4])), holder)
end
local ids, epochs = {}, {}
for i = 1, #ARGV[7] / LEASE_SIZE do
    ids[i], epochs[i] = struct.unpack(LEASE, ARGV[7], (i - 1) * LEASE_SIZE + 1)
end
local till = now + tonumber(ARGV[5])
local lost, leases, saved, is_kept = {}, {}, {}, {}
for i, packed in ipairs(ask('HMGET', base .. ':s', ids)) do
    local j = packed and read_state(packed)
    if not j or j.state ~= RUNNING or j.epoch ~= epochs[i] or j.text ~= holder then
        lost[#lost + 1] = i
    else
        j.instant, is_kept[i] = till, true
        saved[#saved + 1] = ids[i]
        saved[#saved + 1] = write_state(j)
        leases[#leases + 1] = number(till)
        leases[#leases + 1] = ids[i]
    end
end
many('HSET', base .. ':s', saved)
local told, at = {}, 1
while at < #ARGV[11] do
    local i, length = struct.unpack('>I4I4', ARGV[11], at)
    if is_kept[i] then
        told[#told + 1] = ids[i]
        told[#told + 1] = struct.pack('>I8', epochs[i]) .. string.sub(ARGV[11], at + 8, at + 7 + length)
    end
    at = at + 8 + length
end
many('HSET', base .. ':lp', told)
many('ZADD', base .. ':l', leases)
local paused, known, names = {}, {}, {}
if call('EXISTS', base .. ':z') == 1 then
    for i, qid in ipairs(ask('HMGET', base .. ':q', worker[2])) do
        if qid then
            known[#known + 1], names[#names + 1] = qid, worker[2][i]
        end
    end
    for i, till in ipairs(ask('ZMSCORE', base .. ':z', known)) do
        if till and tonumber(till) > now then
            paused[#paused + 1] = names[i]
        end
    end
end
local held, over = {}, 0
if ARGV[10] ~= '0' then
    over = #call('ZRANGEBYSCORE', base .. ':l', '-inf', number(now), 'LIMIT', 0, 1)
    local first = call('ZRANGE', base .. ':l', 0, tonumber(ARGV[10]) - 1)
    for i, packed in ipairs(ask('HMGET', base .. ':s', first)) do
        if is_whole_state(packed) and string.sub(packed, STATE_SIZE + 1) == holder then
            local j = read_state(packed)
            held[#held + 1] = first[i]
            held[#held + 1] = number(j.epoch)
            held[#held + 1] = j.begun and 1 or 0
        end
    end
end
return {lost, call('SMEMBERS', base .. ':x:' .. holder), paused, held, over}
