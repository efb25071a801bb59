-- The lines that a job can stand in.

-- Where claims look, or will when it is due.
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
    if asked[j.cancel] then
        call('SREM', base .. ':x:' .. j.text, id)
    end
    if j.held_until > 0 then
        turns().stop(j.held_until, j.text, 1)
        j.held_until = 0
    end
end
