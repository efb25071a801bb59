-- Takes a job off its list when its state changes, and lists it again.

-- Takes a job off its list and out of the counts. ``stays``: it will be AVAILABLE in the same queue.
local function leave(id, j, stays)
    if j.unreadable then  -- its list is unknown: the call that meets it there removes it
        local _, _, qid = head(call('HGET', base .. ':j', id))
        if call('ZREM', base .. ':d:' .. j.state, id) == 1 and qid > 0 then
            count(qid, j.state, -1)
        end
        dead.remove(dead.tenant_of(id), id, 0)
        call('ZREM', base .. ':l', id)
        return
    end
    count(j.qid, j.state, -1)
    if j.state == AVAILABLE then
        if j.expires_at > 0 then
            call('ZREM', base .. ':y', id)
        end
        if j.grouped then
            groups().leave(id, j, stays)
        else
            leave_ready(id, j)
        end
    elseif j.state == RUNNING then
        leave_running(id, j)
        if j.grouped then
            groups().leave(id, j, stays)
        end
    elseif j.state >= COMPLETED then
        call('ZREM', base .. ':d:' .. j.state, id)
        weigh(j.state, -j.size)
        if j.state == FAILED then
            dead.remove(dead.tenant_of(id), id, j.size)
        end
    end
end

-- Lists a job that has become AVAILABLE; its state was saved.
local function make_ready(id, j)
    count(j.qid, AVAILABLE, 1)
    if j.expires_at > 0 then
        call('ZADD', base .. ':y', number(math.max(j.expires_at, j.run_at)), id)
    end
    local group = j.grouped and groups().of(id)
    if group then
        if not groups().wait(id, j, group) then
            put_ready(id, j)
        end
        groups().call_later(j.qid, group)
    else
        put_ready(id, j)
    end
    call_groups()
end

-- Saves and lists a job that is AVAILABLE or PAUSED. If it is AVAILABLE, this many workers are woken.
local function come_back(id, j, woken)
    save(id, j)
    if j.state == AVAILABLE then
        make_ready(id, j)
        if woken > 0 then
            wake(j.qid, woken)
        end
    else
        count(j.qid, PAUSED, 1)
    end
end

-- A waiting job is due, and expires, at other instants.
local function reschedule(id, j, run_at, expires_at, now)
    leave(id, j, j.state == AVAILABLE)
    j.run_at, j.expires_at = run_at, expires_at
    if j.grouped and j.state == AVAILABLE then
        groups().call_from(id, j)
    end
    come_back(id, j, run_at > now and SIGNALS or 1)
end
