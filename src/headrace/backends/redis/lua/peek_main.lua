-- Finds what a claim would find in queues that are not governed, in its order.
-- ARGV: now or '', queue names (msgpack), limit, lost_below, max_bytes, wanted sections (a bit for each). Answers ids, priorities, run_ats,
-- sizes, kinds (0 to be claimed, 1 expired, 2 passed over); the time until the next job is due (-1: none); whether more are due than it
-- looked at; whether a queue has due jobs but no signal; the queues that are governed and may have something; the queues that are paused;
-- and the time until the first of these pauses ends (-1: none does). It stops at ``limit`` jobs to be claimed.

-- How many jobs it answers, and after how many steps it looks at no further queue or level.
local MOST, STEPS = 5000, 2000
-- In how many queues it looks for a signal.
local ASKED = 256
-- How many governed queues are named although they seem to have nothing now.
local VISITED = 32

local now = clock(ARGV[1])
local limit, lost_below, room, want = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local unread = 4 * room
local given, qids, seen, titles = cmsgpack.unpack(ARGV[2]), {}, {}, {}
local governed_ones, paused_ones, plain, due = {}, {}, {}, {}
local next_in, ends = -1, -1

local function coming(till)
    if next_in < 0 or till < next_in then
        next_in = till
    end
end

for i, qid in ipairs(ask('HMGET', base .. ':q', given)) do
    if qid and not seen[qid] then
        seen[qid], titles[tonumber(qid)] = true, given[i]
        qids[#qids + 1] = qid
    end
end
local pauses, comings = ask('ZMSCORE', base .. ':z', qids), ask('ZMSCORE', base .. ':fq', qids)
local rounds = is_any_governed() and ask('HMGET', base .. ':o', qids) or {}
for i, qid in ipairs(qids) do
    local n = tonumber(qid)
    local pause, first = tonumber(pauses[i] or 0), tonumber(comings[i] or FOREVER)
    if pause > now then
        paused_ones[#paused_ones + 1] = titles[n]
        if pause < FOREVER then
            ends = ends < 0 and pause - now or math.min(ends, pause - now)
        end
    elseif rounds[i] then
        if first <= now or #governed_ones < VISITED then
            governed_ones[#governed_ones + 1] = titles[n]
        elseif first < FOREVER then
            coming(first - now)
        end
    else
        plain[#plain + 1] = n
        if first <= now then
            due[#due + 1] = {n, first}
        elseif first < FOREVER then
            coming(first - now)
        end
    end
end
if ends >= 0 then
    coming(ends)
end
local more = #due > 0 and ready.promote_all(due)
for i, first in ipairs(#due > 0 and ask('ZMSCORE', base .. ':fq', plain) or {}) do
    if first then
        coming(math.max(0, tonumber(first) - now))
    end
end

local dying = call('EXISTS', base .. ':y') == 1
local ids, priorities, run_ats, sizes, kinds = {}, {}, {}, {}, {}
local walk, taken, full = open_walk(plain, {}), 0, false

local function take(piece, scores, cursors)
    local states = ask('HMGET', base .. ':s', piece)
    local dies = dying and ask('ZMSCORE', base .. ':y', piece) or {}
    for i, id in ipairs(piece) do
        if taken >= limit or room <= 0 then
            full = true
            return
        end
        local j = states[i] and read_state(states[i])
        local kind, size = 0, 0
        if dies[i] and tonumber(dies[i]) <= now then
            kind = 1
        elseif j and j.lost >= lost_below then
            kind = 2
        else
            local job = (not j or want ~= ALL_SECTIONS) and call('HGET', base .. ':j', id)
            size = j and j.size or select(4, head(job))
            if want ~= ALL_SECTIONS and is_whole_job(job) then
                unread = unread - #job
                size = size - trim.spared(job, j and call('HGET', base .. ':c', id), want)
            end
            taken, room = taken + 1, unread > 0 and room - size or 0
        end
        local at = #ids + 1
        ids[at], priorities[at], run_ats[at], sizes[at], kinds[at] = id, cursors[i].priority, scores[i], size, kind
    end
end

while taken < limit and room > 0 and #ids < MOST and walk.steps < STEPS do
    local piece, scores, cursors = walk.piece(math.max(1, limit - taken))
    if #piece == 0 then
        break
    end
    take(piece, scores, cursors)
end
more = more or full or #walk.piece(1) > 0
walk.close(false)

local quiet, levels = 0, ready.first_levels(plain)
local signals = {}
for _, qid in ipairs(plain) do
    if levels[qid] and #signals < ASKED then
        signals[#signals + 1] = base .. ':g:' .. titles[qid]
    end
end
if #signals > 0 and call('EXISTS', unpack(signals)) < #signals then
    quiet = 1
end
return {ids, priorities, run_ats, sizes, kinds, number(next_in), more and 1 or 0, quiet, governed_ones, paused_ones, number(ends)}
