-- Walks over the due jobs of queues that are not governed, by (priority, run_at, id).
-- It reads only the levels that it comes to, and of these only the jobs that it returns, however many there are.

local open_walk

do
    -- Heaps: tables whose first item comes before all others.
    local function heap_push(heap, item, comes_first)
        local at, above = #heap + 1, math.floor((#heap + 1) / 2)
        while above > 0 and comes_first(item, heap[above]) do
            heap[at], at, above = heap[above], above, math.floor(above / 2)
        end
        heap[at] = item
    end

    -- The first item has changed: moves it to where it belongs.
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

    -- How many queues of the same level are read together, and how many levels of a queue are read ahead, at most.
    local WIDTH, AHEAD = 128, 128
    -- The steps that a level costs if queues are read one by one, and if several are read together.
    local STEPS, STEPS_OF_SEVERAL = 2, 14
    -- After how many steps a piece ends.
    local MANY_STEPS = 800

    local function is_lower(one, other)
        return one < other
    end

    -- Compares cursors by their next jobs.
    local function comes_before(one, other)
        return one.score < other.score or (one.score == other.score and before(one.items[one.next], other.items[other.next]))
    end

    -- ``cursors`` keeps, for each level, how many of its first jobs were passed over and stay there.
    function open_walk(qids, cursors)
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

        -- Moves a queue on to its next level; that is its first one if the earlier levels have gone meanwhile.
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

        local function cursor_of(qid, priority)
            local key = ready.level_key(qid, priority)
            local cursor = cursors[key] or {key = key, qid = qid, priority = priority}
            cursors[key] = cursor
            cursor.at, cursor.items, cursor.next, cursor.over, cursor.early = cursor.passed or 0, {}, 1, false, false
            begun[#begun + 1] = cursor
            return cursor
        end

        -- Whether there is a next job at the cursor; reads it.
        local function is_there(cursor, want)
            if cursor.next > #cursor.items and not cursor.over then
                read_on(cursor, want)
            end
            cursor.score = tonumber(cursor.items[cursor.next + 1])
            return cursor.score ~= nil
        end

        -- Begins with the next queues at the lowest level.
        local function begin(want)
            local priority = order[1]
            local level = levels[priority]
            current, heap = {}, {}
            for _ = 1, math.min(WIDTH, #level) do
                current[#current + 1] = cursor_of(table.remove(level, #level), priority)
            end
            if #level == 0 then
                heap_pop(order, is_lower)
                levels[priority] = nil
            end
            walk.steps = walk.steps + (#current == 1 and STEPS or STEPS_OF_SEVERAL * #current)
            local each = #current == 1 and want or math.ceil(2 * want / #current)
            for _, cursor in ipairs(#current > 1 and current or {}) do
                cursor.want = each
                if is_there(cursor, each) then
                    heap_push(heap, cursor, comes_before)
                end
            end
        end

        local function merge(want, ids, scores, taken_from)
            local n = #ids
            while n < want and #heap > 0 do
                local cursor = heap[1]
                n = n + 1
                ids[n], scores[n], taken_from[n] = cursor.items[cursor.next], cursor.items[cursor.next + 1], cursor
                cursor.at, cursor.next = cursor.at + 1, cursor.next + 2
                if is_there(cursor, cursor.want) then
                    heap_sink(heap, comes_before)
                else
                    heap_pop(heap, comes_before)
                end
            end
            return n < want
        end

        -- Returns the next jobs: ids, scores, the cursor of each, and the steps it took. After many steps it returns fewer jobs, but at
        -- least one if there is any. The caller says that a job has left its level by ``cursor.at = cursor.at - 1``.
        function walk.piece(want)
            local ids, scores, taken_from, before = {}, {}, {}, walk.steps
            while #ids < want and (current or #order > 0) and (#ids == 0 or walk.steps - before < MANY_STEPS) do
                if not current then
                    begin(want - #ids)
                end
                local over
                if #current == 1 then
                    over = take_on(current[1], #ids, want, ids, scores, taken_from) < want
                else
                    over = merge(want, ids, scores, taken_from)
                end
                if over then
                    for _, cursor in ipairs(current) do
                        go_on(cursor.qid, cursor.priority)
                    end
                    current = nil
                end
            end
            return ids, scores, taken_from, walk.steps - before
        end

        -- Drops levels that are empty; ``stale``: jobs may have been added meanwhile.
        function walk.close(stale)
            local empty = {}
            for _, cursor in ipairs(begun) do
                if cursor.early then
                    ready.demote(cursor.qid, cursor.priority)
                elseif cursor.over and cursor.next > #cursor.items and cursor.at == 0 and not (stale and call('EXISTS', cursor.key) == 1) then
                    empty[cursor.qid] = empty[cursor.qid] or {}
                    table.insert(empty[cursor.qid], cursor.priority)
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
