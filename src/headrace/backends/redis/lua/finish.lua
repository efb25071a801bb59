-- Ends leases.
-- ARGV from ``first``: how many settlements; {state, flags, delay (-1: run_at stays), result_ttl, run_at (-1: by the delay)} of each kind
-- among them (msgpack); the kind of each (msgpack); {settlement, ...} of those that change more than that (msgpack); spawned rows (as in
-- insert: how many by each settlement, queue names, keys, inboxes, tenants and groups, heads) and the number of their bodies; then all ids,
-- all leases (epoch and holder as in STATE), a result for each settlement that has one, those bodies, and other bytes. Answers the states,
-- -1 for what is fenced off. If the work is too much for one script, only the first settlements are done and answered.

local finish_all

do
    -- That bound in steps, and what some things cost: a settlement that is not plain, a group, another tenant, a spawned row.
    local ENOUGH, PER_CHANGE, PER_GROUP, PER_TENANT, PER_ROW = 2000, 8, 12, 12, 8

    -- Moves a job whose run ends now to another queue.
    local function move_running(id, j, qid, now)
        if j.grouped then
            groups().leave(id, j)
        end
        drop_key(id, j)
        j.qid = qid
        bring_key(id, j, now)
        if is_governed(qid) then
            turns().pass(qid, id)
        end
    end

    function finish_all(now, first)
        local total, kinds, kind_of = tonumber(ARGV[first]), kinds_of(ARGV[first + 1], now), cmsgpack.unpack(ARGV[first + 2])
        local more, is_more = {}, false
        for _, one in ipairs(cmsgpack.unpack(ARGV[first + 3])) do
            more[one[1]], is_more = one, true
        end
        local bodies, id_at, lease_at = tonumber(ARGV[first + 7]), first + 7, first + 7 + total
        local next_result = lease_at + total + 1
        local ids = {unpack(ARGV, id_at + 1, id_at + total)}
        local was, results = ask('HMGET', base .. ':s', ids), {}
        for i = 1, total do
            if kinds[kind_of[i]].has_result then
                results[i] = ARGV[next_result]
                next_result = next_result + 1
            end
        end
        local blobs_at = next_result + bodies - 1
        local waited, governing, stopped = call('EXISTS', base .. ':w') == 1, is_any_governed(), {}

        local function stop_all()
            local numbers = {}
            for tenant in pairs(stopped) do
                numbers[#numbers + 1] = tenant
            end
            if #numbers > 1 then
                turns().read_all(numbers)
            end
            for tenant, holders in pairs(stopped) do
                for holder, jobs in pairs(holders) do
                    turns().stop(tenant, holder, jobs)
                end
            end
            stopped = {}
        end

        local answers, accepted, seen = {}, {}, {}
        local leases, saved, forgotten, held, expiring = {}, {}, {}, {}, {}
        local ended, ended_of, at = {}, {}, number(now)

        local function end_in(state, qid, id, size)
            local list = ended[state]
            if not list then
                list = {bytes = 0}
                ended[state], ended_of[state] = list, {}
            end
            local n = #list
            list[n + 1], list[n + 2] = at, id
            if state == FAILED then
                dead.add(id, at, size)
            end
            list.bytes = list.bytes + size
            ended_of[state][qid] = (ended_of[state][qid] or 0) + 1
        end

        local function hold(id, result, held_until)
            local n = #held
            held[n + 1], held[n + 2] = id, result
            expiring[n + 1], expiring[n + 2] = number(held_until), id
        end

        local fewer, steps, spawned = {}, 0, cmsgpack.unpack(ARGV[first + 4])
        for i = 1, total do
            local id, packed = ids[i], was[i]
            if steps >= ENOUGH then
                break
            end
            if not packed or seen[id] or string.byte(packed) ~= RUNNING
                or string.sub(packed, LEASE_AT) ~= ARGV[lease_at + i] then
                answers[i] = -1
            else
                seen[id], accepted[i] = true, true
                steps = steps + 1 + PER_ROW * (spawned[i] or 0)
                leases[#leases + 1] = id
                local kind, extra = kinds[kind_of[i]], is_more and more[i]
                local size, qid, _, flags = struct.unpack('>I4I4i2B', packed, SIZE_AT)
                fewer[qid] = (fewer[qid] or 0) + 1
                local tenant = governing and struct.unpack('>I8', packed, HELD_AT) or 0
                if tenant > 0 then
                    local holder, of = string.sub(packed, STATE_SIZE + 1), stopped[tenant]
                    if not of then
                        of, steps = {}, steps + PER_TENANT
                    end
                    stopped[tenant], of[holder] = of, (of[holder] or 0) + 1
                end
                if kind.plain and not extra and flags % 4 == 0 then
                    answers[i] = COMPLETED
                    if string.byte(packed, 2) == 1 then
                        call('SREM', base .. ':x:' .. string.sub(packed, STATE_SIZE + 1), id)
                    end
                    if kind.keep then
                        local result = kind.ttl > 0 and results[i]
                        local n = #saved
                        saved[n + 1] = id
                        if result then
                            size = size + #result
                            hold(id, result, now + kind.ttl)
                            saved[n + 2] = kind.done .. string.sub(packed, ATTEMPT_AT, SIZE_AT - 1)
                                .. struct.pack('>I4', size) .. string.sub(packed, QID_AT, STATE_SIZE)
                        else
                            saved[n + 2] = kind.done .. string.sub(packed, ATTEMPT_AT, STATE_SIZE)
                        end
                        end_in(COMPLETED, qid, id, size)
                    else
                        forgotten[#forgotten + 1] = id
                    end
                    if waited then
                        tell_waiters(id)
                    end
                else
                    stop_all()
                    local j = read_state(packed)
                    steps = steps + PER_CHANGE + (j.grouped and PER_GROUP or 0)
                    j.held_until = 0
                    local state, came_from = kind.state, j.qid
                    local reason = extra and extra[2] or ''
                    if asked[j.cancel] then
                        call('SREM', base .. ':x:' .. j.text, id)
                        if state < COMPLETED or (state == CANCELLED and reason == 'cancelled') then
                            state, reason = CANCELLED, asked[j.cancel]
                        end
                    end
                    answers[i] = state
                    if kind.failed then
                        j.attempt = j.attempt + 1
                    end
                    if not kind.keep_lost then
                        j.lost = 0
                    end
                    if extra then
                        if extra[3] then
                            local error = ARGV[blobs_at + extra[3]]
                            j.size = j.size + #error - call('HSTRLEN', base .. ':e', id)
                            call('HSET', base .. ':e', id, error)
                        end
                        if extra[4] then
                            for _, change in ipairs(extra[4]) do
                                change[2] = change[2] and ARGV[blobs_at + change[2]]
                            end
                            j.size = j.size + patch_cells(id, extra[4])
                        end
                        if extra[5] and not extra[7] then
                            local to = qid_of(extra[5])
                            if to ~= j.qid then
                                move_running(id, j, to, now)
                            end
                        end
                        if extra[6] then
                            j.priority = extra[6]
                        end
                    end
                    j.cancel, j.begun = 0, state >= COMPLETED or not kind.unbegun
                    local leaves = extra and extra[7] and (state ~= COMPLETED or kind.keep)
                    if j.grouped and j.qid == came_from then
                        groups().leave(id, j, state == AVAILABLE and not leaves)
                    end
                    if leaves then
                        settle_away(id, j, state, reason, kind, results[i], extra, now)
                    elseif state == AVAILABLE or state == PAUSED then
                        j.state, j.text, j.instant = state, '', 0
                        j.run_at = kind.due or j.run_at
                        come_back(id, j, j.run_at > now and SIGNALS or 1)
                    else
                        local held_until = state == COMPLETED and now + kind.ttl or 0
                        j.state, j.instant, j.held_until, j.text = state, now, held_until, reason
                        if state == COMPLETED and not kind.keep then
                            if extra and extra[7] and j.keyed == 1 then
                                send(extra[7], 'key', now, {extra[5], key_of(id)})
                            end
                            drop_key(id, j)
                            forgotten[#forgotten + 1] = id
                        else
                            end_key(id, j, held_until)
                            if results[i] and state == COMPLETED and kind.ttl > 0 then
                                j.size = j.size + #results[i]
                                hold(id, results[i], held_until)
                            end
                            local n = #saved
                            saved[n + 1], saved[n + 2] = id, write_state(j)
                            end_in(state, j.qid, id, j.size)
                        end
                        if waited then
                            tell_waiters(id)
                        end
                    end
                    call_groups()
                end
            end
        end
        stop_all()
        for qid, jobs in pairs(fewer) do
            count(qid, RUNNING, -jobs)
        end
        many('ZREM', base .. ':l', leases)
        if call('EXISTS', base .. ':lp') == 1 then
            many('HDEL', base .. ':lp', leases)
        end
        many('HSET', base .. ':s', saved)
        many('HSET', base .. ':h', held)
        many('ZADD', base .. ':hx', expiring)
        if ended[COMPLETED] then
            mind_sweep(now)
        end
        for state, list in pairs(ended) do
            many('ZADD', base .. ':d:' .. state, list)
            weigh(state, list.bytes)
            for qid, jobs in pairs(ended_of[state]) do
                count(qid, state, jobs)
            end
        end
        if #forgotten > 0 then
            forget_all(forgotten)
        end
        if bodies > 0 then
            local only, at = {}, 0
            for i = 1, total do
                for _ = 1, spawned[i] or 0 do
                    at = at + 1
                    only[at] = accepted[i] or false
                end
            end
            local packed = cmsgpack.unpack(ARGV[first + 5])
            local qids = {}
            for i, name in ipairs(packed[1]) do
                qids[i] = qid_of(name)
            end
            insert_rows(now, qids, ARGV[first + 6], packed[2], packed[3], packed[4], packed[5], next_result, ARGV, only)
        end
        for i = 1, is_more and total or 0 do
            for _, row in ipairs(accepted[i] and more[i] and more[i][8] or {}) do
                send(row[1], 'row', now, ARGV[blobs_at + row[2]])
            end
        end
        return answers
    end
end
