-- Takes jobs of a governed queue: its tenants take turns.
-- The steps are those of ``Backend.claim``: 1. wake (``awake``), 2. next tenant, 3. allowance, 4. take (``pick``), 5. rest.

local function open_visits()
    local own = turns()
    local pick = open_pick(own)

    -- How many awake tenants are read together, at most.
    local WINDOW = 16
    -- How many jobs a visit takes if the policy does not say.
    local TENANT_BATCH = 10
    -- The steps that a queue, a visit, a tenant that wakes up and a promoted job cost.
    local PER_QUEUE, PER_VISIT, PER_WAKING, PER_PROMOTED = 25, 14, 3, 2

    local function comes_first(t, other)
        if t.count ~= other.count then
            return t.count < other.count
        elseif t.since ~= other.since then
            return t.since < other.since
        end
        return bytes_before(t.name, other.name)
    end

    -- Returns the first awake tenant that every holder may visit. A tenant whose count has changed comes back into the window by
    -- ``return_to``.
    local function look_at_window(q)
        if #q.window == 0 then
            own.write_moved(q)
            local found = {}
            for i, title in ipairs(call('ZRANGE', base .. ':A:' .. q.qid, 0, q.width - 1)) do
                found[i] = struct.unpack('>I8', title, #title - 7)
            end
            own.read_all(found)
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

    -- 2. Next tenant: the first of those that every holder may visit and of those whose jobs this holder has.
    local function next_tenant(b, q)
        local first = look_at_window(q)
        if q.policy[RULE.tenant_workers] and q.owned ~= false then
            local title = call('ZRANGE', base .. ':O:' .. q.qid .. ':' .. b.holder, 0, 0)[1]
            q.owned = title and true or false
            local mine = title and own.by_number(struct.unpack('>I8', title, #title - 7))
            if mine and not (first and comes_first(first, mine)) then
                return mine
            end
        end
        return first
    end

    -- Returns how many jobs of the queue as a whole may still start.
    local function room_of(b, q)
        local most, bucket = q.policy[RULE.running], own.queue_bucket(q)
        return math.min(most and math.max(0, most - own.running(q)) or FOREVER, bucket and own.free(bucket, b.now) or FOREVER)
    end

    -- 3. Allowance: returns how many jobs the visit may take; 0: none, and the tenant is full or asleep.
    local function allowance(b, q, t)
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
        return math.min(q.policy[RULE.tenant_batch] or TENANT_BATCH, most and most - t.running or FOREVER, free or FOREVER)
    end

    -- 5. Rest: the tenant sleeps until it may have something again.
    local function rest(b, q, t)
        local till = pick.next_of(b, q, t)
        t.status, t.wake_at = ASLEEP, till < FOREVER and till or -1
    end

    -- Visits a tenant. Returns how many jobs were taken.
    local function visit(b, q, t, room)
        b.step(PER_VISIT)
        if q.window[1] == t then
            table.remove(q.window, 1)
        end
        local allowed = math.min(allowance(b, q, t), room)
        if allowed <= 0 then
            return 0
        end
        local delayed = t.delayed
        local more_due = own.promote(t)
        b.step(PER_PROMOTED * (delayed - t.delayed))
        if t.shut ~= SHUT.none then
            b.step(own.reopen(q, t, allowed, b.now))
        end
        local taken = pick.take(b, q, t, allowed)
        local was = t.status
        if was == BOUND then
            own.unlist(t)
        end
        if taken > 0 then
            t.count, t.running, t.holders[b.holder] = t.count + taken, t.running + taken, (t.holders[b.holder] or 0) + taken
            own.spend(own.queue_bucket(q), b.now, taken)
            own.spend(own.tenant_bucket(q, t), b.now, taken)
        end
        local goes_on = t.view and t.view.goes_on
        local rests = taken < allowed and not more_due and b.left() > 0 and (goes_on or not b.is_spent())
        if was == AWAKE and (rests or own.is_bound(t)) then
            own.unlist(t)
        end
        if rests then
            rest(b, q, t)
        end
        if t.status == AWAKE and was == AWAKE and not own.is_bound(t) then
            own.move_later(q, t)
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

    -- Leases up to ``most`` jobs of a governed queue. Returns how many.
    local function take_turns(b, qid, most)
        local q = own.queue(qid)
        if rule().go_on(qid) and rule().is_counting(qid) then
            return 0
        end
        b.step(PER_QUEUE + PER_WAKING * own.wake(q, b.now, most))
        q.window = {}
        -- As many tenants as are needed if each has enough; more are read when these were not enough.
        q.width = math.min(WINDOW, math.ceil(most / (q.policy[RULE.tenant_batch] or TENANT_BATCH)))
        local total = 0
        while total < most and b.left() > 0 and not b.is_spent() do
            local room = math.min(most - total, room_of(b, q))
            local t = room > 0 and next_tenant(b, q)
            if not t then
                break
            end
            total = total + visit(b, q, t, room)
        end
        own.write_moved(q)
        b.flush()
        return total
    end

    -- Returns the time until the queue may have more (nil: unknown), and whether it has something now for any holder.
    local function turns_in(qid, b)
        local q = own.queue(qid)
        local bucket, most = own.queue_bucket(q), q.policy[RULE.running]
        if bucket and own.free(bucket, b.now) == 0 then
            return own.opens_at(bucket) - b.now, false
        elseif most and own.running(q) >= most then
            return nil, false
        end
        local awake = call('EXISTS', base .. ':A:' .. q.qid) == 1
        if b.is_spent() or rule().is_going_on(qid) then
            return 0, true
        end
        local first = call('ZRANGE', base .. ':B:' .. q.qid, 0, 0, 'WITHSCORES')[2]
        local coming = first and math.max(0, tonumber(first) - b.now)
        return coming, awake or coming == 0
    end

    -- The same, where the time does not count jobs that were passed over: they are still there, for others.
    local function coming(qid, b)
        local q, till, more = own.queue(qid), turns_in(qid, b)
        local soon, passed = till, false
        for _, lane in ipairs(b.passing) do
            if lane.qid == q.qid then
                own.expect(lane.tenant, lane.passed_at)
                passed = true
            end
        end
        if passed then
            soon, more = turns_in(qid, b)
        end
        own.set_soon(tonumber(qid), more and 0 or soon and b.now + soon or nil)
        return till, more
    end

    return {take = take_turns, coming = coming}
end

local visits = once(open_visits)
