-- Lease the first jobs by (priority, run_at, id). Answers: ids, jobs, states, replaced cells, errors, the names of the
-- queues by number, the time until the next job is due (-1: none), whether one was passed over, and what has expired.

local CHUNK = 1000
-- How many jobs a claim looks at, and how many of them it cancels, at most.
local LOOK, CANCELS = 2000, 1000
-- How many bodies are read before it is known how large they are.
local FIRST = 8

-- The due jobs of a level, piece by piece: ids, scores, and the lines that they stand in, by (run_at, id). What a piece has
-- taken out of its line is to be told by ``line.at = line.at - 1``.
local function line_of(qid, priority, want)
    return {key = base .. ':r:' .. qid .. ':' .. priority, qid = qid, at = 0, items = {}, next = 1, over = false, want = want}
end

local function refill(line, till)
    line.items = call('ZRANGEBYSCORE', line.key, '-inf', till, 'WITHSCORES', 'LIMIT', line.at, line.want)
    line.at = line.at + line.want
    line.over = #line.items < 2 * line.want
    line.next = 1
end

local function piece_of(lines, most, till)
    local ids, scores, places = {}, {}, {}
    if #lines == 1 then
        local line = lines[1]
        if not line.over then
            line.want = math.min(most, CHUNK)
            refill(line, till)
            local items = line.items
            for i = 1, #items, 2 do
                local n = (i + 1) / 2
                ids[n], scores[n], places[n] = items[i], items[i + 1], line
            end
        end
        return ids, scores, places
    end
    while #ids < most do
        local best, best_id, best_score
        for i = 1, #lines do
            local line = lines[i]
            if line.next > #line.items and not line.over then
                refill(line, till)
            end
            local id = line.items[line.next]
            if id then
                local score = tonumber(line.items[line.next + 1])
                if not best or score < best_score or (score == best_score and before(id, best_id)) then
                    best, best_id, best_score = line, id, score
                end
            end
        end
        if not best then
            break
        end
        local n = #ids + 1
        ids[n], scores[n], places[n] = best_id, best.items[best.next + 1], best
        best.next = best.next + 2
    end
    return ids, scores, places
end

local function claim(now, holder, queues, limit, lease_for, lost_below, max_bytes)
    local levels, order = {}, {}
    local qids = {}
    for _, name in ipairs(queues) do
        local qid = call('HGET', base .. ':q', name)
        if qid and not qids[qid] and call('SISMEMBER', base .. ':z', qid) == 0 then
            qids[qid] = true
            for _, priority in ipairs(call('ZRANGE', base .. ':p:' .. qid, 0, -1)) do
                local level = levels[priority]
                if not level then
                    level = {}
                    levels[priority] = level
                    order[#order + 1] = priority
                end
                level[#level + 1] = tonumber(qid)
            end
        end
    end
    table.sort(order, function(a, b) return tonumber(a) < tonumber(b) end)

    local ids, jobs, states, expired = {}, {}, {}, {}
    local passed, room, looked, read, weight = false, max_bytes, 0, 0, 0
    local dying = call('EXISTS', base .. ':y') == 1
    local till_now, till = number(now), number(now + lease_for)
    -- What the state of every job begins with that is leased for the first time.
    local leased = struct.pack('>BBI4I8I8I4', RUNNING, 0, 0, now + lease_for, 0, 0)

    -- The bodies of as many jobs of a piece, from one on, as there may be room for.
    local function read_bodies(piece, from, bodies)
        local count_most = read == 0 and FIRST or math.max(1, math.min(CHUNK, 4 * read, math.ceil(room * read / weight)))
        local wanted = {unpack(piece, from, math.min(#piece, from + math.min(count_most, limit - #ids) - 1))}
        for i, job in ipairs(ask('HMGET', base .. ':j', wanted)) do
            bodies[from + i - 1] = job
            read, weight = read + 1, weight + #job
        end
    end

    for _, priority in ipairs(order) do
        local most = limit - #ids
        if most <= 0 or room <= 0 or looked >= LOOK then
            break
        end
        local lines = {}
        for i, qid in ipairs(levels[priority]) do
            lines[i] = line_of(qid, priority, math.min(most, CHUNK))
        end
        local done = false
        while not done do
            local piece, scores, places = piece_of(lines, most, till_now)
            if #piece == 0 then
                break
            end
            looked = looked + #piece
            local was = ask('HMGET', base .. ':s', piece)
            local dies = dying and ask('ZMSCORE', base .. ':y', piece)
            local leases, saved, gone, bodies = {}, {}, {}, {}
            for i = 1, #piece do
                if #ids >= limit or room <= 0 or #expired >= CANCELS then
                    done = true
                    break
                end
                local id, place = piece[i], places[i]
                local packed, size
                if dies and dies[i] and tonumber(dies[i]) <= now then
                    local j = find(id)
                    leave(id, j)
                    finish(id, j, CANCELLED, now, 'expired')
                    expired[#expired + 1] = id
                    place.at = place.at - 1
                elseif was[i] and struct.unpack('>I4', was[i], LOST_AT) >= lost_below then
                    passed = true
                else
                    if not bodies[i] then
                        read_bodies(piece, i, bodies)
                    end
                    if was[i] then
                        local j = read_state(was[i])
                        j.state, j.epoch, j.cancel, j.instant, j.text = RUNNING, j.epoch + 1, 0, now + lease_for, holder
                        size, packed = j.size, write_state(j)
                    else
                        size = struct.unpack('>I4', bodies[i], JOB_SIZE_AT)
                        packed = leased .. string.sub(bodies[i], JOB_SIZE_AT, JOB_SIZE)
                            .. struct.pack('>I8I4', tonumber(scores[i]), 1) .. holder
                    end
                    local n = #ids + 1
                    room = room - size
                    ids[n], jobs[n], states[n] = id, bodies[i], packed
                    n = #saved
                    saved[n + 1], saved[n + 2] = id, packed
                    leases[n + 1], leases[n + 2] = till, id
                    local list = gone[place]
                    if not list then
                        list = {}
                        gone[place] = list
                    end
                    list[#list + 1] = id
                    place.at = place.at - 1
                end
            end
            many('HSET', base .. ':s', saved)
            many('ZADD', base .. ':l', leases)
            for place, list in pairs(gone) do
                many('ZREM', place.key, list)
                if dying then
                    many('ZREM', base .. ':y', list)
                end
                count(place.qid, AVAILABLE, -#list)
                count(place.qid, RUNNING, #list)
            end
            done = done or #ids >= limit or room <= 0 or looked >= LOOK
            most = math.min(CHUNK, math.max(limit - #ids, 4 * #piece))
        end
        for _, line in ipairs(lines) do
            if call('EXISTS', line.key) == 0 then
                call('ZREM', base .. ':p:' .. line.qid, priority)
            end
        end
    end
    return ids, jobs, states, expired, passed, room, qids
end
