-- Stores new jobs.
-- ARGV: now or '', queue names (msgpack), heads of all rows (ROW), {row, key, rule (see key_owner)} of rows with a key (msgpack),
-- {row, inbox} of rows that are waited for (msgpack), {row, tenant ('': none), hour} of rows that have a tenant or references (msgpack),
-- {row, group} of rows that have one (msgpack), then the body of each row. Answers {row, status, id, state, attempt, result} for rows that
-- did not become a job: 1 SAME, 2 DUPLICATE, 3 DONE, 4 FULL, 5 FULL because of the whole store, 6 REPLACED. A FULL row answers {row, status,
-- id, 0, how many wait, how many may}.

local ROW_SIZE = 48
local insert_rows, describe

do
    local ROW = '>c16I2i2i8i8i8I4'
    local OPERATIONS = 'headrace.operations'

    -- When those ids left that have left a trace here, if the store has several shards.
    local function have_left(ids)
        return string.find(base, '{%d+}$') and call('EXISTS', base .. ':m') == 1 and ask('ZMSCORE', base .. ':m', ids) or {}
    end

    -- Opens the check of the rule ``depth``. It returns a status, how many jobs wait and how many may, if there is no room for one more in
    -- the queue or in the store. Jobs admitted before count as waiting.
    local function open_gate()
        local found, admitted, total = {}, {}, 0

        local function waits_in(qid)
            found[qid] = found[qid] or call('HMGET', base .. ':n', qid .. ':' .. AVAILABLE, qid .. ':' .. PAUSED)
            return (found[qid][1] or 0) + (found[qid][2] or 0)
        end

        local function waits_in_all()
            found[0] = found[0] or tonumber(call('HGET', base .. ':n', 'w') or 0)
            return found[0]
        end

        return function(qid)
            local most, most_in_all = policy_of(qid)[RULE.depth], policy_of(0)[RULE.depth]
            local in_all = most_in_all and waits_in_all() + total
            if in_all and in_all >= most_in_all and not (most_in_all > 0 and name_of(qid) == OPERATIONS) then
                return 5, in_all, most_in_all
            end
            local waits = most and waits_in(qid) + (admitted[qid] or 0)
            if waits and waits >= most then
                return 4, waits, most
            end
            admitted[qid], total = (admitted[qid] or 0) + 1, total + 1
        end
    end

    local function read_heads(now, qids, heads)
        local ids, queues, priorities, run_ats, expiries, sizes = {}, {}, {}, {}, {}, {}
        for i = 1, #heads / ROW_SIZE do
            local id, queue, priority, delay, run_at, expires, size = struct.unpack(ROW, heads, (i - 1) * ROW_SIZE + 1)
            ids[i], queues[i], priorities[i], sizes[i] = id, qids[queue], priority, size
            run_ats[i] = run_at >= 0 and run_at or math.max(0, now + delay)
            expiries[i] = expires >= 0 and now + expires or 0
        end
        return ids, queues, priorities, run_ats, expiries, sizes
    end

    -- Puts new jobs of one queue, or of one lane, where claims find them.
    local function enter(list)
        if list.tenant and list.delayed then
            turns().fill_delayed(list.tenant, list)
            turns().expect(list.tenant, list.first)
        elseif list.tenant then
            turns().fill(list.tenant, list.task, list.priority, list)
            turns().expect(list.tenant, list.first)
        elseif list.delayed then
            ready.fill_delayed(list.qid, list, list.first)
        else
            ready.fill_level(list.qid, list.priority, list)
        end
        count(list.qid, AVAILABLE, #list / 2)
        wake(list.qid, list.delayed and SIGNALS or #list / 2)
    end

    -- Puts new jobs of one group into its line.
    local function enter_group(list, governing)
        local key = groups().waiting_in(list.qid, list.group)
        -- In a governed queue one by one: its tenant expects each job that is called, even if only for a moment.
        local step = governing and is_governed(list.qid) and 2 or #list
        for first = 1, #list - step, step do
            call('ZADD', key, list[first], list[first + 1])
            groups().call(list.qid, list.group)
        end
        many('ZADD', key, {unpack(list, #list - step + 1)})
        call('ZADD', base .. ':i', 0, list.qid .. ':' .. list.group)
        count(list.qid, AVAILABLE, #list / 2)
        if list.delayed then
            wake(list.qid, SIGNALS)
        end
        groups().call_later(list.qid, list.group)
    end

    -- ``only``: which of the rows to store; ``gate``: whether the rule ``depth`` applies.
    function insert_rows(now, qids, heads, keyed, inboxes, owned, grouped, first_body, bodies, only, gate)
        local governing = is_any_governed()
        local is_full = gate and call('EXISTS', base .. ':P') == 1 and open_gate()
        local ids, queues, priorities, run_ats, expiries, sizes = read_heads(now, qids, heads)
        local known, left = ask('ZMSCORE', base .. ':a', ids), have_left(ids)
        local keys, rules, waits, group_of_row = {}, {}, {}, {}
        for _, one in ipairs(keyed) do
            keys[one[1]], rules[one[1]] = one[2], one[3]
        end
        for _, one in ipairs(inboxes) do
            waits[one[1]] = one[2]
        end
        for _, one in ipairs(grouped) do
            group_of_row[one[1]] = one[2]
        end
        local answers, jobs, all, plain_lists, dying, seen = {}, {}, {}, {}, {}, {}
        local last, last_text
        local fresh_rows, grouped_lists, replacing = {}, {}, {}
        for i = 1, #ids do
            local id, qid, key = ids[i], queues[i], keys[i]
            local fine = not only or only[i]
            if fine and (known[i] or left[i] or seen[id]) then
                fine = false
                answers[#answers + 1] = {i, 1, id}
            elseif fine and key then
                local other, taken, alone = key_owner(qid, key, now, rules[i], seen)
                if taken then
                    fine = false
                    answers[#answers + 1] = {i, 2, other, alone and COMPLETED}
                    if waits[i] and not alone then
                        local j = seen[other] and {state = AVAILABLE} or find(other)
                        if j.state <= PAUSED then
                            watch(other, waits[i])
                        end
                    end
                    if rules[i] >= 8 and not alone then
                        replacing[#replacing + 1] = answers[#answers]
                    end
                end
            end
            if fine and is_full then
                local status, waits, most = is_full(qid)
                if status then
                    fine = false
                    answers[#answers + 1] = {i, status, id, AVAILABLE, waits, most}
                end
            end
            if fine then
                if key then
                    take_key(id, qid, key)
                end
                local group, tenant, task = group_of_row[i], nil, nil
                if governing and not group and is_governed(qid) then
                    tenant, task = turns().whose(qid, bodies[first_body + i - 1])
                end
                seen[id], fresh_rows[i] = true, true
                local run_at = run_ats[i]
                local delayed = run_at > now
                local name = group and qid .. ':' .. group
                    or tenant and tenant.digits .. (delayed and '' or ':' .. priorities[i] .. ':' .. task) or delayed and qid or qid .. ':' .. priorities[i]
                local flags = (key and 1 or 0) + (group and 2 or 0)
                local job = struct.pack(JOB, now, sizes[i], qid, priorities[i], flags, expiries[i])
                local at = #jobs
                jobs[at + 1], jobs[at + 2] = id, job .. bodies[first_body + i - 1]
                all[at + 1], all[at + 2] = 0, id
                local lists = group and grouped_lists or plain_lists
                local list = lists[name]
                if not list then
                    list = {
                        qid = qid, priority = priorities[i], group = group, tenant = tenant, task = task, delayed = delayed, first = run_at,
                    }
                    lists[name] = list
                end
                local n = #list
                list.first, list.delayed = math.min(list.first, run_at), list.delayed or delayed
                if run_at ~= last then
                    last, last_text = run_at, number(run_at)
                end
                list[n + 1] = last_text
                list[n + 2] = (group or not delayed) and id or tenant and turns().delayed_as(priorities[i], id, task) or ready.delayed_as(priorities[i], id)
                if expiries[i] > 0 then
                    dying[#dying + 1] = number(math.max(expiries[i], run_ats[i]))
                    dying[#dying + 1] = id
                end
                if waits[i] then
                    watch(id, waits[i])
                end
            end
        end
        for _, one in ipairs(owned) do
            if fresh_rows[one[1]] then
                if one[2] ~= '' then
                    enter_tenant(ids[one[1]], one[2])
                end
                if one[3] then
                    references.add(ids[one[1]], one[3])
                end
            end
        end
        many('HSET', base .. ':j', jobs)
        many('ZADD', base .. ':a', all)
        many('ZADD', base .. ':y', dying)
        for _, list in pairs(plain_lists) do
            enter(list)
        end
        for _, list in pairs(grouped_lists) do
            enter_group(list, governing)
        end
        call_groups()
        for _, answer in ipairs(replacing) do
            local i = answer[1]
            if replace_waiting(answer[3], math.floor(rules[i] / 8), bodies[first_body + i - 1], run_ats[i], expiries[i], now) then
                answer[2] = 6
            end
        end
        return answers
    end

    -- Adds to each answer what is known of the job that was there already.
    function describe(answers, now)
        for _, answer in ipairs(answers) do
            local id, status = answer[3], answer[2]
            if status < 4 or status == 6 then
                -- A job that has left for another shard is described by that one.
                local j = answer[4] and {state = answer[4], attempt = 0} or find(id) or {state = -1, attempt = 0}
                answer[4], answer[5], answer[6] = j.state, j.attempt, false
                if status == 2 and j.state == COMPLETED and j.held_until then
                    answer[2] = 3
                    if j.held_until > now then
                        answer[6] = call('HGET', base .. ':h', id)
                    end
                end
            end
        end
        return answers
    end
end
