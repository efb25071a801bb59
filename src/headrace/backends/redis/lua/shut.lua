-- Keeps lanes of closed tasks apart if very many of a tenant come first, so that no visit walks over them again. Such a lane is *shut*: the
-- tenant does not list it among its lanes, but by its task. The first ones of a task come back when it is open again, as many as a visit may
-- take jobs; so does a lane whose first job changes.

-- TENANT has ``recheck`` after the rules have changed: any of its tasks may be open.
local SHUT = {none = 0, some = 1, recheck = 2}

-- Adds this to ``self``, the turns.
local function open_shut(self)
    -- How many tasks a visit looks at, and how many lanes it brings back, roughly.
    local TASKS, LANES = 64, 1000

    local function lanes_of(t)
        return base .. ':Gc:' .. t.digits
    end

    local function tasks_of(t)
        return base .. ':Gt:' .. t.digits
    end

    local function prefix_of(task)
        return struct.pack('>I4', #task) .. task
    end

    -- Returns the name under which a lane is listed while it is shut, by the one that it has otherwise.
    local function shut_as(listed)
        return prefix_of(string.sub(listed, 27)) .. string.sub(listed, 25, 26) .. string.sub(listed, 1, 24)
    end

    -- Shuts lanes of closed tasks.
    function self.shut(q, t, lanes, now)
        local listed, entries, closed, tasks = {}, {}, {}, {}
        for i, lane in ipairs(lanes) do
            listed[i] = lane.listed
            entries[2 * i - 1], entries[2 * i] = 0, shut_as(lane.listed)
            closed[lane.task] = self.closed_until(q, lane.task, now)
        end
        for task, till in pairs(closed) do
            tasks[#tasks + 1], tasks[#tasks + 2] = number(till), task
        end
        many('ZREM', self.lanes_of(t), listed)
        many('ZADD', lanes_of(t), entries)
        many('ZADD', tasks_of(t), tasks)
        t.shut = math.max(t.shut, SHUT.some)
        self.touch(t)
    end

    -- The first jobs of these lanes have changed, so they are not shut any more.
    function self.unshut(t, listed)
        local names = {}
        for i, name in ipairs(listed) do
            names[i] = shut_as(name)
        end
        many('ZREM', lanes_of(t), names)
        if call('EXISTS', lanes_of(t)) == 0 then
            call('DEL', tasks_of(t))
            t.shut = SHUT.none
            self.touch(t)
        end
    end

    -- Lists the first lanes of a task again, up to ``most``. Returns how many.
    local function bring_back(t, task, most)
        local prefix = prefix_of(task)
        local found = call('ZRANGEBYLEX', lanes_of(t), '[' .. prefix, '(' .. prefix .. '\255\255\255', 'LIMIT', 0, most)
        local entries = {}
        for _, name in ipairs(found) do
            local level, first = string.sub(name, #prefix + 1, #prefix + 2), string.sub(name, #prefix + 3)
            entries[#entries + 1], entries[#entries + 2] = struct.unpack('>I2', level) - 32768, first .. level .. task
        end
        many('ZADD', self.lanes_of(t), entries)
        many('ZREM', lanes_of(t), found)
        return #found
    end

    -- Brings back lanes of tasks that are open again, for a visit that takes up to ``most`` jobs. Returns how many tasks and lanes.
    function self.reopen(q, t, most, now)
        if t.shut == SHUT.recheck then
            local entries = {}
            for i, task in ipairs(call('ZRANGE', tasks_of(t), 0, -1)) do  -- no more than the queue has rules for
                entries[2 * i - 1], entries[2 * i] = 0, task
            end
            many('ZADD', tasks_of(t), entries)
            t.shut = SHUT.some
        end
        local steps, listed, drained = 0, {}, {}
        for _, task in ipairs(call('ZRANGEBYSCORE', tasks_of(t), '-inf', number(now), 'LIMIT', 0, TASKS)) do
            local till, wanted = self.closed_until(q, task, now), math.max(most, q.policy[RULE.ageing] and TASKS or 0)
            local lanes = till == 0 and steps < LANES and bring_back(t, task, wanted)
            if lanes and lanes < wanted then
                drained[#drained + 1] = task
            else
                listed[#listed + 1], listed[#listed + 2] = number(math.max(till, now)), task
            end
            steps = steps + 1 + (lanes or 0)
        end
        many('ZADD', tasks_of(t), listed)
        many('ZREM', tasks_of(t), drained)
        t.view = nil
        if call('EXISTS', tasks_of(t)) == 0 then
            t.shut = SHUT.none
        end
        self.touch(t)
        return steps
    end

    -- Returns tasks that have shut lanes: the instant until which each is closed at least, task, ... and that of the others.
    function self.shut_tasks(t)
        if t.shut == SHUT.none then
            return {}, FOREVER
        end
        local flat, found = call('ZRANGE', tasks_of(t), 0, TASKS, 'WITHSCORES'), {}
        for i = 1, math.min(#flat, 2 * TASKS), 2 do
            found[i], found[i + 1] = tonumber(flat[i + 1]), flat[i]
        end
        return found, tonumber(flat[2 * TASKS + 2] or FOREVER)
    end
end
