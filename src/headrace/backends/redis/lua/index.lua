-- Puts jobs into the claim index and takes them out.

-- Puts a job where claims look for it, now or when it is due.
local function put_ready(id, j)
    if is_governed(j.qid) then
        turns().put(id, j)
    else
        ready.enter(id, j.qid, j.priority, j.run_at)
    end
end

local function leave_ready(id, j)
    if not (is_governed(j.qid) and turns().drop(id, j)) then
        ready.exit(id, j.qid, j.priority)
    end
end

local function leave_running(id, j)
    call('ZREM', base .. ':l', id)
    call('HDEL', base .. ':lp', id)
    if asked[j.cancel] then
        call('SREM', base .. ':x:' .. j.text, id)
    end
    if j.held_until > 0 then
        turns().stop(j.held_until, j.text, 1)
        j.held_until = 0
    end
end
