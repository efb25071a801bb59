-- Ends jobs and removes them.

-- Jobs are about to complete at ``instant``. If the clock has stepped back, the next sweep must not skip them.
local function mind_sweep(instant)
    local walked = string.match(call('GET', base .. ':dm') or '', '^%d+')
    if walked and instant <= tonumber(walked) then
        call('DEL', base .. ':dm')
    end
end

-- Lists a job that has ended.
local function list_ended(id, j)
    local at = number(j.instant)
    call('ZADD', base .. ':d:' .. j.state, at, id)
    if j.state == FAILED then
        dead.add(id, at, j.size)
    end
    count(j.qid, j.state, 1)
    weigh(j.state, j.size)
    end_key(id, j, j.held_until)
end

-- Ends a job that is on no list.
local function finish(id, j, state, now, reason, held_until)
    j.state, j.cancel, j.instant, j.held_until, j.text = state, 0, now, held_until or 0, reason
    save(id, j)
    list_ended(id, j)
    tell_waiters(id)
    call_groups()
end

-- Cancels a live job: at once, or, if it is running, by telling its holder.
local function cancel(id, j, now, reason)
    if j.state == RUNNING then
        if not asked[j.cancel] then
            j.cancel = reason == asked[3] and 3 or 1
        end
        save(id, j)
        call('SADD', base .. ':x:' .. j.text, id)
        tell('holder', j.text, '')
    else
        leave(id, j)
        finish(id, j, CANCELLED, now, reason)
    end
end

-- Removes all of these jobs, which are on no list and have no keys.
local function forget_all(ids)
    leave_tenants(ids)
    references.forget(ids)
    for _, name in ipairs({':j', ':s', ':e', ':c', ':w', ':h'}) do
        if call('EXISTS', base .. name) == 1 then
            many('HDEL', base .. name, ids)
        end
    end
    many('ZREM', base .. ':hx', ids)
    many('ZREM', base .. ':a', ids)
end

-- Removes all of a job that is on no list. Its key stays if it is held beyond ``held_after``.
local function forget(id, j, held_after)
    drop_key(id, j, held_after)
    forget_all({id})
    call_groups()
end

-- Returns id, job without cells, and state of each of these jobs, in one list.
local function taken_back(ids)
    local answer = {}
    for _, id in ipairs(ids) do
        local n = #answer
        answer[n + 1], answer[n + 2] = id, without_cells(call('HGET', base .. ':j', id))
        answer[n + 3] = call('HGET', base .. ':s', id)
    end
    return answer
end
