-- Claims from governed queues: the tenants that are awake are visited, and give what they may.

local function open_visits()
    local own = turns()

    -- Task and priority of a lane.
    local KIND = '^(.*)%z(-?%d+)$'
    -- How many of those who are awake are looked at together, at most.
    local WINDOW = 16
    -- What a tenant gets when it is its turn, where the policy does not say.
    local CHUNK = 10
    local NOTHING = {}
    local kinds = {}
    -- What is next, of one line: made once, as there are many visits.
    local next_ids, next_scores, next_places = {}, {}, {}

    local function kind_of(kind)
        local known = kinds[kind]
        if not known then
            local task, priority = string.match(kind, KIND)
            known = {task = task, priority = tonumber(priority)}
            kinds[kind] = known
        end
        return known
    end

    -- The due jobs of a tenant, line by line, but for tasks that are closed. Of each line what this claim has passed over is known.
    local function lines_of(b, q, t)
        local lines, open = {}, own.is_open(q)
        for kind, k in pairs(t.lanes) do
            local key = own.key(t, k)
            local line = b.lines[key]
            if not line or line.kind ~= kind then
                local known = kind_of(kind)
                line = {
                    key = key, qid = t.qid, kind = kind, task = known.task, priority = known.priority, tenant = t, passed = false,
                    at = 0, items = NOTHING, next = 1, over = false,
                }
                b.lines[key] = line
            end
            if open or own.closed_until(q, line.task, b.now) == 0 then
                line.at, line.items, line.next, line.over = line.passed or 0, NOTHING, 1, false
                lines[#lines + 1] = line
            end
        end
        return lines
    end

    local function refill(b, line, most)
        line.items = call('ZRANGEBYSCORE', line.key, '-inf', b.till_now, 'WITHSCORES', 'LIMIT', line.at, most + 1)
        line.at, line.over, line.next = line.at + most + 1, #line.items < 2 * (most + 1), 1
    end

    -- The next jobs of a line that nothing holds back; good until the next are asked for.
    local function next_in(b, line, most)
        local ids, scores, places, n = next_ids, next_scores, next_places, 0
        while n < most do
            if line.next > #line.items and not line.over then
                refill(b, line, most)
            end
            local items, first = line.items, line.next
            local last = math.min(#items, first + 2 * (most - n) - 1)
            if last < first then
                break
            end
            for i = first, last, 2 do
                n = n + 1
                ids[n], scores[n], places[n] = items[i], items[i + 1], line
            end
            line.next = last + 1
        end
        for i = n + 1, #ids do
            ids[i], scores[i], places[i] = nil, nil, nil
        end
        return ids, scores, places
    end

    -- The next jobs of some lines, in their order: by (priority, run_at, id), or with ageing by (run_at + priority * ageing, id). A task
    -- whose rate may be used up by them ends the piece.
    local function merged(b, q, lines, most)
        if #lines == 1 and own.is_open(q) then
            return next_in(b, lines[1], most)
        end
        local ids, scores, places, ageing, rest = {}, {}, {}, q.policy[RULE.ageing], {}
        while #ids < most do
            local best, best_id, best_level, best_at
            for i = 1, #lines do
                local line = lines[i]
                if line.next > #line.items and not line.over then
                    refill(b, line, most)
                end
                local id = line.items[line.next]
                if id then
                    local run_at, level = tonumber(line.items[line.next + 1]), line.priority
                    if ageing then
                        run_at, level = run_at + level * ageing, 0
                    end
                    if not best or level < best_level or (level == best_level
                        and (run_at < best_at or (run_at == best_at and before(id, best_id)))) then
                        best, best_id, best_level, best_at = line, id, level, run_at
                    end
                end
            end
            if not best then
                break
            end
            local bucket = own.task_bucket(q, best.task)
            if bucket then
                rest[best.task] = (rest[best.task] or own.free(bucket, b.now)) - 1
                if rest[best.task] < 0 then
                    break
                end
            end
            local n = #ids + 1
            ids[n], scores[n], places[n] = best_id, best.items[best.next + 1], best
            best.next = best.next + 2
        end
        return ids, scores, places
    end

    -- Lease up to ``most`` jobs of a tenant; how many it were.
    local function take_of(b, q, t, most)
        local taken = 0
        local lines = lines_of(b, q, t)
        while #lines > 0 and taken < most and b.left() > 0 and not b.tired() do
            local ids, scores, places = merged(b, q, lines, most - taken)
            if #ids == 0 then
                break
            end
            local some, gone, stale = b.take(ids, scores, places, most - taken, t.n)
            taken = taken + some
            local again = stale or some < #ids
            local as_read = not again
            for place, list in pairs(gone) do
                local first = as_read and not place.passed and place.items[place.next + 1]
                if first then
                    own.begin_with(t, place.key, first)
                else
                    own.tidy(t, place.kind, place.key)
                end
                for _, id in ipairs(q.coming and list or {}) do
                    q.taken[#q.taken + 1] = id
                end
                local bucket = own.task_bucket(q, place.task)
                own.spend(bucket, b.now, #list)
                again = again or bucket
            end
            if again and taken < most then
                lines = lines_of(b, q, t)
            end
        end
        return taken
    end

    -- How many jobs a tenant may be given; 0: none, and then it takes part no more.
    local function allowed_to(b, q, t)
        q.round = math.max(q.round, t.count)
        local most = t.limit and t.limit[1] or q.policy[RULE.tenant_running]
        if most and t.running >= most then
            own.fall_asleep(t, FOREVER)
            t.status = FULL
            return 0
        end
        local bucket = own.tenant_bucket(q, t)
        local free = bucket and own.free(bucket, b.now)
        if t.paused > b.now or free == 0 then
            own.fall_asleep(t, math.max(t.paused > b.now and t.paused or 0, free == 0 and own.opens_at(bucket) or 0))
            return 0
        end
        return math.min(q.policy[RULE.chunk] or CHUNK, most and most - t.running or FOREVER, free or FOREVER)
    end

    -- The instant at which a tenant that has nothing more to give now may have something again.
    local function next_of(b, q, t)
        local till = FOREVER
        for kind, k in pairs(t.lanes) do
            local key = own.key(t, k)
            local at = b.lines[key] and b.lines[key].passed or 0
            local first = call('ZRANGE', key, at, at, 'WITHSCORES')[2]
            if first then
                till = math.min(till, math.max(tonumber(first), own.closed_until(q, kind_of(kind).task, b.now)))
            end
        end
        return till
    end

    local function comes_first(t, other)
        if t.count ~= other.count then
            return t.count < other.count
        elseif t.since ~= other.since then
            return t.since < other.since
        end
        return bytes_before(t.name, other.name)
    end

    -- The first of those who are awake and free to all, in their order; whoever has changed its place is put there again by ``return_to``.
    local function look_at_window(q)
        if #q.window == 0 then
            own.write_places(q)
            local found = {}
            for i, title in ipairs(call('ZRANGE', base .. ':A:' .. q.qid, 0, q.width - 1)) do
                found[i] = struct.unpack('>I8', title, #title - 7)
            end
            own.take_in_all(found)
            for i, n in ipairs(found) do
                q.window[i] = own.by_number(n)
            end
            q.width = WINDOW
        end
        return q.window[1]
    end

    local function return_to(window, t)
        local at = #window
        if at == 0 or comes_first(window[at], t) then
            return
        end
        while at > 1 and comes_first(t, window[at - 1]) do
            at = at - 1
        end
        table.insert(window, at, t)
    end

    -- Who is to be visited: the first of those who are free to all, and of those whose jobs this holder has.
    local function next_tenant(b, q)
        local first = look_at_window(q)
        if q.policy[RULE.holders] and q.owned ~= false then
            local title = call('ZRANGE', base .. ':O:' .. q.qid .. ':' .. b.holder, 0, 0)[1]
            q.owned = title and true or false
            local mine = title and own.by_number(struct.unpack('>I8', title, #title - 7))
            if mine and not (first and comes_first(first, mine)) then
                return mine
            end
        end
        return first
    end

    -- How many jobs the queue as a whole may still give out.
    local function room_of(b, q)
        local most, bucket = q.policy[RULE.running], own.queue_bucket(q)
        return math.min(most and math.max(0, most - own.running(q)) or FOREVER, bucket and own.free(bucket, b.now) or FOREVER)
    end

    local function visit(b, q, t, room)
        if q.window[1] == t then
            table.remove(q.window, 1)
        end
        local allowed = math.min(allowed_to(b, q, t), room)
        if allowed <= 0 then
            return 0
        end
        local taken = take_of(b, q, t, allowed)
        local was = t.status
        if was == BOUND then
            own.unlist(t)
        end
        if taken > 0 then
            t.count, t.running, t.holders[b.holder] = t.count + taken, t.running + taken, (t.holders[b.holder] or 0) + taken
            own.spend(own.queue_bucket(q), b.now, taken)
            own.spend(own.tenant_bucket(q, t), b.now, taken)
        end
        local rests = taken < allowed and b.left() > 0 and not b.tired()
        if was == AWAKE and (rests or own.is_bound(t)) then
            own.unlist(t)
        end
        if rests then
            local till = next_of(b, q, t)
            t.status, t.wake_at = ASLEEP, till < FOREVER and till or -1
        end
        if t.status == AWAKE and was == AWAKE and not own.is_bound(t) then
            own.place_later(q, t)
            return_to(q.window, t)
        else
            own.list(t)
            if t.status == AWAKE then
                q.window = {}
            end
        end
        if rests then
            own.forget(t)
        end
        return taken
    end

    -- Lease up to ``most`` jobs of a governed queue; how many it were.
    local function take_turns(b, qid, most)
        local q = own.queue(qid)
        rule().go_on(qid)
        own.wake(q, b.now)
        q.window, q.taken, q.coming = {}, {}, own.has_coming(q.qid)
        -- As many as it takes if each has something, and more where that was not enough.
        q.width = math.min(WINDOW, math.ceil(most / (q.policy[RULE.chunk] or CHUNK)))
        b.till_now = number(b.now)
        local total = 0
        while total < most and b.left() > 0 and not b.tired() do
            local room = math.min(most - total, room_of(b, q))
            local t = room > 0 and next_tenant(b, q)
            if not t then
                break
            end
            total = total + visit(b, q, t, room)
        end
        own.write_places(q)
        if q.coming then
            own.left(q.qid, q.taken)
        end
        b.flush()
        return total
    end

    -- When there may be more in a governed queue, nil: nobody knows; and whether there is now, for anybody. Jobs that were passed over are
    -- still there.
    local function turns_in(qid, b)
        local q = own.queue(qid)
        for _, line in pairs(b.lines) do
            if line.passed_at and line.qid == q.qid then
                own.expect(line.tenant, line.passed_at)
            end
        end
        local bucket, most = own.queue_bucket(q), q.policy[RULE.running]
        if bucket and own.free(bucket, b.now) == 0 then
            return own.opens_at(bucket) - b.now, false
        elseif most and own.running(q) >= most then
            return nil, false
        end
        local awake = call('EXISTS', base .. ':A:' .. q.qid) == 1
        if b.tired() or rule().is_going_on(qid) then
            return 0, true
        end
        local first = call('ZRANGE', base .. ':B:' .. q.qid, 0, 0, 'WITHSCORES')[2]
        local coming = first and math.max(0, tonumber(first) - b.now)
        return coming, awake or coming == 0
    end

    return {take = take_turns, coming = turns_in}
end

local made_visits

local function visits()
    made_visits = made_visits or open_visits()
    return made_visits
end
