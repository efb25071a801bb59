-- The lines that a job can stand in.

-- Where claims look.
local function put_ready(id, j)
    if is_governed(j.qid) then
        turns().put(id, j)
        return
    end
    local key = base .. ':r:' .. j.qid .. ':' .. j.priority
    if call('ZADD', key, number(j.run_at), id) == 1 and call('ZCARD', key) == 1 then
        call('ZADD', base .. ':p:' .. j.qid, j.priority, j.priority)
    end
end

local function leave_ready(id, j)
    if is_governed(j.qid) and turns().drop(id, j) then
        return
    end
    local key = base .. ':r:' .. j.qid .. ':' .. j.priority
    call('ZREM', key, id)
    if call('EXISTS', key) == 0 then
        call('ZREM', base .. ':p:' .. j.qid, j.priority)
    end
end

local function leave_running(id, j)
    call('ZREM', base .. ':l', id)
    if j.cancel == 1 then
        call('SREM', base .. ':x:' .. j.text, id)
    end
    if j.held_until > 0 then
        turns().stop(j.held_until, j.text, 1)
        j.held_until = 0
    end
end
