-- ARGV from ``first``: holder, queue names (msgpack), limit, lease_for, lost_below, max_bytes.
local function answer_claim(now, first)
    local queues = cmsgpack.unpack(ARGV[first + 1])
    local limit = tonumber(ARGV[first + 2])
    local ids, jobs, states, expired, passed, room, qids = claim(
        now, ARGV[first], queues, limit, tonumber(ARGV[first + 3]), tonumber(ARGV[first + 4]), tonumber(ARGV[first + 5])
    )
    local next_in = -1
    local short = #ids < limit
    for qid in pairs(qids) do
        local due = false
        for _, priority in ipairs(call('ZRANGE', base .. ':p:' .. qid, 0, -1)) do
            local first_of = call('ZRANGE', base .. ':r:' .. qid .. ':' .. priority, 0, 0, 'WITHSCORES')
            local due_in = math.max(0, tonumber(first_of[2]) - now)
            if next_in < 0 or due_in < next_in then
                next_in = due_in
            end
            if due_in == 0 then
                due = true
                break
            end
        end
        if due and (not short or room <= 0) then
            wake(tonumber(qid), 1)
        elseif not due then
            call('DEL', base .. ':g:' .. name_of(tonumber(qid)))
        end
    end
    local patched, errors = {}, {}
    if #ids > 0 and call('EXISTS', base .. ':c') == 1 then
        patched = ask('HMGET', base .. ':c', ids)
    end
    if #ids > 0 and call('EXISTS', base .. ':e') == 1 then
        errors = ask('HMGET', base .. ':e', ids)
    end
    local known = {}
    for qid in pairs(qids) do
        known[#known + 1] = tonumber(qid)
        known[#known + 1] = name_of(tonumber(qid))
    end
    local over = {}
    for _, id in ipairs(expired) do
        over[#over + 1] = id
        over[#over + 1] = without_cells(call('HGET', base .. ':j', id))
        over[#over + 1] = call('HGET', base .. ':s', id)
    end
    return {ids, jobs, states, patched, errors, known, short and number(next_in) or '-1', passed and 1 or 0, over}
end
