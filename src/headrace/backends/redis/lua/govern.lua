-- How a queue becomes governed, and what is done bit by bit: jobs that waited before are brought into lanes, in their order, and tenants
-- are woken when the rules change.

local function open_rule()
    -- Bytes of jobs that are read for one step, about.
    local MOST_MOVED = 8 * 1024 * 1024
    local PIECE = 100

    -- Bring some jobs into lanes.
    local function bring_in(qid)
        local moved, bytes = 0, 0
        while moved < STEP and bytes < MOST_MOVED do
            local priority = call('ZRANGE', base .. ':p:' .. qid, 0, 0)[1]
            if not priority then
                return
            end
            local key = base .. ':r:' .. qid .. ':' .. priority
            local flat = call('ZRANGE', key, 0, PIECE - 1, 'WITHSCORES')
            local ids, lanes = {}, {}
            for i = 1, #flat, 2 do
                ids[#ids + 1] = flat[i]
            end
            for i, job in ipairs(ask('HMGET', base .. ':j', ids)) do
                local told, run_at = described(job), tonumber(flat[2 * i])
                local t = turns().tenant(qid, told[3])
                local lane = turns().lane(t, told[2], priority)
                lanes[lane] = lanes[lane] or {tenant = t}
                table.insert(lanes[lane], flat[2 * i])
                table.insert(lanes[lane], ids[i])
                turns().expect(t, run_at)
                bytes = bytes + #job
            end
            for lane, line in pairs(lanes) do
                turns().fill(line.tenant, lane, line, tonumber(line[1]), tonumber(line[#line - 1]) > instant)
            end
            many('ZREM', key, ids)
            if call('EXISTS', key) == 0 then
                call('ZREM', base .. ':p:' .. qid, priority)
            end
            moved = moved + #ids
        end
    end

    -- Wake some of the tenants that are still to be woken.
    local function rouse_some(qid, after, at)
        local key = base .. ':V:' .. qid
        local titles = call('ZRANGEBYLEX', key, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, STEP)
        for _, title in ipairs(titles) do
            turns().rouse(turns().by_number(struct.unpack('>I8', title, #title - 7)), at)
        end
        if #titles == STEP then
            call('HSET', base .. ':ow', qid, cmsgpack.pack({titles[STEP], at}))
        else
            call('HDEL', base .. ':ow', qid)
        end
    end

    local function is_going_on(qid)
        return call('EXISTS', base .. ':p:' .. qid) == 1 or call('HEXISTS', base .. ':ow', qid) == 1
            or call('HEXISTS', base .. ':ir', qid) == 1
    end

    -- The next step of what is under way.
    local function go_on(qid)
        local waking = call('EXISTS', base .. ':ow') == 1 and call('HGET', base .. ':ow', qid)
        if waking then
            waking = cmsgpack.unpack(waking)
            rouse_some(qid, waking[1], waking[2])
        end
        if call('EXISTS', base .. ':p:' .. qid) == 1 then
            bring_in(qid)
        end
        recall(qid, STEP)
    end

    -- Let the tenants of a queue take turns from now on.
    local function govern(qid)
        if is_governed(qid) then
            return
        end
        call('HSET', base .. ':o', qid, 0)
        governed = {}
        local at = 0
        while true do
            local ids = call('ZRANGE', base .. ':l', at, at + STEP - 1)
            for i, packed in ipairs(ask('HMGET', base .. ':s', ids)) do
                local j = read_state(packed)
                if j.qid == qid then
                    local t = turns().tenant(qid, described(call('HGET', base .. ':j', ids[i]))[3])
                    turns().start(t, j.text, 1)
                    j.held_until = t.n
                    save(ids[i], j)
                end
            end
            if #ids < STEP then
                break
            end
            at = at + STEP
        end
        go_on(qid)
    end

    -- The rules have changed.
    local function rouse_all(qid)
        rouse_some(qid, '', instant)
    end

    return {go_on = go_on, is_going_on = is_going_on, govern = govern, rouse_all = rouse_all}
end

local made_rule

local function rule()
    made_rule = made_rule or open_rule()
    return made_rule
end
