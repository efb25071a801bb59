-- The lines that a job can stand in.

local function put_ready(id, j)
    local key = base .. ':r:' .. j.qid .. ':' .. j.priority
    if call('ZADD', key, number(j.run_at), id) == 1 and call('ZCARD', key) == 1 then
        call('ZADD', base .. ':p:' .. j.qid, j.priority, j.priority)
    end
    if j.expires_at > 0 then
        call('ZADD', base .. ':y', number(math.max(j.expires_at, j.run_at)), id)
    end
end

local function leave_ready(id, j)
    local key = base .. ':r:' .. j.qid .. ':' .. j.priority
    call('ZREM', key, id)
    if call('EXISTS', key) == 0 then
        call('ZREM', base .. ':p:' .. j.qid, j.priority)
    end
    if j.expires_at > 0 then
        call('ZREM', base .. ':y', id)
    end
end

local function leave_running(id, j)
    call('ZREM', base .. ':l', id)
    if j.cancel == 1 then
        call('SREM', base .. ':x:' .. j.text, id)
    end
end

-- Out of the place that it is in, which is counted.
local function leave(id, j)
    count(j.qid, j.state, -1)
    if j.state == AVAILABLE then
        leave_ready(id, j)
    elseif j.state == RUNNING then
        leave_running(id, j)
    elseif j.state >= COMPLETED then
        call('ZREM', base .. ':d:' .. j.state, id)
        weigh(j.state, -j.size)
    end
end
