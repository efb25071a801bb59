-- Lease the first jobs by (priority, run_at, id).

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

-- What a claim has taken so far, and what it may still take.
local function open_basket(now, holder, limit, lease_for, lost_below, max_bytes)
    local ids, jobs, states, expired = {}, {}, {}, {}
    local saved, leases = {}, {}
    local read, weight = 0, 0
    local dying = call('EXISTS', base .. ':y') == 1
    local till = number(now + lease_for)
    -- What the state of every job begins with that is leased for the first time.
    local leased = struct.pack('>BBI4I8I8I4', RUNNING, 0, 0, now + lease_for, 0, 0)
    local b = {
        now = now, holder = holder, ids = ids, jobs = jobs, states = states, expired = expired, passed = {}, room = max_bytes, looked = 0,
        lines = {},
    }

    function b.left()
        return b.room > 0 and limit - #ids or 0
    end

    -- Whether it has met so many jobs that it leaves the rest to the next.
    function b.tired()
        return b.looked >= LOOK or #expired >= CANCELS
    end

    -- The bodies of as many jobs of a piece, from one on, as there may be room for.
    local function read_bodies(piece, from, bodies, most)
        local count_most = read == 0 and FIRST or math.max(1, math.min(CHUNK, 4 * read, math.ceil(b.room * read / weight)))
        local last = math.min(#piece, from + math.min(count_most, most) - 1)
        local wanted = from == 1 and last == #piece and piece or {unpack(piece, from, last)}
        for i, job in ipairs(ask('HMGET', base .. ':j', wanted)) do
            bodies[from + i - 1] = job
            read, weight = read + 1, weight + (job and #job or 0)
        end
    end

    -- Write down what was leased.
    function b.flush()
        many('HSET', base .. ':s', saved)
        many('ZADD', base .. ':l', leases)
        saved, leases = {}, {}
    end

    -- Lease up to ``most`` jobs of a piece, of a tenant (0: none), in its order. Answers how many, by place too, and whether others may
    -- have come where claims look: then what is left of the piece was not looked at.
    function b.take(piece, scores, places, most, tenant)
        b.looked = b.looked + #piece
        local was = ask('HMGET', base .. ':s', piece)
        local dies = dying and ask('ZMSCORE', base .. ':y', piece)
        local begins = tenant == 0 and leased or struct.pack('>BBI4I8I8I4', RUNNING, 0, 0, now + lease_for, tenant, 0)
        local taken, gone, bodies, stale, aside = 0, {}, {}, false, false
        for i = 1, #piece do
            if taken >= most or b.room <= 0 or #expired >= CANCELS or stale then
                break
            end
            local id, place = piece[i], places[i]
            local packed, size
            if dies and dies[i] and tonumber(dies[i]) <= now then
                b.flush()
                local j, calls = find(id), calls_made
                leave(id, j)
                finish(id, j, CANCELLED, now, 'expired')
                expired[#expired + 1] = id
                place.at = place.at - 1
                stale = calls_made > calls
            elseif is_whole_state(was[i]) and struct.unpack('>I4', was[i], LOST_AT) >= lost_below then
                b.passed[read_state(was[i]).qid] = true
                place.passed = (place.passed or 0) + 1
                place.passed_at = place.passed_at or tonumber(scores[i])
            else
                if bodies[i] == nil then
                    read_bodies(piece, i, bodies, most - taken)
                end
                local j = was[i] and read_state(was[i])
                local whole, weighs, qid = is_whole_job(bodies[i])
                if whole then
                    weighs, qid = struct.unpack('>I4I4', bodies[i], JOB_SIZE_AT)
                end
                if not whole or (j and (j.unreadable or j.epoch >= FOREVER)) or (not j and qid ~= place.qid) then
                    call('ZREM', place.key, id)
                    place.at = place.at - 1
                    gone[place] = gone[place] or {}
                    count(place.qid, AVAILABLE, #id == 16 and -1 or 0)
                    set_aside(id, place.qid)
                    aside = true
                elseif j then
                    j.state, j.epoch = RUNNING, math.max(j.epoch + 1, now)
                    j.cancel, j.instant, j.text = 0, now + lease_for, holder
                    j.held_until = tenant
                    size, packed = j.size, write_state(j)
                else
                    size = weighs
                    packed = begins .. string.sub(bodies[i], JOB_SIZE_AT, JOB_SIZE)
                        .. struct.pack('>I8I8', tonumber(scores[i]), now) .. holder
                end
                if packed then
                    local n = #ids + 1
                    b.room, taken = b.room - size, taken + 1
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
        end
        for place, list in pairs(gone) do
            many('ZREM', place.key, list)
            if dying then
                many('ZREM', base .. ':y', list)
            end
            count(place.qid, AVAILABLE, -#list)
            count(place.qid, RUNNING, #list)
        end
        if aside then
            local calls = calls_made
            call_groups()
            stale = stale or calls_made > calls
        end
        return taken, gone, stale
    end

    return b
end

-- Lease up to ``most`` jobs of queues that are not governed; how many it were.
local function take_plain(b, qids, most)
    local levels, order = {}, {}
    for _, qid in ipairs(qids) do
        for _, priority in ipairs(call('ZRANGE', base .. ':p:' .. qid, 0, -1)) do
            local level = levels[priority]
            if not level then
                level = {}
                levels[priority] = level
                order[#order + 1] = priority
            end
            level[#level + 1] = qid
        end
    end
    table.sort(order, function(one, other) return tonumber(one) < tonumber(other) end)
    local total, till_now = 0, number(b.now)
    for _, priority in ipairs(order) do
        local wanted = most - total
        if wanted <= 0 or b.room <= 0 or b.looked >= LOOK then
            break
        end
        local lines = {}
        for i, qid in ipairs(levels[priority]) do
            lines[i] = line_of(qid, priority, math.min(wanted, CHUNK))
        end
        local done = false
        while not done do
            local piece, scores, places = piece_of(lines, wanted, till_now)
            if #piece == 0 then
                break
            end
            local taken, _, stale = b.take(piece, scores, places, most - total, 0)
            b.flush()
            total = total + taken
            for _, line in ipairs(stale and lines or {}) do
                line.at, line.items, line.next, line.over = line.passed or 0, {}, 1, false
            end
            done = total >= most or b.room <= 0 or b.tired()
            wanted = math.min(CHUNK, math.max(most - total, 4 * #piece))
        end
        for _, line in ipairs(lines) do
            if call('EXISTS', line.key) == 0 then
                call('ZREM', base .. ':p:' .. line.qid, priority)
            end
        end
    end
    return total
end

-- Each governed queue, and all others together, in the order of the first that is named; and the time until the first pause of the
-- others ends.
local function parts_of(queues, now)
    local parts, plain, seen, ends = {}, nil, {}, nil
    for _, name in ipairs(queues) do
        local qid = call('HGET', base .. ':q', name)
        local till = qid and tonumber(call('ZSCORE', base .. ':z', qid) or 0) or 0
        if till > now then
            if till < FOREVER then
                ends = math.min(ends or FOREVER, till - now)
            end
        elseif qid and is_governed(qid) then
            if not seen[qid] then
                parts[#parts + 1] = {tonumber(qid), governed = true}
            end
        else
            if not plain then
                plain = {}
                parts[#parts + 1] = plain
            end
            if qid and not seen[qid] then
                plain[#plain + 1] = tonumber(qid)
            end
        end
        if qid then
            seen[qid] = true
        end
    end
    return parts, ends
end

-- First an even share of each part, then what others left.
local function claim(b, parts)
    local function take(part, most)
        return part.governed and visits().take(b, part[1], most) or take_plain(b, part, most)
    end

    local plenty = {}
    for i, part in ipairs(parts) do
        local share = math.ceil(b.left() / (#parts - i + 1))
        if share > 0 and take(part, share) == share then
            plenty[#plenty + 1] = part
        end
    end
    for _, part in ipairs(plenty) do
        if b.left() > 0 then
            take(part, b.left())
        end
    end
end
