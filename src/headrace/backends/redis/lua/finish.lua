-- End leases. ARGV from ``first``: heads of all settlements (SETTLEMENT), holders (msgpack), {settlement, ...} of those
-- that change more than that (msgpack), rows that are spawned (as in insert: queue names, heads, keys, inboxes), the
-- number of bodies, then a result for each settlement that has one, then those bodies.
-- Answers the states, -1 for what is fenced off.

local SETTLEMENT = '>c16I4BBBi8i8'
local SETTLEMENT_SIZE = 39
local FAILED_ATTEMPT, KEEP_LOST, KEEP, RESULT = 1, 2, 4, 8

local function has(flags, bit)
    return math.floor(flags / bit) % 2 == 1
end

-- To another queue, with its key unless that is taken there; the job has left its place.
local function change_queue(id, j, qid, now)
    if j.keyed == 1 then
        local key = key_of(id)
        local _, taken = key_holder(qid, key, now, false)
        drop_key(id, j)
        if taken then
            j.keyed = 0
        else
            take_key(id, qid, key)
        end
    end
    j.qid = qid
end

-- The cells that a run has replaced or cleared: a length for each section (KEPT: as it was enqueued, NONE: there is none),
-- then their bytes.
local SECTIONS, CELLS, NONE, KEPT = 4, '>I4I4I4I4', 4294967295, 4294967294

local function read_cells(packed)
    local lengths, cells, at = {struct.unpack(CELLS, packed)}, {}, 17
    for i = 1, SECTIONS do
        local length = lengths[i]
        if length < KEPT then
            cells[i] = string.sub(packed, at, at + length - 1)
            at = at + length
        end
    end
    return lengths, cells
end

-- By how much the job grows.
local function patch(id, changes)
    local job = call('HGET', base .. ':j', id)
    local at, length = parts(job)
    local was = {struct.unpack(CELLS, job, at + length)}
    local packed = call('HGET', base .. ':c', id)
    local lengths, cells = {KEPT, KEPT, KEPT, KEPT}, {}
    if packed then
        lengths, cells = read_cells(packed)
    end
    local grown = 0
    for _, change in ipairs(changes) do
        local i, cell = change[1], change[2]
        local old = lengths[i] == KEPT and was[i] or lengths[i]
        grown = grown - (old == NONE and 0 or old)
        lengths[i], cells[i] = NONE, nil
        if cell then
            lengths[i], cells[i] = #cell, cell
            grown = grown + #cell
        end
    end
    local bytes = {struct.pack(CELLS, lengths[1], lengths[2], lengths[3], lengths[4])}
    for i = 1, SECTIONS do
        bytes[#bytes + 1] = cells[i]
    end
    call('HSET', base .. ':c', id, table.concat(bytes))
    return grown
end

local function finish_all(now, first)
    local heads, holders, more = ARGV[first], cmsgpack.unpack(ARGV[first + 1]), {}
    for _, one in ipairs(cmsgpack.unpack(ARGV[first + 2])) do
        more[one[1]] = one
    end
    local bodies = tonumber(ARGV[first + 6])
    local next_result = first + 7
    local total = #heads / SETTLEMENT_SIZE
    local ids, epochs, of, wanted, flags, delays, ttls, results = {}, {}, {}, {}, {}, {}, {}, {}
    for i = 1, total do
        ids[i], epochs[i], of[i], wanted[i], flags[i], delays[i], ttls[i] =
            struct.unpack(SETTLEMENT, heads, (i - 1) * SETTLEMENT_SIZE + 1)
        if has(flags[i], RESULT) then
            results[i] = ARGV[next_result]
            next_result = next_result + 1
        end
    end
    local first_blob = next_result + bodies - 1
    local was = ask('HMGET', base .. ':s', ids)
    local waited = call('EXISTS', base .. ':w') == 1
    local answers, accepted, seen = {}, {}, {}
    local leases, saved, ended, forgotten, held, expiring = {}, {}, {}, {}, {}, {}
    for i = 1, total do
        local id = ids[i]
        local j = was[i] and not seen[id] and read_state(was[i])
        if not j or j.state ~= RUNNING or j.epoch ~= epochs[i] or j.text ~= holders[of[i]] then
            answers[i] = -1
        else
            seen[id] = true
            accepted[i] = true
            local state, extra = wanted[i], more[i]
            local reason = extra and extra[2] or ''
            if j.cancel == 1 then
                call('SREM', base .. ':x:' .. j.text, id)
                if state < COMPLETED then
                    state, reason = CANCELLED, 'cancelled'
                end
            end
            answers[i] = state
            leases[#leases + 1] = id
            count(j.qid, RUNNING, -1)
            if has(flags[i], FAILED_ATTEMPT) then
                j.attempt = j.attempt + 1
            end
            if not has(flags[i], KEEP_LOST) then
                j.lost = 0
            end
            if extra then
                if extra[3] then
                    local error = ARGV[first_blob + extra[3]]
                    j.size = j.size + #error - call('HSTRLEN', base .. ':e', id)
                    call('HSET', base .. ':e', id, error)
                end
                if extra[4] then
                    for _, change in ipairs(extra[4]) do
                        change[2] = change[2] and ARGV[first_blob + change[2]]
                    end
                    j.size = j.size + patch(id, extra[4])
                end
                if extra[5] then
                    local qid = qid_of(extra[5])
                    if qid ~= j.qid then
                        change_queue(id, j, qid, now)
                    end
                end
                if extra[6] then
                    j.priority = extra[6]
                end
            end
            j.cancel = 0
            if state == AVAILABLE or state == PAUSED then
                j.state, j.text, j.instant = state, '', 0
                if delays[i] >= 0 then
                    j.run_at = now + delays[i]
                end
                save(id, j)
                count(j.qid, state, 1)
                if state == AVAILABLE then
                    put_ready(id, j)
                    wake(j.qid, 1)
                end
            else
                local held_until = state == COMPLETED and now + ttls[i] or 0
                j.state, j.instant, j.held_until, j.text = state, now, held_until, reason
                end_key(id, j, held_until)
                if state == COMPLETED and not has(flags[i], KEEP) then
                    forgotten[#forgotten + 1] = id
                    if j.keyed == 1 then
                        drop_key(id, j)
                    end
                else
                    if results[i] and state == COMPLETED and ttls[i] > 0 then
                        j.size = j.size + #results[i]
                        held[#held + 1] = id
                        held[#held + 1] = results[i]
                        expiring[#expiring + 1] = number(held_until)
                        expiring[#expiring + 1] = id
                    end
                    saved[#saved + 1] = id
                    saved[#saved + 1] = write_state(j)
                    local list = ended[state]
                    if not list then
                        list = {}
                        ended[state] = list
                    end
                    list[#list + 1] = number(now)
                    list[#list + 1] = id
                    count(j.qid, state, 1)
                    weigh(state, j.size)
                end
                if waited then
                    tell_waiters(id)
                end
            end
        end
    end
    many('ZREM', base .. ':l', leases)
    many('HSET', base .. ':s', saved)
    many('HSET', base .. ':h', held)
    many('ZADD', base .. ':hx', expiring)
    for state, list in pairs(ended) do
        many('ZADD', base .. ':d:' .. state, list)
    end
    if #forgotten > 0 then
        for _, name in ipairs({':j', ':s', ':e', ':c'}) do
            many('HDEL', base .. name, forgotten)
        end
        many('ZREM', base .. ':a', forgotten)
    end
    local spawned = cmsgpack.unpack(ARGV[first + 3])
    if bodies > 0 then
        local only, at = {}, 0
        for i = 1, total do
            for _ = 1, spawned[i] or 0 do
                at = at + 1
                only[at] = accepted[i] or false
            end
        end
        local packed = cmsgpack.unpack(ARGV[first + 4])
        local qids = {}
        for i, name in ipairs(packed[1]) do
            qids[i] = qid_of(name)
        end
        insert_rows(now, qids, ARGV[first + 5], packed[2], packed[3], next_result, ARGV, only)
    end
    return answers
end
