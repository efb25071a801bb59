-- Keeps the waiting jobs of governed queues in lanes: one for each tenant, priority and task.
-- A tenant lists its lanes by priority and first job, so in the order of (priority, run_at, id). Delayed jobs are listed apart, by
-- run_at.

-- Adds this to ``self``, the turns.
local function open_lanes(self)
    -- How many jobs of a tenant are promoted in one visit.
    local RISING = 250
    local NO_ID = string.rep('\0', 16)
    -- The lanes that this script uses, by key; and those whose first job may have changed.
    local lanes, changed = {}, {}

    function self.lanes_of(t)
        return base .. ':Gp:' .. t.digits
    end

    local function delayed_of(t)
        return base .. ':Gf:' .. t.digits
    end

    -- Returns the name under which a tenant lists a lane with this first job.
    local function lane_as(lane, run_at, id)
        return struct.pack('>I8c16I2', tonumber(run_at), string.sub(id .. NO_ID, 1, 16), lane.priority + 32768) .. lane.task
    end

    -- Returns that name after looking up the first job; false: the lane is empty.
    local function listed_as(lane)
        local first = call('ZRANGE', lane.key, 0, 0, 'WITHSCORES')
        return first[1] and lane_as(lane, first[2], first[1]) or false
    end

    -- Returns the name under which a job is listed until it is due.
    function self.delayed_as(priority, id, task)
        return struct.pack('>I2', priority + 32768) .. id .. task
    end

    -- ``listed``: the name under which the tenant lists the lane; nil: not known yet.
    local function lane_of(t, task, priority, listed)
        local key = base .. ':G:' .. t.digits .. ':' .. priority .. ':' .. task
        local lane = lanes[key]
        if not lane then
            lane = {key = key, qid = t.qid, tenant = t, task = task, priority = priority, listed = listed}
            lanes[key] = lane
        end
        if lane.listed == nil then
            lane.listed = listed_as(lane)
        end
        return lane
    end

    -- A job has left the lane.
    local function touch(lane)
        changed[lane.key], lane.first_id = lane, nil
        lane.tenant.view = nil
    end

    -- Jobs have come to the lane or left it; this is its first job now (nil: unknown).
    function self.first_is(lane, id, run_at)
        changed[lane.key], lane.first_id, lane.first_at = lane, id, run_at
    end

    -- Jobs are about to come to the lane. Its first job is known, unless others have left it.
    local function come_to(lane, entries)
        local at, id = lane.first_at, lane.first_id
        if not changed[lane.key] and lane.listed then
            at, id = struct.unpack('>I8c16', lane.listed)
        elseif changed[lane.key] and not id then
            return
        end
        for i = 1, #entries, 2 do
            local run_at = tonumber(entries[i])
            if not id or run_at < at or (run_at == at and before(entries[i + 1], id)) then
                at, id = run_at, entries[i + 1]
            end
        end
        self.first_is(lane, id, at)
    end

    -- Puts due jobs (instant, id, ...) into a lane.
    function self.fill(t, task, priority, entries)
        local lane = lane_of(t, task, priority)
        come_to(lane, entries)
        t.view = nil
        many('ZADD', lane.key, entries)
        t.due = t.due + #entries / 2
        self.touch(t)
    end

    -- Lists delayed jobs (instant, name, ...).
    function self.fill_delayed(t, entries)
        many('ZADD', delayed_of(t), entries)
        local ids = {}
        for i = 1, #entries, 2 do
            ids[i], ids[i + 1] = entries[i], string.sub(entries[i + 1], 3, 18)
        end
        many('ZADD', base .. ':F:' .. t.qid, ids)
        t.delayed = t.delayed + #entries / 2
        self.touch(t)
    end

    -- Lists a job that may be claimed when it is due.
    function self.put(id, j)
        local labels = labels_of(call('HGET', base .. ':j', id))
        local t = self.tenant(j.qid, labels[3])
        if j.run_at <= instant then
            self.fill(t, labels[2], j.priority, {number(j.run_at), id})
        else
            self.fill_delayed(t, {number(j.run_at), self.delayed_as(j.priority, id, labels[2])})
        end
        self.expect(t, j.run_at)
    end

    -- Promotes jobs of a tenant that have become due, first by run_at. Returns whether more of them are due.
    function self.promote(t)
        if t.delayed == 0 then
            return false
        end
        local flat = call('ZRANGEBYSCORE', delayed_of(t), '-inf', number(instant), 'WITHSCORES', 'LIMIT', 0, RISING)
        local gone, ids, by_lane = {}, {}, {}
        for i = 1, #flat, 2 do
            local priority, id, task = struct.unpack('>I2', flat[i]) - 32768, string.sub(flat[i], 3, 18), string.sub(flat[i], 19)
            local name = priority .. ':' .. task
            local entries = by_lane[name] or {priority = priority, task = task}
            by_lane[name] = entries
            entries[#entries + 1], entries[#entries + 2] = flat[i + 1], id
            gone[#gone + 1], ids[#ids + 1] = flat[i], id
        end
        many('ZREM', delayed_of(t), gone)
        many('ZREM', base .. ':F:' .. t.qid, ids)
        t.delayed = t.delayed - #ids
        for _, entries in pairs(by_lane) do
            self.fill(t, entries.task, entries.priority, entries)
        end
        return #ids == RISING
    end

    -- Puts back jobs of a lane that are not due: the clock was ahead when they were promoted.
    function self.demote(lane)
        local t = lane.tenant
        local flat = call('ZRANGEBYSCORE', lane.key, '(' .. number(instant), '+inf', 'WITHSCORES', 'LIMIT', 0, RISING)
        local gone, entries = {}, {}
        for i = 1, #flat, 2 do
            gone[#gone + 1] = flat[i]
            entries[#entries + 1], entries[#entries + 2] = flat[i + 1], self.delayed_as(lane.priority, flat[i], lane.task)
        end
        touch(lane)
        many('ZREM', lane.key, gone)
        t.due = t.due - #gone
        self.fill_delayed(t, entries)
    end

    -- Returns tenant and task of a row, by its body.
    function self.whose(qid, body)
        local labels = cmsgpack.unpack(string.sub(body, 5, 4 + struct.unpack('>I4', body)))
        return self.tenant(qid, labels[3]), labels[2]
    end

    function self.score(id, job, qid, priority)
        local labels = labels_of(job)
        local t = self.known(qid, labels[3])
        return t and (call('ZSCORE', base .. ':G:' .. t.digits .. ':' .. priority .. ':' .. labels[2], id)
            or call('ZSCORE', delayed_of(t), self.delayed_as(priority, id, labels[2])))
    end

    -- Takes a job out of its lane. Returns whether it was there.
    function self.drop(id, j)
        local labels = labels_of(call('HGET', base .. ':j', id))
        local t = self.known(j.qid, labels[3])
        if not t then
            return false
        end
        local lane = lane_of(t, labels[2], j.priority)
        if call('ZREM', lane.key, id) == 1 then
            touch(lane)
            t.due = t.due - 1
        elseif t.delayed > 0 and call('ZREM', delayed_of(t), self.delayed_as(j.priority, id, labels[2])) == 1 then
            call('ZREM', base .. ':F:' .. j.qid, id)
            t.delayed = t.delayed - 1
        else
            return false
        end
        self.forget(t)
        return true
    end

    -- A job is removed that was in no lane.
    function self.miss(id, j)
        local t = self.known(j.qid, labels_of(call('HGET', base .. ':j', id))[3])
        if t then
            self.forget(t)
        end
    end

    -- Returns lanes of a tenant from a rank on, and whether these are all from there.
    function self.lanes_from(t, from, most)
        self.write_lanes()
        local flat = call('ZRANGE', self.lanes_of(t), from, from + most - 1, 'WITHSCORES')
        local found = {}
        for i = 1, #flat, 2 do
            local run_at, id = struct.unpack('>I8c16', flat[i])
            local lane = lane_of(t, string.sub(flat[i], 27), tonumber(flat[i + 1]), flat[i])
            lane.bound_at, lane.bound_id = run_at, id
            found[#found + 1] = lane
        end
        return found, #found < most
    end

    function self.count_lanes(t)
        return call('ZCARD', self.lanes_of(t))
    end

    -- Returns the first delayed jobs: instant, task, instant, task, ...
    function self.first_delayed(t, most)
        local flat = t.delayed > 0 and call('ZRANGE', delayed_of(t), 0, most - 1, 'WITHSCORES') or {}
        local found = {}
        for i = 1, #flat, 2 do
            found[#found + 1], found[#found + 2] = tonumber(flat[i + 1]), string.sub(flat[i], 19)
        end
        return found
    end

    -- Writes the first jobs of lanes that have changed.
    function self.write_lanes()
        local firsts, gone, heads, empty, shut = {}, {}, {}, {}, {}
        for _, lane in pairs(changed) do
            local first = lane.first_id and lane_as(lane, lane.first_at, lane.first_id) or listed_as(lane)
            if first ~= lane.listed then
                local of = self.lanes_of(lane.tenant)
                local name = lane.tenant.digits .. ':' .. lane.priority .. ':' .. lane.task
                firsts[of], gone[of] = firsts[of] or {}, gone[of] or {}
                heads[lane.qid], empty[lane.qid] = heads[lane.qid] or {}, empty[lane.qid] or {}
                if lane.listed then
                    table.insert(gone[of], lane.listed)
                    shut[lane.tenant] = lane.tenant.shut ~= SHUT.none and gone[of] or nil
                end
                if first then
                    table.insert(firsts[of], lane.priority)
                    table.insert(firsts[of], first)
                    table.insert(heads[lane.qid], number((struct.unpack('>I8', first))))
                    table.insert(heads[lane.qid], name)
                else
                    table.insert(empty[lane.qid], name)
                end
                lane.listed = first
            end
            lane.first_id = nil
        end
        changed = {}
        for of, names in pairs(gone) do
            many('ZREM', of, names)
            many('ZADD', of, firsts[of])
        end
        for t, names in pairs(shut) do
            self.unshut(t, names)
        end
        for qid, names in pairs(empty) do
            many('ZREM', base .. ':H:' .. qid, names)
            many('ZADD', base .. ':H:' .. qid, heads[qid])
        end
    end
end
