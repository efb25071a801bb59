-- What a claim would meet in queues that are not governed, in its order. ARGV: now or '', queue names (msgpack), limit, lost_below, max_bytes. Answers
-- ids, priorities, run_ats, sizes, kinds (0 to be claimed, 1 expired, 2 passed over), the time until the next job is due (-1: none),
-- whether more are due than it looked at, whether a queue has due jobs but no signal, which of the queues are governed, which are
-- paused, and the time until the first of these pauses ends (-1: none does). It stops at ``limit`` jobs to be claimed.

local MOST = 20000

local now = clock(ARGV[1])
local limit, lost_below, room = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local levels, order, seen, names, governed_ones, paused_ones = {}, {}, {}, {}, {}, {}
local next_in, ends = -1, -1

local function coming(till)
    if next_in < 0 or till < next_in then
        next_in = till
    end
end

for _, name in ipairs(cmsgpack.unpack(ARGV[2])) do
    local qid = call('HGET', base .. ':q', name)
    local till = qid and not seen[qid] and tonumber(call('ZSCORE', base .. ':z', qid) or 0)
    if till and till > now then
        seen[qid] = true
        paused_ones[#paused_ones + 1] = name
        if till < FOREVER then
            coming(till - now)
            ends = next_in
        end
    elseif till and is_governed(qid) then
        seen[qid] = true
        governed_ones[#governed_ones + 1] = name
    elseif till then
        seen[qid] = true
        for _, priority in ipairs(call('ZRANGE', base .. ':p:' .. qid, 0, -1)) do
            if not levels[priority] then
                levels[priority] = {}
                order[#order + 1] = priority
            end
            table.insert(levels[priority], base .. ':r:' .. qid .. ':' .. priority)
            names[base .. ':r:' .. qid .. ':' .. priority] = name
        end
    end
end
table.sort(order, function(a, b) return tonumber(a) < tonumber(b) end)

local function comes_first(a, b)
    return a[2] < b[2] or (a[2] == b[2] and before(a[1], b[1]))
end

-- The first due jobs of some lines, in order; and whether that is all of them.
local function first_of(lines, want)
    local items, last = {}, nil
    for _, key in ipairs(lines) do
        local found = call('ZRANGEBYSCORE', key, '-inf', number(now), 'WITHSCORES', 'LIMIT', 0, want)
        for i = 1, #found, 2 do
            items[#items + 1] = {found[i], tonumber(found[i + 1])}
        end
        if #found == 2 * want and (not last or comes_first(items[#items], last)) then
            last = items[#items]
        end
    end
    table.sort(items, comes_first)
    while last and items[#items] ~= last do
        items[#items] = nil
    end
    return items, not last
end

local dying = call('EXISTS', base .. ':y') == 1
local ids, priorities, run_ats, sizes, kinds = {}, {}, {}, {}, {}
local taken, more = 0, false

-- Those of one priority, in order, from where the last look ended.
local function take(items, from, priority)
    local piece = {}
    for i = from, #items do
        piece[#piece + 1] = items[i][1]
    end
    local states = ask('HMGET', base .. ':s', piece)
    local dies = dying and ask('ZMSCORE', base .. ':y', piece) or {}
    for i, id in ipairs(piece) do
        if taken >= limit or room <= 0 then
            return
        end
        local j = states[i] and read_state(states[i])
        local kind, size = 0, 0
        if dies[i] and tonumber(dies[i]) <= now then
            kind = 1
        elseif j and j.lost >= lost_below then
            kind = 2
        else
            size = j and j.size or select(4, head(call('HGET', base .. ':j', id)))
            taken, room = taken + 1, room - size
        end
        local at = #ids + 1
        ids[at], priorities[at], run_ats[at], sizes[at], kinds[at] = id, tonumber(priority), number(items[from + i - 1][2]), size, kind
    end
end

for _, priority in ipairs(order) do
    local want, from, all = math.max(1, limit - taken), 1, false
    while not all and taken < limit and room > 0 and not more do
        local items
        items, all = first_of(levels[priority], want)
        take(items, from, priority)
        from = #items + 1
        more = want > MOST
        want = want * 4
    end
    if more or taken >= limit or room <= 0 then
        break
    end
end

local due, quiet = 0, 0
for _, lines in pairs(levels) do
    for _, key in ipairs(lines) do
        local here = call('ZCOUNT', key, '-inf', number(now))
        due = due + here
        if here > 0 and call('EXISTS', base .. ':g:' .. names[key]) == 0 then
            quiet = 1
        end
        local first = call('ZRANGEBYSCORE', key, '(' .. number(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
        if first[2] then
            coming(tonumber(first[2]) - now)
        end
    end
end
return {ids, priorities, run_ats, sizes, kinds, number(next_in), due > #ids and 1 or 0, quiet, governed_ones, paused_ones, number(ends)}
