-- Store new jobs. ARGV: now or '', queue names (msgpack), heads of all rows (ROW), {row, key, hold_failed} of those with
-- a key (msgpack), {row, inbox} of those that are waited for (msgpack), {row, tenant} of those that have one (msgpack), then
-- the body of each row.
-- Answers {row, status, id, state, attempt, result} for those that did not become a job: 1 SAME, 2 DUPLICATE, 3 DONE.

local ROW = '>c16I2i2i8i8i8I4'
local ROW_SIZE = 48

-- Ids of jobs that were here, where the store has several shards.
local function have_left(ids)
    return string.find(base, '{%d+}$') and call('EXISTS', base .. ':m') == 1 and ask('ZMSCORE', base .. ':m', ids) or {}
end

local function insert_rows(now, qids, heads, keyed, inboxes, tenants, first_body, bodies, only)
    local count_rows = #heads / ROW_SIZE
    local ids, queues, priorities, run_ats, expiries, sizes = {}, {}, {}, {}, {}, {}
    for i = 1, count_rows do
        local id, queue, priority, delay, run_at, expires, size = struct.unpack(ROW, heads, (i - 1) * ROW_SIZE + 1)
        ids[i], queues[i], priorities[i], sizes[i] = id, qids[queue], priority, size
        run_ats[i] = run_at >= 0 and run_at or math.max(0, now + delay)
        expiries[i] = expires >= 0 and now + expires or 0
    end
    local known, left = ask('ZMSCORE', base .. ':a', ids), have_left(ids)
    local keys, holds, waits = {}, {}, {}
    for _, one in ipairs(keyed) do
        keys[one[1]], holds[one[1]] = one[2], one[3]
    end
    for _, one in ipairs(inboxes) do
        waits[one[1]] = one[2]
    end
    local answers, jobs, all, ready, dying, seen = {}, {}, {}, {}, {}, {}
    local last, last_text
    local fresh_rows = {}
    for i = 1, count_rows do
        local id, qid, key = ids[i], queues[i], keys[i]
        local fine = not only or only[i]
        if fine and (known[i] or left[i] or seen[id]) then
            fine = false
            answers[#answers + 1] = {i, 1, id}
        elseif fine and key then
            local other, taken = key_holder(qid, key, now, holds[i])
            if taken then
                fine = false
                answers[#answers + 1] = {i, 2, other}
                if waits[i] then
                    local j = seen[other] and {state = AVAILABLE} or find(other)
                    if j.state <= PAUSED then
                        watch(other, waits[i])
                    end
                end
            else
                take_key(id, qid, key)
            end
        end
        if fine then
            seen[id], fresh_rows[i] = true, true
            local place = qid .. ':' .. priorities[i]
            local job = struct.pack(JOB, now, sizes[i], qid, priorities[i], key and 1 or 0, expiries[i])
            local at = #jobs
            jobs[at + 1], jobs[at + 2] = id, job .. bodies[first_body + i - 1]
            all[at + 1], all[at + 2] = 0, id
            local line = ready[place]
            if not line then
                line = {qid = qid, priority = priorities[i]}
                ready[place] = line
            end
            local n, run_at = #line, run_ats[i]
            if run_at ~= last then
                last, last_text = run_at, number(run_at)
            end
            line[n + 1], line[n + 2] = last_text, id
            line.later = line.later or run_at > now
            if expiries[i] > 0 then
                dying[#dying + 1] = number(math.max(expiries[i], run_ats[i]))
                dying[#dying + 1] = id
            end
            if waits[i] then
                watch(id, waits[i])
            end
        end
    end
    for _, one in ipairs(tenants) do
        if fresh_rows[one[1]] then
            enter_tenant(ids[one[1]], one[2])
        end
    end
    many('HSET', base .. ':j', jobs)
    many('ZADD', base .. ':a', all)
    many('ZADD', base .. ':y', dying)
    for place, line in pairs(ready) do
        many('ZADD', base .. ':r:' .. place, line)
        if call('ZCARD', base .. ':r:' .. place) == #line / 2 then
            call('ZADD', base .. ':p:' .. line.qid, line.priority, line.priority)
        end
        count(line.qid, AVAILABLE, #line / 2)
        wake(line.qid, line.later and SIGNALS or #line / 2)
    end
    return answers
end

-- What is told of a job that is there already.
local function describe(answers, now)
    for _, answer in ipairs(answers) do
        local id, status = answer[3], answer[2]
        -- One that has left for another shard is told from there.
        local j = find(id) or {state = -1, attempt = 0}
        answer[4], answer[5], answer[6] = j.state, j.attempt, false
        if status == 2 and j.state == COMPLETED then
            answer[2] = 3
            if j.held_until > now then
                answer[6] = call('HGET', base .. ':h', id)
            end
        end
    end
    return answers
end
