-- Governed queues: their tenants and lanes. All of this is made when it is needed first, as most stores have no such queue.

-- TENANT (msgpack): queue number, name, count, since, status, wake_at (-1: it does not), running, lanes by task and priority (with a
-- zero byte between), jobs by holder,
-- its own limit ({running, rate}; false: none), until when it is paused (0: it is not), its rate under way (BUCKET; false: none).
-- BUCKET (msgpack): every, burst, full_at. WAKING (msgpack): the tenant after which, and the instant at which.
local ASLEEP, AWAKE, FULL, BOUND = 0, 1, 2, 3
-- How many tenants are woken, and how many jobs brought into lanes, by one script.
local STEP = 1000
-- Where the name of a lane begins in its key.
local LANE_AT = #base + 4

local function open_turns()
    local queues, tenants, numbers, changed, heads = {}, {}, {}, {}, {}
    local self = {}

    -- -- rules

    -- What is known of a queue: its policy, its round, its rates under way, its paused tasks.
    function self.queue(qid)
        qid = tonumber(qid)
        local known = queues[qid]
        if not known then
            local round = tonumber(call('HGET', base .. ':o', qid))
            known = {qid = qid, policy = policy_of(qid), round = round, was = round, buckets = {}, paused = {}, places = {}, window = {}}
            local flat = call('ZRANGE', base .. ':oz:' .. qid, 0, -1, 'WITHSCORES')
            for i = 1, #flat, 2 do
                known.paused[flat[i]] = tonumber(flat[i + 1])
            end
            queues[qid] = known
        end
        return known
    end

    -- The rate under way of a queue or task, by its field; one that has changed begins anew.
    local function bucket_of(q, field, rate)
        if not rate then
            return nil
        end
        local bucket = q.buckets[field]
        if not bucket then
            local packed = call('HGET', base .. ':of:' .. q.qid, field)
            bucket = packed and cmsgpack.unpack(packed)
            if not bucket or bucket[1] ~= rate[1] or bucket[2] ~= rate[2] then
                bucket = {rate[1], rate[2], 0}
            end
            q.buckets[field] = bucket
        end
        return bucket
    end

    local function task_bucket(q, task)
        local rate = q.policy[RULE.task_rates][task]
        return rate and bucket_of(q, 'k' .. task, rate)
    end

    local function tenant_bucket(q, t)
        local rate = t.limit and t.limit[2] or q.policy[RULE.tenant_rate]
        if not rate then
            t.bucket = false
        elseif not t.bucket or t.bucket[1] ~= rate[1] or t.bucket[2] ~= rate[2] then
            t.bucket = {rate[1], rate[2], 0}
        end
        return t.bucket or nil
    end

    -- How many jobs it allows.
    local function free(bucket, now)
        return math.max(0, bucket[2] - math.ceil(math.max(0, bucket[3] - now) / bucket[1]))
    end

    local function opens_at(bucket)
        return bucket[3] - (bucket[2] - 1) * bucket[1]
    end

    local function spend(bucket, now, jobs)
        if bucket then
            bucket[3], bucket.changed = math.max(bucket[3], now) + jobs * bucket[1], true
        end
    end

    -- Whether jobs of any task may be started, and as many as there are.
    local function is_open(q)
        return next(q.paused) == nil and next(q.policy[RULE.task_rates]) == nil
    end

    -- When jobs of a task may be started; 0: now.
    local function closed_until(q, task, now)
        local bucket = task_bucket(q, task)
        local till = bucket and free(bucket, now) == 0 and opens_at(bucket) or 0
        local paused = q.paused[task] or 0
        return math.max(till, paused > now and paused or 0)
    end

    -- -- tenants

    local function note(t)
        changed[t.n] = t
    end

    -- From when on a sweep may let go of it, or of all but what was set by hand; false: not by itself.
    local function idle_from(t)
        if next(t.lanes) ~= nil or t.running > 0 or t.status == AWAKE or t.status == BOUND then
            return false
        elseif t.count > 0 or t.bucket or t.wake_at >= 0 then
            return t.bucket and t.bucket[3] or 0
        end
        return not t.limit and t.paused < FOREVER and t.paused
    end

    local function take_in(n, digits, packed)
        local f = cmsgpack.unpack(packed)
        local t = {
            n = n, qid = f[1], name = f[2], count = f[3], since = f[4], status = f[5], wake_at = f[6], running = f[7], lanes = f[8],
            holders = f[9], limit = f[10], paused = f[11], bucket = f[12], digits = digits,
        }
        t.idle = idle_from(t)
        tenants[n] = t
        return t
    end

    function self.by_number(n)
        local known = tenants[n]
        if not known then
            local digits = number(n)
            known = take_in(n, digits, call('HGET', base .. ':M', digits))
        end
        return known
    end

    local function known_as(qid, name)
        local names = numbers[qid]
        if not names then
            names = {}
            numbers[qid] = names
        end
        local n = names[name]
        if n == nil then
            local found = call('ZRANGEBYLEX', base .. ':V:' .. qid, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', 0, 1)[1]
            n = found and struct.unpack('>I8', found, #name + 2) or false
            names[name] = n
        end
        return n
    end

    -- A tenant by its name; nil: it has nothing here.
    function self.known(qid, name)
        local n = known_as(qid, name)
        return n and self.by_number(n) or nil
    end

    local function title(t)
        return t.name .. '\0' .. struct.pack('>I8', t.n)
    end

    function self.tenant(qid, name)
        local known = self.known(qid, name)
        if known then
            return known
        end
        local t = {
            n = call('INCR', base .. ':Mn'), qid = qid, name = name, count = 0, since = 0, status = ASLEEP, wake_at = -1, running = 0,
            lanes = {}, holders = {}, limit = false, paused = 0, bucket = false, idle = false,
        }
        t.digits = number(t.n)
        tenants[t.n], numbers[qid][name] = t, t.n
        call('ZADD', base .. ':V:' .. qid, 0, title(t))
        note(t)
        return t
    end

    -- -- who is awake, and who sleeps until when

    local function awake_as(t)
        return struct.pack('>I8', t.since) .. title(t)
    end

    local function is_bound(t)
        local most = policy_of(t.qid)[RULE.holders]
        if not most then
            return false
        end
        local held = 0
        for _ in pairs(t.holders) do
            held = held + 1
        end
        return held >= most
    end

    -- Of those who are awake and have been given something: to be put where they belong.
    function self.place_later(q, t)
        q.places[t.n] = t
        note(t)
    end

    function self.write_places(q)
        local places = {}
        for _, t in pairs(q.places) do
            places[#places + 1], places[#places + 2] = number(t.count), awake_as(t)
        end
        many('ZADD', base .. ':A:' .. q.qid, places)
        q.places = {}
    end

    local function unlist(t)
        if t.status == AWAKE then
            self.queue(t.qid).places[t.n] = nil
            call('ZREM', base .. ':A:' .. t.qid, awake_as(t))
        elseif t.status == BOUND then
            for holder in pairs(t.holders) do
                call('ZREM', base .. ':O:' .. t.qid .. ':' .. holder, awake_as(t))
            end
        elseif t.wake_at >= 0 then
            call('ZREM', base .. ':B:' .. t.qid, t.digits)
        end
    end

    local function list(t)
        note(t)
        if t.status == AWAKE or t.status == BOUND then
            t.status = is_bound(t) and BOUND or AWAKE
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
        end
    end

    -- Something may be had of it from then on.
    function self.expect(t, till)
        if t.status == ASLEEP and (t.wake_at < 0 or till < t.wake_at) then
            t.wake_at = till
            list(t)
        end
    end

    local function fall_asleep(t, till)
        unlist(t)
        t.status, t.wake_at = ASLEEP, till < FOREVER and till or -1
        list(t)
    end

    local function is_forgettable(t)
        return t.status ~= AWAKE and t.status ~= BOUND and next(t.lanes) == nil and t.running == 0
            and not (t.bucket and t.bucket[3] > instant)
    end

    -- It comes back as it would come anew.
    function self.let_go(t)
        unlist(t)
        t.status, t.wake_at, t.count, t.since, t.bucket = ASLEEP, -1, 0, 0, false
        t.gone = not t.limit and t.paused <= instant
        note(t)
        if t.gone then
            tenants[t.n], numbers[t.qid] = nil, numbers[t.qid] or {}
            numbers[t.qid][t.name] = false
        end
    end

    -- A tenant without jobs whose count is not above the round, and whose rate is not under way: nobody notices.
    function self.forget(t)
        note(t)
        if is_forgettable(t) and t.count <= self.queue(t.qid).round then
            self.let_go(t)
        end
    end

    -- What was set of it by hand has changed.
    function self.change(t)
        note(t)
        self.rouse(t, instant)
        if t.count == 0 and t.wake_at < 0 and not t.limit and is_forgettable(t) then
            self.let_go(t)
        end
    end

    -- The rules have changed.
    function self.rouse(t, at)
        local bucket = t.bucket
        if bucket and tenant_bucket(self.queue(t.qid), t) ~= bucket then
            note(t)
        end
        if t.status == FULL then
            t.status, t.wake_at = ASLEEP, -1
            note(t)
        end
        if t.status ~= ASLEEP then
            unlist(t)
            list(t)
        elseif t.count > 0 or t.running > 0 or t.bucket or next(t.lanes) then
            self.expect(t, at)
        end
    end

    -- -- jobs

    -- The lane for jobs of a task and priority; one is made if there is none.
    function self.lane(t, task, priority)
        local kind = task .. '\0' .. priority
        local k = t.lanes[kind]
        if not k then
            k = 1
            for _, taken in pairs(t.lanes) do
                k = math.max(k, taken + 1)
            end
            t.lanes[kind] = k
            note(t)
        end
        return t.digits .. '.' .. k
    end

    -- What is known by now of the first job of a lane: that it is due at an instant, or (not ``exact``) then or before.
    local function head_of(qid, lane)
        local of = heads[qid]
        if not of then
            of = {}
            heads[qid] = of
        end
        local head = of[lane]
        if not head then
            head = {at = FOREVER, exact = false}
            of[lane] = head
        end
        return head
    end

    -- Put jobs (instant, id, ...) into a lane; ``first`` is the lowest instant, ``later`` tells whether any is to come.
    function self.fill(t, lane, line, first, later)
        many('ZADD', base .. ':r:' .. lane, line)
        local head = head_of(t.qid, lane)
        head.at, head.told = math.min(head.at, first), nil
        if later then
            local coming = {}
            for i = 1, #line, 2 do
                if tonumber(line[i]) > instant then
                    coming[#coming + 1], coming[#coming + 2] = line[i], line[i + 1]
                end
            end
            many('ZADD', base .. ':F:' .. t.qid, coming)
        end
    end

    -- Whether there are jobs that were not due when they came.
    function self.has_coming(qid)
        return call('EXISTS', base .. ':F:' .. qid) == 1
    end

    -- Jobs have left their lanes.
    function self.left(qid, ids)
        if self.has_coming(qid) then
            many('ZREM', base .. ':F:' .. qid, ids)
        end
    end

    -- A job that may be claimed when it is due.
    function self.put(id, j)
        local told = described(call('HGET', base .. ':j', id))
        local t = self.tenant(j.qid, told[3])
        self.fill(t, self.lane(t, told[2], j.priority), {number(j.run_at), id}, j.run_at, j.run_at > instant)
        self.expect(t, j.run_at)
    end

    -- The lane for a row, by its body, and its tenant.
    function self.lane_for(qid, body, priority)
        local told = cmsgpack.unpack(string.sub(body, 5, 4 + struct.unpack('>I4', body)))
        local t = self.tenant(qid, told[3])
        return self.lane(t, told[2], priority), t
    end

    -- The first job of a lane is another, which is due at ``first``; nil: there is none.
    function self.begin_with(t, key, first)
        local head = head_of(t.qid, string.sub(key, LANE_AT))
        head.at, head.exact, head.told = tonumber(first) or FOREVER, true, first
    end

    -- Jobs have left a lane, which may be empty now.
    function self.tidy(t, kind, key)
        local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
        self.begin_with(t, key, first)
        if not first then
            t.lanes[kind] = nil
            note(t)
        end
    end

    function self.key(t, k)
        return base .. ':r:' .. t.digits .. '.' .. k
    end

    -- Where a job lies: its tenant, the kind and the key of the lane; nil: it is in no lane.
    local function lie(qid, job, priority)
        local told = described(job)
        local t, kind = self.known(qid, told[3]), told[2] .. '\0' .. priority
        local k = t and t.lanes[kind]
        if k then
            return t, kind, self.key(t, k)
        end
    end

    function self.score(id, job, qid, priority)
        local _, _, key = lie(qid, job, priority)
        return key and call('ZSCORE', key, id)
    end

    -- The job is not to be claimed; whether it lay in a lane.
    function self.drop(id, j)
        local t, kind, key = lie(j.qid, call('HGET', base .. ':j', id), j.priority)
        if not t or call('ZREM', key, id) == 0 then
            return false
        end
        self.tidy(t, kind, key)
        self.left(j.qid, {id})
        self.forget(t)
        return true
    end

    -- A job goes that was in no lane.
    function self.miss(id, j)
        local t = self.known(j.qid, described(call('HGET', base .. ':j', id))[3])
        if t then
            self.forget(t)
        end
    end

    -- Jobs of a tenant run.
    function self.start(t, holder, jobs)
        if t.holders[holder] then
            t.holders[holder] = t.holders[holder] + jobs
        else
            local listed = t.status == AWAKE or t.status == BOUND
            if listed then
                unlist(t)
            end
            t.holders[holder] = jobs
            if listed then
                list(t)
            end
        end
        t.running = t.running + jobs
        note(t)
    end

    -- Jobs of a tenant run no more.
    function self.stop(n, holder, jobs)
        local t = self.by_number(n)
        t.running = t.running - jobs
        local left = t.holders[holder] - jobs
        if left > 0 then
            t.holders[holder] = left
        else
            local bound = t.status == BOUND
            if bound then
                unlist(t)
            end
            t.holders[holder] = nil
            if bound then
                list(t)
            end
        end
        if t.status == FULL then
            t.status, t.wake_at = ASLEEP, -1
            self.expect(t, instant)
        end
        self.forget(t)
        local policy = policy_of(t.qid)
        if policy[RULE.running] or policy[RULE.holders] or policy[RULE.tenant_running] or (t.limit and t.limit[1]) then
            wake(t.qid, jobs)
        end
    end

    -- A job has come, running, from another queue, and ends its run at once.
    function self.pass(qid, id)
        local t = self.known(qid, described(call('HGET', base .. ':j', id))[3])
        if t then
            if t.status == FULL then
                t.status, t.wake_at = ASLEEP, -1
                self.expect(t, instant)
            end
            self.forget(t)
        end
    end

    -- -- what claims ask

    self.free, self.opens_at, self.spend, self.closed_until, self.is_open = free, opens_at, spend, closed_until, is_open
    self.task_bucket, self.tenant_bucket, self.fall_asleep, self.list, self.unlist = task_bucket, tenant_bucket, fall_asleep, list, unlist
    self.is_bound, self.awake_as, self.note = is_bound, awake_as, note

    function self.take_in_all(numbers_of)
        local unknown = {}
        for _, n in ipairs(numbers_of) do
            if not tenants[n] then
                unknown[#unknown + 1] = number(n)
            end
        end
        for i, packed in ipairs(ask('HMGET', base .. ':M', unknown)) do
            take_in(tonumber(unknown[i]), unknown[i], packed)
        end
    end

    function self.queue_bucket(q)
        return bucket_of(q, 'q', q.policy[RULE.rate])
    end

    function self.running(q)
        return tonumber(call('HGET', base .. ':n', q.qid .. ':' .. RUNNING) or 0) + (counted[q.qid * STATES + RUNNING] or 0)
    end

    -- Tenants whose time has come wake up.
    function self.wake(q, now)
        local flat = call('ZRANGEBYSCORE', base .. ':B:' .. q.qid, '-inf', number(now), 'WITHSCORES', 'LIMIT', 0, STEP)
        local awake, gone, due = {}, {}, {}
        for i = 1, #flat, 2 do
            due[#due + 1] = tonumber(flat[i])
        end
        self.take_in_all(due)
        for i = 1, #flat, 2 do
            local t = tenants[tonumber(flat[i])]
            t.status, t.since, t.wake_at, t.count = AWAKE, t.wake_at, -1, math.max(t.count, q.round)
            gone[#gone + 1] = flat[i]
            note(t)
            if is_bound(t) then
                list(t)
            else
                awake[#awake + 1], awake[#awake + 2] = number(t.count), awake_as(t)
            end
        end
        many('ZREM', base .. ':B:' .. q.qid, gone)
        many('ZADD', base .. ':A:' .. q.qid, awake)
    end

    -- -- writing down what has changed

    local function packed(t)
        local bucket = t.bucket and {t.bucket[1], t.bucket[2], t.bucket[3]}
        return cmsgpack.pack({
            t.qid, t.name, t.count, t.since, t.status, t.wake_at, t.running, t.lanes, t.holders, t.limit, t.paused, bucket,
        })
    end

    local function write_heads()
        for qid, of in pairs(heads) do
            local exact, lower, empty = {}, {}, {}
            for lane, head in pairs(of) do
                if not head.exact then
                    lower[#lower + 1], lower[#lower + 2] = number(head.at), lane
                elseif head.at < FOREVER then
                    exact[#exact + 1], exact[#exact + 2] = head.told or number(head.at), lane
                else
                    empty[#empty + 1] = lane
                end
            end
            many('ZREM', base .. ':H:' .. qid, empty)
            many('ZADD', base .. ':H:' .. qid, exact)
            for first = 1, #lower, MANY do
                call('ZADD', base .. ':H:' .. qid, 'LT', unpack(lower, first, math.min(first + MANY - 1, #lower)))
            end
        end
        heads = {}
    end

    function self.settle()
        write_heads()
        local saved, gone = {}, {}
        for _, t in pairs(changed) do
            local idle = not t.gone and idle_from(t)
            if idle and idle ~= t.idle then
                call('ZADD', base .. ':Mi', number(idle), t.digits)
            elseif t.idle and not idle then
                call('ZREM', base .. ':Mi', t.digits)
            end
            t.idle = idle
            if t.gone then
                gone[#gone + 1] = t.digits
                call('ZREM', base .. ':V:' .. t.qid, title(t))
            else
                saved[#saved + 1], saved[#saved + 2] = t.digits, packed(t)
            end
        end
        many('HSET', base .. ':M', saved)
        many('HDEL', base .. ':M', gone)
        for qid, q in pairs(queues) do
            if q.round ~= q.was then
                call('HSET', base .. ':o', qid, number(q.round))
                q.was = q.round
            end
            for field, bucket in pairs(q.buckets) do
                if bucket.changed then
                    call('HSET', base .. ':of:' .. qid, field, cmsgpack.pack({bucket[1], bucket[2], bucket[3]}))
                    bucket.changed = nil
                end
            end
        end
        changed = {}
    end

    return self
end

local made_turns

local function turns()
    made_turns = made_turns or open_turns()
    return made_turns
end

local function settle_turns()
    if made_turns then
        made_turns.settle()
    end
end

elsewhere = function(id, job, qid, priority, grouped)
    local listed = is_governed(qid) and turns().score(id, job, qid, priority)
    local group = grouped and described(job)[7]
    return listed or (group and call('ZSCORE', base .. ':i:' .. qid .. ':' .. group, id))
end
