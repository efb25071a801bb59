-- Keeps the order of groups: only jobs that are called are in the claim index, the others wait in a list of their group.

-- Groups in which a job may have to be called, and how many were called.
local to_call, calls_made = {}, 0

local function open_groups()
    -- In how many groups a job is looked for whose group cannot be read any more; and how many jobs of a group one step moves.
    local MOST_GROUPS, MOVES = 10000, 250
    -- While a reap cancels expired jobs: the groups in which such a job would be called next, and is not.
    local uncalled

    local function group_of(id)
        return labels_of(call('HGET', base .. ':j', id))[7]
    end

    local function waiting_in(qid, group)
        return base .. ':i:' .. qid .. ':' .. group
    end

    local function called_in(qid, group)
        return base .. ':ic:' .. qid .. ':' .. group
    end

    local function stays_called(qid)
        return policy_of(qid)[RULE.group_running] == 1
    end

    local function call_later(qid, group)
        to_call[#to_call + 1] = {qid, group}
    end

    -- Lets an AVAILABLE job wait, unless it is called. Returns whether it waits.
    local function wait(id, j, group)
        if call('ZSCORE', called_in(j.qid, group), id) then
            return false
        end
        call('ZADD', waiting_in(j.qid, group), number(j.run_at), id)
        call('ZADD', base .. ':i', 0, j.qid .. ':' .. group)
        return true
    end

    -- A waiting job has another run_at, whether it is called or not.
    local function call_from(id, j)
        local called = called_in(j.qid, group_of(id))
        local from = call('ZSCORE', called, id)
        if from and tonumber(from) >= 0 then
            call('ZADD', called, number(j.run_at), id)
        end
    end

    -- Returns the last of the called jobs that were leased and wait now, and its run_at.
    local function last_leased(called)
        local ids = call('ZRANGE', called, 0, -1)
        local last, last_at
        for i, packed in ipairs(ask('HMGET', base .. ':s', ids)) do
            local j = read_state(packed)
            if j.state == AVAILABLE
                and (not last or j.run_at > last_at or (j.run_at == last_at and before(last, ids[i]))) then
                last, last_at = ids[i], j.run_at
            end
        end
        return last, last_at
    end

    -- Returns the last of the called jobs that may be sent back to wait, and its run_at. Jobs that stay called are noted as such when they
    -- are met. If one job of the group may run at a time, a job that was leased stays called unless ``several`` are.
    local function last_called(called, keep, several)
        while true do
            local last = call('ZRANGE', called, -1, -1, 'WITHSCORES')
            if not last[1] or tonumber(last[2]) < 0 then
                if keep and several then
                    return last_leased(called)
                end
                return nil
            end
            local packed = call('HGET', base .. ':s', last[1])
            local j = packed and read_state(packed)
            if not j or (j.state == AVAILABLE and not (keep and j.epoch > 0)) then
                return last[1], tonumber(last[2])
            end
            call('ZADD', called, -1, last[1])
        end
    end

    -- Calls the first jobs of a group, as many as may run, and sends others back to wait. Returns how many, and whether there may be more.
    local function call_group(qid, group)
        local moved = 0
        local waiting, called = waiting_in(qid, group), called_in(qid, group)
        local most = policy_of(qid)[RULE.group_running]
        local taken = call('ZCARD', called)
        local first = call('ZRANGE', waiting, 0, 0, 'WITHSCORES')
        while moved < MOVES and (taken > most or (taken > 0 and first[1])) do
            local id, run_at = last_called(called, most == 1, taken > most)
            if not id then
                break
            end
            local at = first[1] and tonumber(first[2])
            if taken <= most and not (at < run_at or (at == run_at and before(first[1], id))) then
                break
            end
            local j = find(id)
            if j then
                leave_ready(id, j)
            end
            call('ZREM', called, id)
            call('ZADD', waiting, number(run_at), id)
            taken, moved = taken - 1, moved + 1
            first = call('ZRANGE', waiting, 0, 0, 'WITHSCORES')
        end
        while moved < MOVES and taken < most and first[1] do
            local id = first[1]
            local j = find(id)
            if uncalled and j and j.expires_at > 0 and math.max(j.expires_at, j.run_at) <= instant then
                uncalled[waiting] = {qid, group}
                return moved, false
            end
            call('ZREM', waiting, id)
            moved = moved + 1
            if j and not j.unreadable then
                call('ZADD', called, number(j.run_at), id)
                put_ready(id, j)
                wake(qid, 1)
                taken, calls_made = taken + 1, calls_made + 1
            else
                count(qid, AVAILABLE, -1)
                set_aside(id, qid)
            end
            first = taken < most and call('ZRANGE', waiting, 0, 0, 'WITHSCORES') or {}
        end
        if taken == 0 then
            call('ZREM', base .. ':i', qid .. ':' .. group)
        end
        return moved, moved >= MOVES
    end

    local function call_all()
        local given = to_call
        to_call = {}
        for i = 1, #given do
            call_group(given[i][1], given[i][2])
        end
    end

    -- Removes a job from its group when the name of the group cannot be read any more.
    local function forget_member(id, qid)
        for _, name in ipairs(call('ZRANGEBYLEX', base .. ':i', '[' .. qid .. ':', '(' .. qid .. ';', 'LIMIT', 0, MOST_GROUPS)) do
            local group = string.sub(name, #tostring(qid) + 2)
            if call('ZREM', called_in(qid, group), id) + call('ZREM', waiting_in(qid, group), id) > 0 then
                call_later(qid, group)
            end
        end
    end

    -- A job leaves its group; or only the claim index, if it ``stays`` AVAILABLE in its queue: if one job may run at a time, it stays
    -- called.
    local function leave_group(id, j, stays)
        local group = group_of(id)
        if not group then
            forget_member(id, j.qid)
            return
        end
        local called = call('ZSCORE', called_in(j.qid, group), id)
        if called and j.state == AVAILABLE then
            leave_ready(id, j)
        elseif j.state == AVAILABLE and is_governed(j.qid) then
            turns().miss(id, j)
        end
        if not stays or (j.state == RUNNING and not stays_called(j.qid)) then
            call('ZREM', called and called_in(j.qid, group) or waiting_in(j.qid, group), id)
            call_later(j.qid, group)
        end
    end

    -- From now on no expired job is called.
    local function call_no_expired()
        uncalled = {}
    end

    local function call_expired_again()
        for _, group in pairs(uncalled) do
            to_call[#to_call + 1] = group
        end
        uncalled = nil
        call_all()
    end

    return {
        call_no_expired = call_no_expired, call_expired_again = call_expired_again,
        of = group_of, waiting_in = waiting_in, called_in = called_in, stays_called = stays_called, call_later = call_later,
        wait = wait, call_from = call_from, call = call_group, call_all = call_all, leave = leave_group,
        forget_member = forget_member,
    }
end

local groups = once(open_groups)

-- Calls jobs in all groups that have changed.
local function call_groups()
    if #to_call > 0 then
        groups().call_all()
    end
end
