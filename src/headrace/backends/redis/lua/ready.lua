-- Keeps the waiting jobs of queues that are not governed: due jobs in levels, one for each priority.
-- Delayed jobs are listed apart, by run_at, until a claim promotes them. The first level of every queue, and when its next job is
-- due, are kept in one place, so that a claim from many queues asks once. Only further levels are listed by queue.

local ready = {}

-- Reads the next due jobs at a cursor: one more than is wanted, to know whether there are more.
local function read_on(cursor, want)
    local items = call('ZRANGE', cursor.key, cursor.at, cursor.at + want, 'WITHSCORES')
    cursor.over = #items < 2 * (want + 1)
    while #items > 0 and tonumber(items[#items]) > instant do
        items[#items], items[#items - 1] = nil, nil
        cursor.over, cursor.early = true, true
    end
    cursor.items, cursor.next = items, 1
end

-- Takes the next due jobs at a cursor until there are ``want``; there are ``n`` already. Returns how many there are then.
local function take_on(cursor, n, want, ids, scores, taken_from)
    while n < want do
        if cursor.next > #cursor.items and not cursor.over then
            read_on(cursor, want - n)
        end
        local items, first = cursor.items, cursor.next
        local last = math.min(#items, first + 2 * (want - n) - 1)
        if last < first then
            break
        end
        for i = first, last, 2 do
            n = n + 1
            ids[n], scores[n], taken_from[n] = items[i], items[i + 1], cursor
        end
        cursor.at, cursor.next = cursor.at + (last + 1 - first) / 2, last + 1
    end
    return n
end

do
    -- How many jobs a claim promotes, and how many a queue among them counts for.
    local PROMOTED, PER_QUEUE = 1000, 4

    -- The first level of each queue (false: none), and the queues where it has changed; queues whose first delayed job is due
    -- earlier than before, or may be another.
    local first_levels, new_levels, earlier, changed_delayed = {}, {}, {}, {}

    function ready.level_key(qid, priority)
        return base .. ':r:' .. qid .. ':' .. priority
    end

    function ready.delayed_key(qid)
        return base .. ':f:' .. qid
    end

    -- Returns the name under which a job is listed until it is due.
    function ready.delayed_as(priority, id)
        return struct.pack('>I2', priority + 32768) .. id
    end

    -- Returns the first level of each queue; false: it has none.
    function ready.first_levels(qids)
        local unknown = {}
        for _, qid in ipairs(qids) do
            if first_levels[qid] == nil then
                unknown[#unknown + 1] = qid
            end
        end
        for i, first in ipairs(ask('ZMSCORE', base .. ':pq', unknown)) do
            first_levels[unknown[i]] = tonumber(first) or false
        end
        return first_levels
    end

    function ready.first_level(qid)
        local first = first_levels[qid]
        if first == nil then
            first = tonumber(call('ZSCORE', base .. ':pq', qid)) or false
            first_levels[qid] = first
        end
        return first
    end

    local function begin_with(qid, priority)
        first_levels[qid], new_levels[qid] = priority, true
    end

    -- Puts due jobs (instant, id, ...) into a level.
    function ready.fill_level(qid, priority, entries)
        many('ZADD', ready.level_key(qid, priority), entries)
        local first = ready.first_level(qid)
        if first and priority ~= first then
            local further = math.max(first, priority)
            call('ZADD', base .. ':p:' .. qid, further, further)
        end
        if not first or priority < first then
            begin_with(qid, priority)
        end
    end

    -- Lists delayed jobs (instant, name, ...); ``first`` is the lowest instant.
    function ready.fill_delayed(qid, entries, first)
        many('ZADD', ready.delayed_key(qid), entries)
        earlier[qid] = math.min(earlier[qid] or first, first)
    end

    -- These levels are empty.
    function ready.drop_levels(qid, priorities)
        local first, key, further = ready.first_level(qid), base .. ':p:' .. qid, {}
        for _, priority in ipairs(priorities) do
            if priority ~= first then
                further[#further + 1] = priority
            end
        end
        many('ZREM', key, further)
        if #further < #priorities then
            local second = call('ZRANGE', key, 0, 0)[1]
            if second then
                call('ZREM', key, second)
            end
            begin_with(qid, second and tonumber(second) or false)
        end
    end

    function ready.enter(id, qid, priority, run_at)
        if run_at <= instant then
            ready.fill_level(qid, priority, {number(run_at), id})
        else
            ready.fill_delayed(qid, {number(run_at), ready.delayed_as(priority, id)}, run_at)
        end
    end

    function ready.exit(id, qid, priority)
        local key = ready.level_key(qid, priority)
        if call('ZREM', key, id) == 1 then
            if call('EXISTS', key) == 0 then
                ready.drop_levels(qid, {priority})
            end
        elseif call('ZREM', ready.delayed_key(qid), ready.delayed_as(priority, id)) == 1 then
            changed_delayed[qid] = true
        end
    end

    local function write_levels()
        local there, gone = {}, {}
        for qid in pairs(new_levels) do
            if first_levels[qid] then
                there[#there + 1], there[#there + 2] = first_levels[qid], qid
            else
                gone[#gone + 1] = qid
            end
        end
        many('ZADD', base .. ':pq', there)
        many('ZREM', base .. ':pq', gone)
        new_levels = {}
    end

    -- A queue that has become governed keeps that instant itself; see ``awake``.
    local function write_coming()
        for qid in pairs(changed_delayed) do
            local first = call('ZRANGE', ready.delayed_key(qid), 0, 0, 'WITHSCORES')[2]
            if is_governed(qid) then
                changed_delayed[qid] = nil
            elseif first then
                call('ZADD', base .. ':fq', first, qid)
            else
                call('ZREM', base .. ':fq', qid)
            end
        end
        local lowered = {}
        for qid, first in pairs(earlier) do
            if not changed_delayed[qid] then
                lowered[#lowered + 1], lowered[#lowered + 2] = number(first), qid
            end
        end
        for at = 1, #lowered, MANY do
            call('ZADD', base .. ':fq', 'LT', unpack(lowered, at, math.min(at + MANY - 1, #lowered)))
        end
        earlier, changed_delayed = {}, {}
    end

    function ready.settle()
        if next(new_levels) then
            write_levels()
        end
        if next(earlier) or next(changed_delayed) then
            write_coming()
        end
    end

    -- Promotes jobs of a queue that have become due, up to ``most``, first by run_at. Returns how many.
    local function promote(qid, most)
        local key = ready.delayed_key(qid)
        local flat = call('ZRANGEBYSCORE', key, '-inf', number(instant), 'WITHSCORES', 'LIMIT', 0, most)
        local gone, levels = {}, {}
        for i = 1, #flat, 2 do
            local priority = struct.unpack('>I2', flat[i]) - 32768
            local entries = levels[priority] or {}
            levels[priority] = entries
            entries[#entries + 1], entries[#entries + 2] = flat[i + 1], string.sub(flat[i], 3)
            gone[#gone + 1] = flat[i]
        end
        many('ZREM', key, gone)
        for priority, entries in pairs(levels) do
            ready.fill_level(qid, priority, entries)
        end
        changed_delayed[qid] = true
        return #gone
    end

    -- Promotes jobs of some queues {qid, instant of the first}, in the order of these instants, up to a bound. Returns whether any due job
    -- is left, and the steps it took.
    function ready.promote_all(queues)
        table.sort(queues, function(one, other) return one[2] < other[2] or (one[2] == other[2] and one[1] < other[1]) end)
        local left, more = PROMOTED, false
        for _, queue in ipairs(queues) do
            local done = left > 0 and promote(queue[1], left)
            more = more or not done or done == left
            left = left - (done or 0) - PER_QUEUE
        end
        ready.settle()
        return more, PROMOTED - left
    end

    -- Puts back jobs of a level that are not due: the clock was ahead when they were promoted.
    function ready.demote(qid, priority)
        local key = ready.level_key(qid, priority)
        local flat = call('ZRANGEBYSCORE', key, '(' .. number(instant), '+inf', 'WITHSCORES', 'LIMIT', 0, PROMOTED)
        local gone, entries = {}, {}
        for i = 1, #flat, 2 do
            gone[#gone + 1] = flat[i]
            entries[#entries + 1], entries[#entries + 2] = flat[i + 1], ready.delayed_as(priority, flat[i])
        end
        if #gone > 0 then
            many('ZREM', key, gone)
            ready.fill_delayed(qid, entries, tonumber(entries[1]))
            if call('EXISTS', key) == 0 then
                ready.drop_levels(qid, {priority})
            end
        end
    end
end
