-- ARGV from ``first``: holder, queue names (msgpack), limit, lease_for, lost_below, max_bytes. Answers: ids, jobs, states, replaced
-- cells, errors, the names of the queues by number, the time until there may be more (-1: unknown), whether one was passed over
-- (2: and this holder is to make room for it), what has expired, and how many bytes there is still room for.

-- The time until the next job of a queue is due; nil: there is none.
local function due_in(qid, now)
    local next_in
    for _, priority in ipairs(call('ZRANGE', base .. ':p:' .. qid, 0, -1)) do
        local first = call('ZRANGE', base .. ':r:' .. qid .. ':' .. priority, 0, 0, 'WITHSCORES')
        next_in = math.min(next_in or FOREVER, math.max(0, tonumber(first[2]) - now))
        if next_in == 0 then
            break
        end
    end
    return next_in
end

local function answer_claim(now, first)
    local holder, limit, lease_for, lost_below = ARGV[first], tonumber(ARGV[first + 2]), tonumber(ARGV[first + 3]), tonumber(ARGV[first + 4])
    local b = open_basket(now, holder, limit, lease_for, lost_below, tonumber(ARGV[first + 5]))
    local parts, next_in = parts_of(cmsgpack.unpack(ARGV[first + 1]), now)
    claim(b, parts)
    local ids = b.ids
    local short = #ids < limit
    local known = {}
    for _, part in ipairs(parts) do
        for _, qid in ipairs(part) do
            local coming, more
            if part.governed then
                coming, more = visits().coming(qid, b)
            else
                coming = due_in(qid, now)
                more = coming == 0
            end
            if coming then
                next_in = math.min(next_in or FOREVER, coming)
            end
            if more and (not short or b.room <= 0) then
                wake(qid, 1)
            elseif not more then
                call('DEL', base .. ':g:' .. name_of(qid))
            end
            if limit == 1 and lost_below == NO_BOUND then
                stay_chosen(qid, now, holder, lease_for)
            end
            known[#known + 1], known[#known + 2] = qid, name_of(qid)
        end
    end
    local passed = 0
    for qid in pairs(b.passed) do
        passed = math.max(passed, choose(qid, now, holder, lease_for))
    end
    local patched, errors = {}, {}
    if #ids > 0 and call('EXISTS', base .. ':c') == 1 then
        patched = ask('HMGET', base .. ':c', ids)
    end
    if #ids > 0 and call('EXISTS', base .. ':e') == 1 then
        errors = ask('HMGET', base .. ':e', ids)
    end
    local over = {}
    for _, id in ipairs(b.expired) do
        over[#over + 1] = id
        over[#over + 1] = without_cells(call('HGET', base .. ':j', id))
        over[#over + 1] = call('HGET', base .. ':s', id)
    end
    next_in = b.room <= 0 and 0 or next_in or -1
    return {
        ids, b.jobs, b.states, patched, errors, known, short and number(next_in) or '-1', passed, over, number(b.room),
    }
end
