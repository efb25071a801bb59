-- Carries out plans.
-- ARGV: now or '', names (msgpack), plans (PLAN), their ticks (NEW); the rows of ticks as in insert: queue names, keys, inboxes, tenants,
-- groups (msgpack), heads; {shard, number} of rows for other shards (msgpack), how many bodies; then the bodies, and the rows for other
-- shards. Answers each plan with what became of its ticks (0: it had fired), or with nothing.

-- uid, version (-1: any), flags, slot, look_at, how many ticks
local PLAN = '>c16i8Bi8i8I4'
local PLAN_SIZE = 45
-- slot, run_at, number of the row (0: none, below: of one that goes), count, overlap
local NEW = '>i8i8i4I4B'
local NEW_SIZE = 25
local SKIP, CANCEL = 1, 2

local now = clock(ARGV[1])
local queues = cmsgpack.unpack(ARGV[5])
local heads, away, bodies_at = ARGV[10], cmsgpack.unpack(ARGV[11]), 12
local away_at = bodies_at + tonumber(ARGV[12])

local qids = setmetatable({}, {
    __index = function(known, queue)
        known[queue] = qid_of(queues[queue])
        return known[queue]
    end,
})

local function by_row(packed)
    local found = {}
    for _, one in ipairs(cmsgpack.unpack(packed)) do
        found[one[1]] = one
    end
    return found
end

local keys, inboxes, owned_rows, groups_of = by_row(ARGV[6]), by_row(ARGV[7]), by_row(ARGV[8]), by_row(ARGV[9])

-- Rows that are about to be stored.
local pending, waiting = {}, {}

local function insert_pending()
    local some, bodies, keyed, waited, owned, grouped = {}, {}, {}, {}, {}, {}
    for i, row in ipairs(pending) do
        some[i] = string.sub(heads, (row - 1) * ROW_SIZE + 1, row * ROW_SIZE)
        bodies[i] = ARGV[bodies_at + row]
        keyed[#keyed + 1] = keys[row] and {i, keys[row][2], keys[row][3]}
        waited[#waited + 1] = inboxes[row] and {i, inboxes[row][2]}
        owned[#owned + 1] = owned_rows[row] and {i, owned_rows[row][2], owned_rows[row][3]}
        grouped[#grouped + 1] = groups_of[row] and {i, groups_of[row][2]}
    end
    insert_rows(now, qids, table.concat(some), keyed, waited, owned, grouped, 1, bodies)
    pending, waiting = {}, {}
end

-- Stores the job of a tick. Returns its id.
local function fire(row)
    if row < 0 then
        local entry = ARGV[away_at - row]
        send(away[-row][1], 'row', now, entry)
        return string.sub(entry, 1, 16)
    end
    local id = string.sub(heads, (row - 1) * ROW_SIZE + 1, (row - 1) * ROW_SIZE + 16)
    pending[#pending + 1], waiting[id] = row, true
    return id
end

-- Whether the last job of the schedule keeps the next one from being stored.
local function is_in_the_way(s, overlap)
    if waiting[s.last_job] then
        insert_pending()
    end
    local j = find(s.last_job)
    if not j or j.state > PAUSED then
        return false
    end
    if overlap == CANCEL and j.cancel ~= asked.left then
        cancel(s.last_job, j, now, 'superseded')
    end
    return overlap == SKIP
end

local function carry_out(name, nth, tick_at_first)
    local uid, version, flags, slot, look_at, count = struct.unpack(PLAN, ARGV[3], (nth - 1) * PLAN_SIZE + 1)
    local s = find_schedule(name)
    if not s or s.uid ~= uid or (version >= 0 and version ~= s.version) then
        return false, count
    end
    local moves = version >= 0
    local was = {enabled = s.enabled, look_at = s.look_at, plan_priority = s.plan_priority, bucket = s.bucket}
    local outcomes = {}
    for i = 1, count do
        local instant, run_at, row, slots, overlap = struct.unpack(NEW, ARGV[4], (tick_at_first + i - 1) * NEW_SIZE + 1)
        local was_tick = tick_at(uid, instant)
        if has_fired(was_tick) then
            outcomes[i] = 0
        else
            local outcome, job = MISSED, NO_JOB
            if row ~= 0 then
                outcome = overlap > 0 and s.last_job and is_in_the_way(s, overlap) and SKIPPED or FIRED
            end
            if outcome == FIRED then
                job = fire(row)
                s.runs = s.runs + 1
                if moves then
                    s.last_slot, s.last_job = instant, job
                end
            end
            put_tick(was_tick, uid, instant, run_at, outcome, now, slots, job)
            outcomes[i] = outcome
        end
    end
    if moves then
        s.slot = is_set(flags, FLAGS.slot) and slot or nil
        s.look_at = is_set(flags, FLAGS.look_at) and look_at or nil
    end
    s.version = s.version + 1
    save_schedule(name, was, s)
    return outcomes, count
end

local answers, ticks = {}, 0
for nth, name in ipairs(cmsgpack.unpack(ARGV[2])) do
    local outcomes, count = carry_out(name, nth, ticks)
    answers[nth] = outcomes
    ticks = ticks + count
end
insert_pending()
settle()
return answers
