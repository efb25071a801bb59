-- Keeps the tenants of governed queues.
-- Made when it is first needed, as most stores have no such queue.

-- TENANT (msgpack): queue number, name, count, since, status, wake_at (-1: never), running, due and delayed jobs ({due,
-- delayed}), running jobs by holder, its own limit ({running, rate}; false: none), until when it is paused (0: it is not), the bucket of its
-- rate (BUCKET; false: none), and whether it has shut lanes (none: it has not).
-- BUCKET (msgpack): every, burst, full_at. WAKING (msgpack): the last tenant that was woken, and the instant of the change.

local function open_turns()
    local queues, tenants, numbers, changed = {}, {}, {}, {}
    local self = {}

    open_rates(self, queues)
    open_lanes(self)
    open_shut(self)
    open_awake(self)

    -- -- tenants

    -- The tenant has changed and is to be written.
    function self.touch(t)
        changed[t.n] = t
    end

    -- Returns the instant from which a sweep may remove the tenant, or all but what was set by hand; false: not while nothing changes.
    local function idle_from(t)
        if t.due + t.delayed > 0 or t.running > 0 or t.status == AWAKE or t.status == BOUND then
            return false
        elseif t.count > 0 or t.bucket or t.wake_at >= 0 then
            return t.bucket and t.bucket[3] or 0
        end
        return not t.limit and t.paused < FOREVER and t.paused
    end

    local function read(n, digits, packed)
        local f = cmsgpack.unpack(packed)
        local t = {
            n = n, qid = f[1], name = f[2], count = f[3], since = f[4], status = f[5], wake_at = f[6], running = f[7], due = f[8][1],
            delayed = f[8][2], holders = f[9], limit = f[10], paused = f[11], bucket = f[12], shut = f[13] or SHUT.none, digits = digits,
        }
        t.idle = idle_from(t)
        tenants[n] = t
        return t
    end

    function self.by_number(n)
        local known = tenants[n]
        if not known then
            local digits = number(n)
            known = read(n, digits, call('HGET', base .. ':M', digits))
        end
        return known
    end

    local function known_as(qid, name)
        local names = numbers[qid] or {}
        numbers[qid] = names
        local n = names[name]
        if n == nil then
            local found = call('ZRANGEBYLEX', base .. ':V:' .. qid, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', 0, 1)[1]
            n = found and struct.unpack('>I8', found, #name + 2) or false
            names[name] = n
        end
        return n
    end

    -- Returns a tenant by its name; nil: it has nothing here.
    function self.known(qid, name)
        local n = known_as(qid, name)
        return n and self.by_number(n) or nil
    end

    function self.title(t)
        return t.name .. '\0' .. struct.pack('>I8', t.n)
    end

    function self.tenant(qid, name)
        local known = self.known(qid, name)
        if known then
            return known
        end
        local t = {
            n = call('INCR', base .. ':Mn'), qid = qid, name = name, count = 0, since = 0, status = ASLEEP, wake_at = -1, running = 0,
            due = 0, delayed = 0, holders = {}, limit = false, paused = 0, bucket = false, shut = SHUT.none, idle = false,
        }
        t.digits = number(t.n)
        tenants[t.n], numbers[qid][name] = t, t.n
        call('ZADD', base .. ':V:' .. qid, 0, self.title(t))
        self.touch(t)
        return t
    end

    -- Reads several tenants at once.
    function self.read_all(numbers_of)
        local unknown = {}
        for _, n in ipairs(numbers_of) do
            if not tenants[n] then
                unknown[#unknown + 1] = number(n)
            end
        end
        for i, packed in ipairs(ask('HMGET', base .. ':M', unknown)) do
            read(tonumber(unknown[i]), unknown[i], packed)
        end
    end

    local function is_forgettable(t)
        return t.status ~= AWAKE and t.status ~= BOUND and t.due + t.delayed == 0 and t.running == 0
            and not (t.bucket and t.bucket[3] > instant)
    end

    -- Removes the tenant: when it comes back, it is like a new one.
    function self.remove(t)
        self.unlist(t)
        t.status, t.wake_at, t.count, t.since, t.bucket = ASLEEP, -1, 0, 0, false
        t.gone = not t.limit and t.paused <= instant
        self.touch(t)
        if t.gone then
            tenants[t.n], numbers[t.qid] = nil, numbers[t.qid] or {}
            numbers[t.qid][t.name] = false
        end
    end

    -- Removes a tenant if nothing depends on it: it has no jobs, its count is not above the round, and its rate is not in use.
    function self.forget(t)
        self.touch(t)
        if is_forgettable(t) and t.count <= self.queue(t.qid).round then
            self.remove(t)
        end
    end

    -- Its limit or pause was changed by hand.
    function self.change(t)
        self.touch(t)
        self.reconsider(t, instant)
        if t.count == 0 and t.wake_at < 0 and not t.limit and is_forgettable(t) then
            self.remove(t)
        end
    end

    -- -- writing

    local function packed(t)
        local bucket = t.bucket and {t.bucket[1], t.bucket[2], t.bucket[3]}
        return cmsgpack.pack({
            t.qid, t.name, t.count, t.since, t.status, t.wake_at, t.running, {t.due, t.delayed}, t.holders, t.limit, t.paused, bucket,
            t.shut ~= SHUT.none and t.shut or nil,
        })
    end

    function self.settle()
        self.write_lanes()
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
                call('ZREM', base .. ':V:' .. t.qid, self.title(t))
            else
                saved[#saved + 1], saved[#saved + 2] = t.digits, packed(t)
            end
        end
        many('HSET', base .. ':M', saved)
        many('HDEL', base .. ':M', gone)
        self.write_soon()
        self.settle_queues()
        changed = {}
    end

    return self
end

local made_turns

local function turns()
    made_turns = made_turns or open_turns()
    return made_turns
end

-- Writes from when on queues may have something, before a claim reads it.
local function settle_soon()
    if made_turns then
        made_turns.write_soon()
    end
end

local function settle_turns()
    if made_turns then
        made_turns.settle()
    end
end

elsewhere = function(id, job, qid, priority, grouped)
    local listed = is_governed(qid) and turns().score(id, job, qid, priority)
    local group = grouped and labels_of(job)[7]
    return listed or (group and call('ZSCORE', base .. ':i:' .. qid .. ':' .. group, id))
end
