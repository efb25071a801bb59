-- A walk over the due jobs of queues that are not governed, by (priority, run_at, id). It reads the levels that it comes to, and of those the
-- jobs that it hands out, however many there are.

local open_walk

do
    -- Heaps: tables whose first item comes before all others.
    local function heap_push(heap, item, comes_first)
        local at = #heap + 1
        while at > 1 do
            local above = math.floor(at / 2)
            if not comes_first(item, heap[above]) then
                break
            end
            heap[at], at = heap[above], above
        end
        heap[at] = item
    end

    -- The first item has another place now.
    local function heap_sink(heap, comes_first)
        local item, at, size = heap[1], 1, #heap
        while true do
            local below = 2 * at
            if below < size and comes_first(heap[below + 1], heap[below]) then
                below = below + 1
            end
            if below > size or not comes_first(heap[below], item) then
                break
            end
            heap[at], at = heap[below], below
        end
        heap[at] = item
    end

    local function heap_pop(heap, comes_first)
        local item, size = heap[1], #heap
        heap[1] = heap[size]
        heap[size] = nil
        if size > 2 then
            heap_sink(heap, comes_first)
        end
        return item
    end

    -- How many queues are looked at together that have the same level, and how many levels of a queue are read ahead, at most.
    local WIDTH, AHEAD = 128, 128
    -- What a level counts for, of one queue after the other, and of several.
    local STEPS, STEPS_OF_SEVERAL = 2, 14
    -- After how many steps a piece ends.
    local MANY_STEPS = 800

    local function is_lower(one, other)
        return one < other
    end

    -- Of lines with jobs read.
    local function line_first(one, other)
        return one.score < other.score or (one.score == other.score and before(one.items[one.next], other.items[other.next]))
    end

    -- ``lines`` keeps what is known of each: how many of its first jobs stay there, as they were passed over.
    function open_walk(qids, lines)
        local levels, order, ahead, begun = {}, {}, {}, {}
        local current, heap
        local walk = {steps = 0}

        local function stand_at(qid, priority)
            local level = levels[priority]
            if not level then
                level = {}
                levels[priority] = level
                heap_push(order, priority, is_lower)
            end
            level[#level + 1] = qid
        end

        local firsts = ready.first_levels(qids)
        for _, qid in ipairs(qids) do
            if firsts[qid] then
                stand_at(qid, firsts[qid])
            end
        end

        -- A queue goes on to its next level, which is its first if those before have gone meanwhile.
        local function go_on(qid, priority)
            local next_ones = ahead[qid]
            if not next_ones then
                next_ones = {at = 1, width = 1}
            end
            if next_ones.at > #next_ones then
                local width, first = math.min(AHEAD, 4 * next_ones.width), ready.first_level(qid)
                next_ones = first and first > priority and {first}
                    or call('ZRANGEBYSCORE', base .. ':p:' .. qid, '(' .. priority, '+inf', 'LIMIT', 0, width)
                next_ones.at, next_ones.width = 1, width
                ahead[qid] = next_ones
            end
            local found = next_ones[next_ones.at]
            next_ones.at = next_ones.at + 1
            if found then
                stand_at(qid, tonumber(found))
            end
        end

        local function line_of(qid, priority)
            local key = ready.level_key(qid, priority)
            local line = lines[key] or {key = key, qid = qid, priority = priority}
            lines[key] = line
            line.at, line.items, line.next, line.over, line.early = line.passed or 0, {}, 1, false, false
            begun[#begun + 1] = line
            return line
        end

        -- The next jobs of a line; one more than are wanted, so that it is known whether there are more.
        local function refill(line, want)
            local items = call('ZRANGE', line.key, line.at, line.at + want, 'WITHSCORES')
            line.over = #items < 2 * (want + 1)
            while #items > 0 and tonumber(items[#items]) > instant do
                items[#items], items[#items - 1] = nil, nil
                line.over, line.early = true, true
            end
            line.items, line.next = items, 1
        end

        -- Whether the line has a next job; it is read.
        local function is_there(line, want)
            if line.next > #line.items and not line.over then
                refill(line, want)
            end
            line.score = tonumber(line.items[line.next + 1])
            return line.score ~= nil
        end

        -- The next queues that are at the lowest level.
        local function begin(want)
            local priority = order[1]
            local level = levels[priority]
            current, heap = {}, {}
            for _ = 1, math.min(WIDTH, #level) do
                current[#current + 1] = line_of(table.remove(level, #level), priority)
            end
            if #level == 0 then
                heap_pop(order, is_lower)
                levels[priority] = nil
            end
            walk.steps = walk.steps + (#current == 1 and STEPS or STEPS_OF_SEVERAL * #current)
            local each = #current == 1 and want or math.ceil(2 * want / #current)
            for _, line in ipairs(#current > 1 and current or {}) do
                line.want = each
                if is_there(line, each) then
                    heap_push(heap, line, line_first)
                end
            end
        end

        -- The next jobs of one line, of all that were begun; whether it has no more.
        local function take_line(line, want, ids, scores, places)
            local n = #ids
            while n < want and is_there(line, want - n) do
                local items = line.items
                local last = math.min(#items, line.next + 2 * (want - n) - 1)
                for i = line.next, last, 2 do
                    n = n + 1
                    ids[n], scores[n], places[n] = items[i], items[i + 1], line
                end
                line.at, line.next = line.at + (last + 1 - line.next) / 2, last + 1
            end
            return n < want
        end

        local function merge_lines(want, ids, scores, places)
            local n = #ids
            while n < want and #heap > 0 do
                local line = heap[1]
                n = n + 1
                ids[n], scores[n], places[n] = line.items[line.next], line.items[line.next + 1], line
                line.at, line.next = line.at + 1, line.next + 2
                if is_there(line, line.want) then
                    heap_sink(heap, line_first)
                else
                    heap_pop(heap, line_first)
                end
            end
            return n < want
        end

        -- The next jobs: ids, scores, and the lines that they stand in, and the steps that it took. If these are many, it may be fewer jobs, but
        -- never none that there are. What leaves its line is to be told by ``line.at = line.at - 1``.
        function walk.piece(want)
            local ids, scores, places, before = {}, {}, {}, walk.steps
            while #ids < want and (current or #order > 0) and (#ids == 0 or walk.steps - before < MANY_STEPS) do
                if not current then
                    begin(want - #ids)
                end
                local over
                if #current == 1 then
                    over = take_line(current[1], want, ids, scores, places)
                else
                    over = merge_lines(want, ids, scores, places)
                end
                if over then
                    for _, line in ipairs(current) do
                        go_on(line.qid, line.priority)
                    end
                    current = nil
                end
            end
            return ids, scores, places, walk.steps - before
        end

        -- Levels that are empty go; ``stale``: others may have come meanwhile.
        function walk.close(stale)
            local empty = {}
            for _, line in ipairs(begun) do
                if line.early then
                    ready.demote(line.qid, line.priority)
                elseif line.over and line.next > #line.items and line.at == 0 and not (stale and call('EXISTS', line.key) == 1) then
                    empty[line.qid] = empty[line.qid] or {}
                    table.insert(empty[line.qid], line.priority)
                end
            end
            for qid, priorities in pairs(empty) do
                ready.drop_levels(qid, priorities)
            end
            ready.settle()
        end

        return walk
    end
end
