-- Leases jobs for one claim.

local CHUNK = 1000
-- Bounds of the work that one claim does: steps (looking at a job is one) and cancelled jobs, roughly.
local STEPS, CANCELS = 2000, 1000
-- How many bodies are read before their usual size is known.
local FIRST = 8
-- Where only some sections are wanted, how many times as much is read as is answered.
local READ = 4

-- Opens the batch of a claim: what it has taken, and what it may still take.
local function open_batch(now, holder, limit, lease_for, lost_below, max_bytes, want)
    local ids, jobs, states, expired = {}, {}, {}, {}
    local saved, leases = {}, {}
    local read, weight, unread = 0, 0, max_bytes * READ
    local dying = call('EXISTS', base .. ':y') == 1
    local till = number(now + lease_for)
    -- The first bytes of the state of every job that is leased for the first time.
    local leased = struct.pack('>BBI4I8I8I4', RUNNING, 0, 0, now + lease_for, 0, 0)
    local b = {
        now = now, holder = holder, ids = ids, jobs = jobs, states = states, expired = expired, passed = {}, room = max_bytes, steps = 0,
        cursors = {}, passing = {}, qids = {},
    }

    function b.left()
        return b.room > 0 and limit - #ids or 0
    end

    function b.step(steps)
        b.steps = b.steps + steps
    end

    -- Whether the claim has done enough work, and leaves the rest to the next one.
    function b.is_spent()
        return b.steps >= STEPS or #expired >= CANCELS
    end

    -- Reads the bodies of a piece from ``from`` on, as many as there may be room for.
    local function read_bodies(piece, from, bodies, most)
        local room = want == ALL_SECTIONS and b.room or unread
        local count_most = read == 0 and FIRST or math.max(1, math.min(CHUNK, 4 * read, math.ceil(room * read / weight)))
        local last = math.min(#piece, from + math.min(count_most, most) - 1)
        local wanted = from == 1 and last == #piece and piece or {unpack(piece, from, last)}
        for i, job in ipairs(ask('HMGET', base .. ':j', wanted)) do
            bodies[from + i - 1] = job
            read, weight = read + 1, weight + (job and #job or 0)
        end
    end

    -- A job that weighs ``size`` was taken, ``j`` unless it never ran before: what is wanted of it takes up room.
    local function fill(id, job, j, size)
        if want ~= ALL_SECTIONS then
            local patched = j and call('HGET', base .. ':c', id)
            unread = unread - #job - (patched and #patched or 0)
            size = size - trim.spared(job, patched, want)
        end
        b.room = unread > 0 and b.room - size or 0
    end

    -- Writes the leases.
    function b.flush()
        many('HSET', base .. ':s', saved)
        many('ZADD', base .. ':l', leases)
        saved, leases = {}, {}
    end

    -- Leases up to ``most`` jobs of a piece, in its order; ``tenant`` is the number of their tenant, or 0. Returns how many, which jobs
    -- left each cursor, and whether other jobs may have been added meanwhile: then the rest of the piece was not looked at.
    function b.take(piece, scores, cursors, most, tenant)
        b.step(#piece)
        local was = ask('HMGET', base .. ':s', piece)
        local dies = dying and ask('ZMSCORE', base .. ':y', piece)
        local begins = tenant == 0 and leased or struct.pack('>BBI4I8I8I4', RUNNING, 0, 0, now + lease_for, tenant, 0)
        local taken, gone, bodies, stale, aside = 0, {}, {}, false, false
        for i = 1, #piece do
            if taken >= most or b.room <= 0 or #expired >= CANCELS or stale then
                break
            end
            local id, cursor = piece[i], cursors[i]
            local packed, size
            if dies and dies[i] and tonumber(dies[i]) <= now then
                b.flush()
                local j, calls = find(id), calls_made
                leave(id, j)
                finish(id, j, CANCELLED, now, 'expired')
                expired[#expired + 1] = id
                b.qids[j.qid] = true
                cursor.at = cursor.at - 1
                stale = calls_made > calls
            elseif is_whole_state(was[i]) and struct.unpack('>I4', was[i], LOST_AT) >= lost_below then
                b.passed[read_state(was[i]).qid] = true
                cursor.passed = (cursor.passed or 0) + 1
                if not cursor.passed_at then
                    cursor.passed_at = tonumber(scores[i])
                    b.passing[#b.passing + 1] = cursor
                end
            else
                if bodies[i] == nil then
                    read_bodies(piece, i, bodies, most - taken)
                end
                local j = was[i] and read_state(was[i])
                local whole, weighs, qid = is_whole_job(bodies[i])
                if whole then
                    weighs, qid = struct.unpack('>I4I4', bodies[i], JOB_SIZE_AT)
                end
                if not whole or (j and (j.unreadable or j.epoch >= FOREVER)) or (not j and qid ~= cursor.qid) then
                    call('ZREM', cursor.key, id)
                    cursor.at, cursor.aside = cursor.at - 1, (cursor.aside or 0) + 1
                    gone[cursor] = gone[cursor] or {}
                    count(cursor.qid, AVAILABLE, #id == 16 and -1 or 0)
                    set_aside(id, cursor.qid)
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
                    taken = taken + 1
                    fill(id, bodies[i], j, size)
                    ids[n], jobs[n], states[n] = id, bodies[i], packed
                    n = #saved
                    saved[n + 1], saved[n + 2] = id, packed
                    leases[n + 1], leases[n + 2] = till, id
                    local list = gone[cursor]
                    if not list then
                        list = {}
                        gone[cursor] = list
                    end
                    list[#list + 1] = id
                    cursor.at = cursor.at - 1
                end
            end
        end
        if dying and taken > 0 then
            many('ZREM', base .. ':y', {unpack(ids, #ids - taken + 1)})
        end
        local emptied = {}
        for cursor, list in pairs(gone) do
            if cursor.over and not cursor.early and cursor.at == 0 and cursor.next > #cursor.items and not stale then
                emptied[#emptied + 1] = cursor.key
            else
                many('ZREM', cursor.key, list)
            end
            b.qids[cursor.qid] = true
            count(cursor.qid, AVAILABLE, -#list)
            count(cursor.qid, RUNNING, #list)
        end
        if #emptied > 0 then
            call('DEL', unpack(emptied))
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

