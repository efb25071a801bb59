-- Lease the first jobs by (priority, run_at, id). Answers: ids, jobs, states, replaced cells, errors, the names of the
-- queues by number, the time until the next job is due (-1: none), whether one was passed over, and what has expired.

local CHUNK = 1000

-- The line of one queue and priority, read piece by piece.
local function line_of(qid, priority, now)
    local key = base .. ':r:' .. qid .. ':' .. priority
    local line = {key = key, qid = qid, at = 0, items = {}, next = 1, over = false}
    function line.peek()
        if line.next > #line.items and not line.over then
            line.items = call('ZRANGEBYSCORE', key, '-inf', number(now), 'WITHSCORES', 'LIMIT', line.at, line.want)
            line.at = line.at + line.want
            line.over = #line.items < 2 * line.want
            line.next = 1
        end
        return line.items[line.next], line.items[line.next + 1]
    end
    return line
end

local function before(run_at, id, other_run_at, other_id)
    return run_at < other_run_at or (run_at == other_run_at and id < other_id)
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
    local passed, room = false, max_bytes
    local dying = call('EXISTS', base .. ':y') == 1
    for _, priority in ipairs(order) do
        if #ids >= limit or room <= 0 then
            break
        end
        local lines = {}
        for i, qid in ipairs(levels[priority]) do
            lines[i] = line_of(qid, priority, now)
            lines[i].want = math.min(limit - #ids, CHUNK)
        end
        local done = false
        while not done do
            -- A piece of the merged lines, then all that has to be known of it in a few commands.
            local piece, places, scores = {}, {}, {}
            while #piece < limit - #ids do
                local best, best_id, best_score
                for i = 1, #lines do
                    local id, score = lines[i].peek()
                    if id then
                        score = tonumber(score)
                        if not best or before(score, id, best_score, best_id) then
                            best, best_id, best_score = lines[i], id, score
                        end
                    end
                end
                if not best then
                    break
                end
                best.next = best.next + 2
                piece[#piece + 1], places[#places + 1], scores[#scores + 1] = best_id, best, best_score
            end
            if #piece == 0 then
                break
            end
            local found = ask('HMGET', base .. ':j', piece)
            local was = ask('HMGET', base .. ':s', piece)
            local dies = dying and ask('ZMSCORE', base .. ':y', piece) or {}
            local leases, saved, gone, fewer = {}, {}, {}, {}
            local till = number(now + lease_for)
            for i, id in ipairs(piece) do
                if #ids >= limit or room <= 0 then
                    done = true
                    break
                end
                local j
                if was[i] then
                    j = read_state(was[i])
                end
                local place = places[i]
                if dies[i] and tonumber(dies[i]) <= now then
                    j = j or fresh(id, found[i])
                    leave(id, j)
                    finish(id, j, CANCELLED, now, 'expired')
                    expired[#expired + 1] = id
                    place.at = place.at - 1
                elseif j and j.lost >= lost_below then
                    passed = true
                else
                    local size
                    if not j then
                        local enqueued_at, expires_at, qid, weight, level, keyed = head(found[i])
                        size = weight
                        saved[#saved + 1] = id
                        saved[#saved + 1] = struct.pack(
                            STATE, RUNNING, qid, 1, 0, 0, weight, level, keyed, 0, scores[i], now + lease_for, 0, expires_at
                        ) .. holder
                    else
                        size = j.size
                        j.state, j.epoch, j.cancel, j.instant, j.text = RUNNING, j.epoch + 1, 0, now + lease_for, holder
                        saved[#saved + 1] = id
                        saved[#saved + 1] = write_state(j)
                    end
                    room = room - size
                    ids[#ids + 1], jobs[#jobs + 1], states[#states + 1] = id, found[i], saved[#saved]
                    leases[#leases + 1] = till
                    leases[#leases + 1] = id
                    gone[place.key] = gone[place.key] or {}
                    local list = gone[place.key]
                    list[#list + 1] = id
                    fewer[place.qid] = (fewer[place.qid] or 0) + 1
                    place.at = place.at - 1
                end
            end
            many('HSET', base .. ':s', saved)
            many('ZADD', base .. ':l', leases)
            for key, list in pairs(gone) do
                many('ZREM', key, list)
                if dying then
                    many('ZREM', base .. ':y', list)
                end
            end
            for qid, jobs_taken in pairs(fewer) do
                count(qid, AVAILABLE, -jobs_taken)
                count(qid, RUNNING, jobs_taken)
            end
            if #ids >= limit or room <= 0 then
                done = true
            end
        end
        for _, line in ipairs(lines) do
            if call('EXISTS', line.key) == 0 then
                call('ZREM', base .. ':p:' .. line.qid, priority)
            end
        end
    end
    return ids, jobs, states, expired, passed, room, qids
end
