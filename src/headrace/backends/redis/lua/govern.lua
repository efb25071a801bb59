-- Makes a queue governed, and does what that takes bit by bit: running jobs are counted, tenants wake up when the rules change, and jobs
-- that waited before are put into lanes, in their order.

local function open_rule()
    -- How much of it one script does, in jobs; a tenant counts for several.
    local STEPS, PER_TENANT = 1000, 4
    -- Bytes of jobs that one script reads for it, roughly.
    local MOST_MOVED = 8 * 1024 * 1024
    local PIECE = 100
    -- Whether this script has done its part.
    local has_gone_on = false

    -- Counts some of the running jobs. Nothing is claimed until all are counted.
    local function count_some(qid, cursor)
        local found = call('ZSCAN', base .. ':l', cursor, 'COUNT', STEPS / 2)
        local ids = {}
        for i = 1, #found[2], 2 do
            ids[#ids + 1] = found[2][i]
        end
        for i, packed in ipairs(ask('HMGET', base .. ':s', ids)) do
            local j = read_state(packed)
            if j.qid == qid and j.state == RUNNING and j.held_until == 0 then
                local t = turns().tenant(qid, labels_of(call('HGET', base .. ':j', ids[i]))[3])
                turns().start(t, j.text, 1)
                j.held_until = t.n
                save(ids[i], j)
            end
        end
        if found[1] == '0' then
            call('HDEL', base .. ':oc', qid)
        else
            call('HSET', base .. ':oc', qid, found[1])
        end
        return #ids
    end

    -- Wakes some of the tenants that are still asleep since the rules changed.
    local function reconsider_some(qid, after, at)
        local most = STEPS / PER_TENANT
        local titles = call('ZRANGEBYLEX', base .. ':V:' .. qid, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, most)
        local ns = {}
        for i, title in ipairs(titles) do
            ns[i] = struct.unpack('>I8', title, #title - 7)
        end
        turns().read_all(ns)
        for _, n in ipairs(ns) do
            turns().reconsider(turns().by_number(n), at)
        end
        if #titles == most then
            call('HSET', base .. ':ow', qid, cmsgpack.pack({titles[most], at}))
        else
            call('HDEL', base .. ':ow', qid)
        end
        return #titles * PER_TENANT
    end

    -- Returns the first jobs that waited before: of a level, or delayed ones (priority nil).
    local function first_of(qid)
        local priority = ready.first_level(qid)
        local key = priority and ready.level_key(qid, priority) or ready.delayed_key(qid)
        local flat, ids, names = call('ZRANGE', key, 0, PIECE - 1, 'WITHSCORES'), {}, {}
        for i = 1, #flat, 2 do
            names[#names + 1] = flat[i]
            ids[#ids + 1] = priority and flat[i] or string.sub(flat[i], 3)
        end
        return priority, key, ids, names, flat
    end

    -- Puts some of them into lanes.
    local function bring_in(qid, most)
        local moved, bytes = 0, 0
        while moved < most and bytes < MOST_MOVED do
            local priority, key, ids, names, flat = first_of(qid)
            if #ids == 0 then
                break
            end
            local by_tenant, expected = {}, {}
            for i, job in ipairs(ask('HMGET', base .. ':j', ids)) do
                local labels, run_at = labels_of(job), tonumber(flat[2 * i])
                local t = turns().tenant(qid, labels[3])
                local name = priority and labels[2] or 0
                by_tenant[t] = by_tenant[t] or {}
                by_tenant[t][name] = by_tenant[t][name] or {}
                push(by_tenant[t][name], flat[2 * i], priority and ids[i] or names[i] .. labels[2])
                expected[t] = math.min(expected[t] or run_at, run_at)
                bytes = bytes + #(job or '')
            end
            for t, of in pairs(by_tenant) do
                for task, entries in pairs(of) do
                    if priority then
                        turns().fill(t, task, priority, entries)
                    else
                        turns().fill_delayed(t, entries)
                    end
                end
                turns().expect(t, expected[t])
            end
            many('ZREM', key, names)
            if priority and call('EXISTS', key) == 0 then
                ready.drop_levels(qid, {priority})
            end
            moved = moved + #ids
        end
        ready.settle()
        return moved
    end

    local function is_counting(qid)
        return call('HEXISTS', base .. ':oc', qid) == 1
    end

    local function is_bringing(qid)
        return ready.first_level(qid) or call('EXISTS', ready.delayed_key(qid)) == 1
    end

    local function is_going_on(qid)
        return is_counting(qid) or is_bringing(qid) or call('HEXISTS', base .. ':ow', qid) == 1
            or call('HEXISTS', base .. ':ir', qid) == 1
    end

    -- Does the next steps. Returns whether there are more.
    local function go_on(qid)
        local left = STEPS
        has_gone_on = true
        local cursor = call('EXISTS', base .. ':oc') == 1 and call('HGET', base .. ':oc', qid)
        if cursor then
            left = left - count_some(qid, cursor)
        end
        local waking = left > 0 and call('EXISTS', base .. ':ow') == 1 and call('HGET', base .. ':ow', qid)
        if waking then
            waking = cmsgpack.unpack(waking)
            left = left - reconsider_some(qid, waking[1], waking[2])
        end
        if left > 0 and is_bringing(qid) then
            left = left - bring_in(qid, left)
        end
        if left > 0 and call('EXISTS', base .. ':ir') == 1 then
            recall(qid, math.ceil(left / PER_TENANT))
        end
        local more = is_going_on(qid)
        if more then
            turns().expect_in(qid, 0)
        end
        return more
    end

    -- From now on the tenants of the queue take turns.
    local function govern(qid)
        if not is_governed(qid) then
            call('HSET', base .. ':o', qid, 0)
            governed = {}
            call('HSET', base .. ':oc', qid, 0)
            go_on(qid)
        end
    end

    -- The rules have changed: all tenants are looked at again.
    local function reconsider_all(qid)
        call('HSET', base .. ':ow', qid, cmsgpack.pack({'', instant}))
        turns().expect_in(qid, 0)
        if not has_gone_on then
            go_on(qid)
        end
    end

    return {go_on = go_on, is_going_on = is_going_on, is_counting = is_counting, govern = govern, reconsider_all = reconsider_all}
end

local rule = once(open_rule)
