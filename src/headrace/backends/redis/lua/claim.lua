-- Lease the first jobs by (priority, run_at, id).

-- How many governed queues a claim visits, and how long to wait before the next where there are more, microseconds.
local VISITED, AGAIN = 100, 20000

-- Lease up to ``most`` jobs of queues that are not governed; how many it were.
local function take_plain(b, qids, most)
    local total, wanted, walk = 0, math.min(most, CHUNK), nil
    while total < most and b.room > 0 and not b.tired() do
        walk = walk or open_walk(qids, b.lines)
        local piece, scores, places = walk.piece(wanted)
        if #piece == 0 then
            break
        end
        local taken, _, stale = b.take(piece, scores, places, most - total, 0)
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

-- Of governed queues that may have something, those that a claim does not visit, as there are too many; each time others.
local function skip_some(turning, now)
    for i = VISITED, #turning - 1 do
        turning[(now + i) % #turning + 1].skipped = true
    end
    return #turning > VISITED
end

-- Each governed queue, and all others together, in the order of the first that is named; and the time until something may come of what a
-- claim from them leaves out: queues that are paused, governed ones that have nothing now, and what is not due.
local function parts_of(queues, now)
    local qids, known, place, next_in = ask('HMGET', base .. ':q', queues), {}, {}, nil
    for i, qid in ipairs(qids) do
        if qid and place[qid] then
            qids[i] = nil
        elseif qid then
            known[#known + 1] = qid
            place[qid], names[tonumber(qid)] = #known, queues[i]
        end
    end

    local function wait(till)
        if till < FOREVER then
            next_in = math.min(next_in or FOREVER, till - now)
        end
    end

    local pauses, comings = ask('ZMSCORE', base .. ':z', known), ask('ZMSCORE', base .. ':fq', known)
    local rounds = is_any_governed() and ask('HMGET', base .. ':o', known) or {}
    local parts, plain, due, turning = {}, nil, {}, {}

    local function add_known(qid, at)
        local pause, coming = tonumber(pauses[at] or 0), tonumber(comings[at] or FOREVER)
        if pause > now then
            wait(pause)
        elseif rounds[at] then
            parts[#parts + 1] = {qid, governed = true, skipped = coming > now, coming = coming}
            if coming <= now then
                turning[#turning + 1] = parts[#parts]
            end
        else
            plain = plain or {}
            plain[#plain + 1] = qid
            if coming <= now then
                due[#due + 1] = {qid, coming}
            end
        end
        if pause <= now and coming > now and not rounds[at] then
            wait(coming)
        end
    end

    for i = 1, #queues do
        local qid, were_any = qids[i], plain
        if qid then
            add_known(tonumber(qid), place[qid])
        elseif qid == false then
            plain = plain or {}
        end
        if plain and not were_any then
            parts[#parts + 1] = plain
        end
    end
    if skip_some(turning, now) then
        wait(now + AGAIN)
    end
    if #due > 0 and ready.promote_all(due) then
        wait(now)
    end
    return parts, next_in
end

-- First an even share of each part, then what others left.
local function claim(b, parts)
    local function take(part, most)
        if part.skipped then
            return 0
        end
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
