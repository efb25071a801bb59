-- Takes jobs of one tenant (step 4 of a claim): its first by (priority, run_at, id), or with ageing by (run_at + priority * ageing, id).
-- However many lanes the tenant has, only the first are read, and more only if their tasks are closed; if these are many, they are shut.
-- With ageing some of the others are read too, other ones each time.

local function open_pick(own)
    -- How many lanes are read together, at least and at most; how many lanes of closed tasks may come first, and how many are read in all.
    local FEW, WIDTH, CLOSED, MOST = 8, 64, 1000, 2000
    -- Microseconds until a tenant is visited again that has more lanes of closed tasks than a visit reads: others come first.
    local AGAIN = 20000
    local NOTHING = {}
    -- What comes next in a single lane. The tables are reused, as there are many visits.
    local next_ids, next_scores, next_lanes = {}, {}, {}

    local function add(b, q, view, found, is_open)
        for _, lane in ipairs(found) do
            lane.at, lane.items, lane.next, lane.over, lane.early = lane.passed or 0, NOTHING, 1, false, false
            b.cursors[lane.key] = lane
            local shut = not is_open and own.closed_until(q, lane.task, b.now) > 0
            local of = shut and view.closed or view.lanes
            of[#of + 1] = lane
            view.fresh = view.fresh + (shut and 0 or lane.passed and 0 or 1)
        end
    end

    -- Returns the first lanes of a tenant, open and closed ones, until some are open that have nothing passed over; and the last lane that
    -- was read, if there are more.
    local function look(b, q, t, most)
        local view, is_open, from = {lanes = {}, closed = {}, fresh = 0}, own.is_open(q), 0
        local width = math.max(FEW, math.min(WIDTH, most + 1))
        repeat
            local found, all = own.lanes_from(t, from, from == 0 and width or WIDTH)
            add(b, q, view, found, is_open)
            b.step(#found)
            from, view.horizon = from + #found, not all and found[#found] or nil
        until all or view.fresh > 0 or #view.closed >= CLOSED or from >= MOST
        if view.horizon and q.policy[RULE.ageing] then
            add(b, q, view, own.lanes_from(t, from + b.now % math.max(1, own.count_lanes(t) - from), WIDTH), is_open)
            view.horizon, view.is_sample = nil, true
        end
        if view.horizon then
            view.till = {priority = view.horizon.priority, at = view.horizon.bound_at, id = view.horizon.bound_id}
        end
        if #view.closed > WIDTH then
            own.shut(q, t, view.closed, b.now)
            view.goes_on, view.closed = #view.closed >= CLOSED and view.fresh == 0, {}
        end
        t.view = view
        return view
    end

    -- Returns the next jobs of the only lane, if nothing limits it. The tables are valid until the next call.
    local function next_in(lane, most)
        local ids, scores, from_lanes = next_ids, next_scores, next_lanes
        for i = take_on(lane, 0, most, ids, scores, from_lanes) + 1, #ids do
            ids[i], scores[i], from_lanes[i] = nil, nil, nil
        end
        return ids, scores, from_lanes
    end

    -- Returns the position of a lane's next job in the order: level, instant, id; nil: there is none. A job that was not read yet is at
    -- this position or later.
    local function stands(lane, ageing)
        local id, at = lane.items[lane.next], tonumber(lane.items[lane.next + 1])
        if not id and not lane.over then
            id, at = lane.bound_id, lane.bound_at
        end
        if not id then
            return nil
        elseif ageing then
            return 0, at + lane.priority * ageing, id
        end
        return lane.priority, at, id
    end

    local function comes_before(level, at, id, other_level, other_at, other_id)
        if level ~= other_level then
            return level < other_level
        elseif at ~= other_at then
            return at < other_at
        end
        return before(id, other_id)
    end

    -- Returns the next jobs of some lanes, in their order, as far as the view goes. A task whose rate they may use up ends the piece.
    local function merged(b, q, view, most)
        local lanes, till = view.lanes, view.till
        if #lanes == 1 and not till and own.is_open(q) then
            return next_in(lanes[1], most)
        end
        local ids, scores, from_lanes, ageing, rest = {}, {}, {}, q.policy[RULE.ageing], {}
        while #ids < most do
            local best, best_level, best_at, best_id
            local i = 1
            while i <= #lanes do
                local lane = lanes[i]
                local level, at, id = stands(lane, ageing)
                if level and (not best or comes_before(level, at, id, best_level, best_at, best_id)) then
                    if lane.next > #lane.items and not lane.over then
                        read_on(lane, most)
                        i = i - 1
                    else
                        best, best_level, best_at, best_id = lane, level, at, id
                    end
                end
                i = i + 1
            end
            if not best or (till and comes_before(till.priority, till.at, till.id, best_level, best_at, best_id)) then
                view.ended = till ~= nil or view.is_sample
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
            ids[n], scores[n], from_lanes[n] = best_id, best.items[best.next + 1], best
            best.bound_at, best.bound_id = tonumber(best.items[best.next + 1]), best_id
            best.at, best.next = best.at + 1, best.next + 2
        end
        return ids, scores, from_lanes
    end

    -- Updates the lanes that a piece was taken from. Returns whether a rate was used.
    local function leave_lanes(b, q, t, gone, as_read)
        local spent = false
        for lane, list in pairs(gone) do
            t.due = t.due - #list - (lane.aside or 0)
            lane.aside = nil
            if as_read and not lane.passed then
                own.first_is(lane, lane.items[lane.next], lane.items[lane.next + 1])
            else
                own.first_is(lane)
            end
            local bucket = own.task_bucket(q, lane.task)
            own.spend(bucket, b.now, #list)
            spent = spent or bucket
        end
        own.touch(t)
        return spent
    end

    -- 4. Take: leases up to ``most`` jobs of a tenant. Returns how many.
    local function take(b, q, t, most)
        local taken = 0
        while taken < most and b.left() > 0 and not b.is_spent() do
            local known = t.view
            local view = known or look(b, q, t, most - taken)
            view.ended = false
            local ids, scores, from_lanes = merged(b, q, view, most - taken)
            if #ids == 0 and not (known and view.ended) then
                break
            end
            local some, gone, stale = 0, NOTHING, false
            if #ids > 0 then
                some, gone, stale = b.take(ids, scores, from_lanes, most - taken, t.n)
            end
            taken = taken + some
            local as_read = not stale and some == #ids
            if leave_lanes(b, q, t, gone, as_read) or not as_read or view.ended then
                t.view = nil
            end
        end
        for _, lane in ipairs(t.view and t.view.lanes or NOTHING) do
            if lane.early then
                own.demote(lane)
            end
        end
        return taken
    end

    -- Returns when a tenant that has nothing more to take may have something again.
    local function next_of(b, q, t)
        local till, view = FOREVER, t.view or look(b, q, t, WIDTH)
        if view.goes_on then
            return b.now + AGAIN
        end

        local function consider(at, task)
            till = math.min(till, math.max(at, own.closed_until(q, task, b.now)))
        end

        for _, lanes in ipairs({view.lanes, view.closed}) do
            for _, lane in ipairs(lanes) do
                local first = call('ZRANGE', lane.key, lane.passed or 0, lane.passed or 0, 'WITHSCORES')[2]
                if first then
                    consider(tonumber(first), lane.task)
                end
            end
        end
        local shut, others = own.shut_tasks(t)
        for i = 1, #shut, 2 do
            consider(shut[i], shut[i + 1])
        end
        till = math.min(till, others)
        local delayed = own.first_delayed(t, WIDTH)
        for i = 1, #delayed, 2 do
            if delayed[i] >= till then
                break
            end
            consider(delayed[i], delayed[i + 1])
        end
        return till
    end

    return {take = take, next_of = next_of}
end
