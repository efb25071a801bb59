-- Keeps which tenants of a governed queue are awake, and when the others wake up (steps 1 and 5 of a claim).

-- BOUND: awake, but the rule ``tenant_workers`` lets only its present holders visit it.
local ASLEEP, AWAKE, FULL, BOUND = 0, 1, 2, 3

-- Adds this to ``self``, the turns.
local function open_awake(self)
    -- A claim wakes all tenants whose time has come, up to MANY. If they are more, it wakes twice as many as it may take
    -- jobs, within the other bounds.
    local FEWEST, MANY, MOST = 8, 100, 250
    -- The instant from which each queue may have something to claim, as far as this script knows.
    local soon = {}

    local function awake_as(t)
        return struct.pack('>I8', t.since) .. self.title(t)
    end

    function self.is_bound(t)
        local most = policy_of(t.qid)[RULE.tenant_workers]
        if not most then
            return false
        end
        local held = 0
        for _ in pairs(t.holders) do
            held = held + 1
        end
        return held >= most
    end

    -- The count of an awake tenant has changed: it is listed again before the list is next read.
    function self.move_later(q, t)
        q.moved[t.n] = t
        self.touch(t)
    end

    function self.write_moved(q)
        local moved = {}
        for _, t in pairs(q.moved) do
            moved[#moved + 1], moved[#moved + 2] = number(t.count), awake_as(t)
        end
        many('ZADD', base .. ':A:' .. q.qid, moved)
        q.moved = {}
    end

    function self.unlist(t)
        if t.status == AWAKE then
            self.queue(t.qid).moved[t.n] = nil
            call('ZREM', base .. ':A:' .. t.qid, awake_as(t))
        elseif t.status == BOUND then
            for holder in pairs(t.holders) do
                call('ZREM', base .. ':O:' .. t.qid .. ':' .. holder, awake_as(t))
            end
        elseif t.wake_at >= 0 then
            call('ZREM', base .. ':B:' .. t.qid, t.digits)
        end
    end

    -- The queue may have something to claim from this instant on.
    function self.expect_in(qid, at)
        soon[qid] = math.min(soon[qid] or at, at)
    end

    -- Sets that instant after a claim, which knows it exactly; nil: something must happen first. Not under the rule ``tenant_workers``:
    -- other holders may find more.
    function self.set_soon(qid, at)
        if not policy_of(qid)[RULE.tenant_workers] then
            soon[qid] = nil
            if at then
                call('ZADD', base .. ':fq', number(at), qid)
            else
                call('ZREM', base .. ':fq', qid)
            end
        end
    end

    function self.write_soon()
        for qid, at in pairs(soon) do
            call('ZADD', base .. ':fq', 'LT', number(at), qid)
        end
        soon = {}
    end

    function self.list(t)
        self.touch(t)
        if t.status == AWAKE or t.status == BOUND then
            self.expect_in(t.qid, 0)
            t.status = self.is_bound(t) and BOUND or AWAKE
            if t.status == AWAKE then
                call('ZADD', base .. ':A:' .. t.qid, number(t.count), awake_as(t))
            else
                self.queue(t.qid).owned = nil
                for holder in pairs(t.holders) do
                    call('ZADD', base .. ':O:' .. t.qid .. ':' .. holder, number(t.count), awake_as(t))
                end
            end
        elseif t.wake_at >= 0 then
            call('ZADD', base .. ':B:' .. t.qid, number(t.wake_at), t.digits)
            self.expect_in(t.qid, t.wake_at)
        end
    end

    -- The tenant may have something to claim from this instant on.
    function self.expect(t, till)
        if t.status == ASLEEP and (t.wake_at < 0 or till < t.wake_at) then
            t.wake_at = till
            self.list(t)
        end
    end

    function self.fall_asleep(t, till)
        self.unlist(t)
        t.status, t.wake_at = ASLEEP, till < FOREVER and till or -1
        self.list(t)
    end

    -- The rules have changed: the tenant is looked at again.
    function self.reconsider(t, at)
        local bucket = t.bucket
        if bucket and self.tenant_bucket(self.queue(t.qid), t) ~= bucket then
            self.touch(t)
        end
        if t.shut ~= SHUT.none then
            t.shut = SHUT.recheck
            self.touch(t)
        end
        if t.status == FULL then
            t.status, t.wake_at = ASLEEP, -1
            self.touch(t)
        end
        if t.status ~= ASLEEP then
            self.unlist(t)
            self.list(t)
        elseif t.count > 0 or t.running > 0 or t.bucket or t.due + t.delayed > 0 then
            self.expect(t, at)
        end
    end

    -- -- running jobs

    -- A holder gets its first jobs of the tenant, or has none left (nil). If the tenant is listed by its holders, it is listed again.
    local function set_holder(t, holder, jobs, listed)
        if listed then
            self.unlist(t)
        end
        t.holders[holder] = jobs
        if listed then
            self.list(t)
        end
    end

    -- A job of the tenant has ended here: there may be room for another one.
    local function make_room(t)
        if t.status == FULL then
            t.status, t.wake_at = ASLEEP, -1
            self.expect(t, instant)
        end
        self.forget(t)
    end

    -- Jobs of the tenant begin to run.
    function self.start(t, holder, jobs)
        if t.holders[holder] then
            t.holders[holder] = t.holders[holder] + jobs
        else
            set_holder(t, holder, jobs, t.status == AWAKE or t.status == BOUND)
        end
        t.running = t.running + jobs
        self.touch(t)
    end

    -- Jobs of the tenant stop running.
    function self.stop(n, holder, jobs)
        local t = self.by_number(n)
        t.running = t.running - jobs
        local left = t.holders[holder] - jobs
        if left > 0 then
            t.holders[holder] = left
        else
            set_holder(t, holder, nil, t.status == BOUND)
        end
        make_room(t)
        local policy = policy_of(t.qid)
        if policy[RULE.running] or policy[RULE.tenant_workers] or policy[RULE.tenant_running] or (t.limit and t.limit[1]) then
            wake(t.qid, jobs)
            self.expect_in(t.qid, 0)
        end
    end

    -- A running job has moved here from another queue, and its run ends in the same step.
    function self.pass(qid, id)
        local t = self.known(qid, labels_of(call('HGET', base .. ':j', id))[3])
        if t then
            make_room(t)
        end
    end

    -- 1. Wake: tenants whose time has come wake up, as many as ``wanted`` jobs may need. Returns how many.
    function self.wake(q, now, wanted)
        local asleep, instant = base .. ':B:' .. q.qid, number(now)
        local fewest = call('ZCOUNT', asleep, '-inf', instant) > MANY and FEWEST or MANY
        local most = math.max(fewest, math.min(MOST, 2 * wanted))
        local flat = call('ZRANGEBYSCORE', asleep, '-inf', instant, 'WITHSCORES', 'LIMIT', 0, most)
        local awake, gone, due = {}, {}, {}
        for i = 1, #flat, 2 do
            due[#due + 1] = tonumber(flat[i])
        end
        self.read_all(due)
        for i = 1, #flat, 2 do
            local t = self.by_number(tonumber(flat[i]))
            t.status, t.since, t.wake_at, t.count = AWAKE, t.wake_at, -1, math.max(t.count, q.round)
            gone[#gone + 1] = flat[i]
            self.touch(t)
            if self.is_bound(t) then
                self.list(t)
            else
                awake[#awake + 1], awake[#awake + 2] = number(t.count), awake_as(t)
            end
        end
        many('ZREM', asleep, gone)
        many('ZADD', base .. ':A:' .. q.qid, awake)
        return #gone
    end
end
