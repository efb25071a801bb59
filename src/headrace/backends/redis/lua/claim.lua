-- Takes a claim's jobs from its queues: the first by (priority, run_at, id), from governed queues by turns.

-- How many governed queues one claim looks at.
local VISITED = 32
local parts_of, claim

do
    -- Microseconds until the next claim if there are more governed queues than one claim looks at.
    local AGAIN = 20000
    -- Named queues that are searched even though nothing is known to be there, so that old signals go.
    local NAMED = 64

    -- Leases up to ``most`` jobs of queues that are not governed. Returns how many.
    local function take_plain(b, qids, most)
        local total, wanted, walk = 0, math.min(most, CHUNK), nil
        while total < most and b.room > 0 and not b.is_spent() do
            walk = walk or open_walk(qids, b.cursors)
            local piece, scores, cursors, steps = walk.piece(wanted)
            b.step(steps)
            if #piece == 0 then
                break
            end
            local taken, _, stale = b.take(piece, scores, cursors, most - total, 0)
            b.flush()
            total = total + taken
            if stale then
                walk.close(true)
                walk = nil
            end
            wanted = math.min(CHUNK, math.max(most - total, 4 * #piece))
        end
        if walk then
            walk.close(false)
        end
        return total
    end

    -- If more governed queues may have something than one claim looks at, skips some: each time others.
    local function skip_some(turning, now)
        for i = VISITED, #turning - 1 do
            turning[(now + i) % #turning + 1].skipped = true
        end
        return #turning > VISITED
    end

    -- Returns the numbers of the queues that a claim names: nil for a queue that was named before, false for an unknown one.
    local function numbers_of(queues)
        local qids, seen = ask('HMGET', base .. ':q', queues), {}
        for i = 1, #queues do
            local qid = qids[i] and tonumber(qids[i])
            if qid and seen[qid] then
                qids[i] = nil
            elseif qid then
                qids[i], seen[qid] = qid, true
            end
        end
        return qids
    end

    -- Returns scores in a sorted set by number, for these numbers.
    local function scores_of(key, qids)
        local found = {}
        if call('EXISTS', key) == 1 then
            for i, score in ipairs(ask('ZMSCORE', key, qids)) do
                if score then
                    found[qids[i]] = tonumber(score)
                end
            end
        end
        return found
    end

    -- Returns the parts of a claim, in the order of the first queue named: each governed queue is one, all others together are one. Of
    -- these, only queues that have something and the first that are named are kept. Also returns the time until something may come that
    -- this claim leaves out: from paused queues, from governed ones that have nothing now, and from delayed jobs.
    function parts_of(queues, now, b)
        local qids, known, next_in = numbers_of(queues), {}, nil
        for i = 1, #queues do
            if qids[i] then
                known[#known + 1] = qids[i]
            end
        end

        local function wait(till)
            if till < FOREVER then
                next_in = math.min(next_in or FOREVER, till - now)
            end
        end

        local pauses, comings, levels = scores_of(base .. ':z', known), scores_of(base .. ':fq', known), ready.first_levels(known)
        local rounds = {}
        for i, round in ipairs(is_any_governed() and ask('HMGET', base .. ':o', known) or {}) do
            rounds[known[i]] = round
        end
        local parts, plain, due, turning = {}, nil, {}, {}
        for i = 1, #queues do
            local qid = qids[i]
            local pause, coming = qid and pauses[qid] or 0, qid and comings[qid] or FOREVER
            if pause > now then
                wait(pause)
            elseif qid and rounds[qid] then
                local part = {qid, governed = true, skipped = coming > now, coming = coming}
                parts[#parts + 1], names[part[1]] = part, queues[i]
                if coming <= now then
                    turning[#turning + 1] = part
                end
            elseif qid ~= nil then
                if not plain then
                    plain = {}
                    parts[#parts + 1] = plain
                end
                if qid and (levels[qid] or coming <= now or i <= NAMED) then
                    plain[#plain + 1], names[qid] = qid, queues[i]
                    if coming <= now then
                        due[#due + 1] = {qid, coming}
                    end
                end
                if coming > now then
                    wait(coming)
                end
            end
        end
        if skip_some(turning, now) then
            wait(now + AGAIN)
        end
        if #due > 0 then
            local more, steps = ready.promote_all(due)
            b.step(steps)
            if more then
                wait(now)
            end
        end
        return parts, next_in
    end

    -- Takes an even share of each part first, then what the others left.
    function claim(b, parts)
        local function take(part, most)
            part.skipped = part.skipped or (part.governed and not part.visited and b.is_spent())
            if part.skipped then
                return 0
            end
            part.visited = true
            return part.governed and visits().take(b, part[1], most) or take_plain(b, part, most)
        end

        local plenty = {}
        for i, part in ipairs(parts) do
            local share = math.ceil(b.left() / (#parts - i + 1))
            if share > 0 and take(part, share) == share then
                plenty[#plenty + 1] = part
            end
        end
        for _, part in ipairs(plenty) do
            if b.left() > 0 then
                take(part, b.left())
            end
        end
    end
end
