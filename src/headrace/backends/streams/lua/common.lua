-- Begins every script. All keys begin with KEYS[1], whose hash tag puts them into one slot:
--
--   :G        hash    floor: no epoch below it is given out; a server whose floor is not PostgreSQL's is not in charge
--                     run: the server's run id, while it is in charge   skew: PostgreSQL's clock less this server's
--                     raised: when the floor was last raised, or ''   life: a name of what is in memory, while a server takes over
--   :Q        set     queues that have any of the keys below
--   :m:QUEUE  hash    mode: o(pen), c(losing) or x (closed)   until: how long it stays closing or closed
--                     feeds: a number that changes whenever something but an insert feeds the window or empties it
--                     look: there may be jobs that are not here   full: there are   at: when the next of them is due
--                     looked: when somebody last looked   mark: up to where
--                     lost: a job that has lost a worker may be here
--   :s:BAND:QUEUE  stream  jobs in line: i(d), a: when it is due, w(eight), e(poch before), b(egun), d (the job); those that are read are pending
--   :b:QUEUE  zset    its bands
--   :d:QUEUE  zset    delayed jobs by the instant at which they are due   :e:QUEUE  hash  id -> the entry of such a job
--   :k:QUEUE  hash    id -> BAND ENTRY of each job that was not given out yet; d if it is delayed
--   :h:QUEUE  hash    id -> the delivery: epoch, holder, band, entry, begun
--   :l:QUEUE  zset    deliveries by the end of their lease
--   :f:QUEUE  string  who feeds the window
--   :g:QUEUE  list    signals to workers that wait
--
-- ARGV[1] is the server's run id and the floor as the client knows them, ARGV[2] an instant that overrides the clock, or ''.
local call = redis.call
local base = KEYS[1]
local GROUP = 'headrace'
local LAST = 2 ^ 53  -- numbers below it are exact here

local general = call('HMGET', base .. ':G', 'floor', 'run', 'skew')
local floor = tonumber(general[1])
local lost = not floor or not general[2] or general[2] .. ' ' .. general[1] ~= ARGV[1]

local time = call('TIME')
local real = time[1] * 1000000 + time[2]
local now = ARGV[2] ~= '' and tonumber(ARGV[2]) or real + (tonumber(general[3]) or 0)

local function key(kind, queue)
    return base .. ':' .. kind .. ':' .. queue
end

local function whole(number)
    return string.format('%.0f', number)
end

-- A command with as many arguments as there are.
local function many(command, where, values)
    for i = 1, #values, 1000 do
        call(command, where, unpack(values, i, math.min(i + 999, #values)))
    end
end

local function stream(queue, band)
    return base .. ':s:' .. band .. ':' .. queue
end

local there = {}

local function to_line(queue, id, band, at, weight, epoch, begun, job)
    local line = stream(queue, band)
    if not there[line] then
        if call('ZADD', key('b', queue), band, band) == 1 then
            redis.pcall('XGROUP', 'CREATE', line, GROUP, '0', 'MKSTREAM')
        end
        there[line] = true
    end
    local entry = call('XADD', line, '*', 'i', id, 'a', at, 'w', weight, 'e', epoch, 'b', begun, 'd', job)
    call('HSET', key('k', queue), id, band .. ' ' .. entry)
end

local function to_later(queue, id, band, at, weight, epoch, begun, job)
    call('ZADD', key('d', queue), at, id)
    call('HSET', key('e', queue), id, cmsgpack.pack({band, at, weight, epoch, begun, job}))
    call('HSET', key('k', queue), id, 'd')
end

local function is_known(queue, id)
    return call('HEXISTS', key('k', queue), id) == 1 or call('HEXISTS', key('h', queue), id) == 1
end

-- Rows of seven: id, band, due at, weight, epoch before, begun, job. What was due at an instant of PostgreSQL is due, though this clock may be
-- some milliseconds behind. Returns how many are due.
local function put(queue, from, instant)
    local due = 0
    for i = from, #ARGV, 7 do
        local id, band, at, weight, epoch, begun, job = unpack(ARGV, i, i + 6)
        if not is_known(queue, id) then
            if tonumber(at) <= math.max(now, instant) then
                to_line(queue, id, band, whole(math.min(tonumber(at), now)), weight, epoch, begun, job)
                due = due + 1
            else
                to_later(queue, id, band, at, weight, epoch, begun, job)
            end
        end
    end
    return due
end

local function is_epoch(text)
    local number = tonumber(text)
    return number ~= nil and number >= 0 and number < LAST
end

-- A delivery as it is kept; nothing if it cannot be read.
local function unpacked(packed)
    local good, found = pcall(cmsgpack.unpack, packed)
    if good and type(found) == 'table' and is_epoch(found[1]) and type(found[2]) == 'string' and found[3] and found[4] and found[5] then
        return unpack(found)
    end
end

-- A delivery, as clients read it: id, epoch, holder, how long its lease lasts, begun, floor. One that cannot be read is over, under an epoch
-- above the one that it had.
local function delivery(queue, id)
    local packed = call('HGET', key('h', queue), id)
    if not packed then
        return nil
    end
    local epoch, holder, _, _, begun = unpacked(packed)
    local rest = (tonumber(call('ZSCORE', key('l', queue), id)) or 0) - now
    if not epoch then
        return {id, whole(math.max(now, floor) + 1), '', '0', '1', floor}
    end
    return {id, epoch, holder, math.abs(rest) < LAST and whole(rest) or '0', begun, floor}
end

-- Jobs that were not given out leave the window.
local function empty(queue)
    for _, band in ipairs(redis.pcall('ZRANGE', key('b', queue), 0, -1)) do
        call('UNLINK', stream(queue, band))
    end
    call('UNLINK', key('b', queue), key('d', queue), key('e', queue), key('k', queue), key('f', queue))
    call('HINCRBY', key('m', queue), 'feeds', 1)
    call('HDEL', key('m', queue), 'mark', 'lost')
end

-- Call a step that reads a window. One that cannot be read is emptied, and looked for in PostgreSQL, which has all of it.
local function try(queue, step, ...)
    if not pcall(step, ...) then
        empty(queue)
        call('HSET', key('m', queue), 'look', '1')
    end
end
