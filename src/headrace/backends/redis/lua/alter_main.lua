-- Changes jobs from outside.
-- ARGV: now or '', whether they are named, ids, {queue, key} (msgpack), selector (msgpack), kind of the change, its text, its number (for a
-- move: 0 within the shard, -1 refused, else the target shard plus one), the states that it applies to as bits, limit, how many jobs to
-- look at, whether it is a dry run. Answers {id, before, after (-1: gone), changed, qid, key} of each job, the names of the queues by
-- number, the id up to which it has looked ('' : to the end), and how many of those named it has met: it stops after many steps.

local CANCEL, PAUSE, RESUME, REQUEUE, MOVE, REPRIORITISE, WATCH, HOLD, DELETE = 1, 2, 3, 4, 5, 6, 7, 8, 9
local PUT_OFF, PUT_AT = 10, 11

local now = clock(ARGV[1])
local is_named = ARGV[2] == '1'
local sel = selector(ARGV[5])
local kind, text, given = tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local applies, limit, look = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local dry = ARGV[12] == '1'

-- Clears what belongs to an end that the job has left.
local function clear_end(id, j)
    j.attempt, j.lost, j.held_until, j.expires_at = 0, 0, 0, 0
    local gone = call('HSTRLEN', base .. ':e', id) + call('HSTRLEN', base .. ':h', id)
    j.size = j.size - gone
    call('HDEL', base .. ':e', id)
    if call('HDEL', base .. ':h', id) == 1 then
        call('ZREM', base .. ':hx', id)
    end
end

local function apply(id, j)
    if kind == CANCEL then
        cancel(id, j, now, text)
    elseif kind == PAUSE or kind == RESUME then
        leave(id, j)
        j.state = kind == PAUSE and PAUSED or AVAILABLE
        come_back(id, j, 1)
    elseif kind == REQUEUE then
        if j.keyed == 1 then
            local key = key_of(id)
            local other, taken = key_owner(j.qid, key, now, 0)
            if taken and other ~= id then
                return false
            end
            take_key(id, j.qid, key)
        end
        j.begun = j.begun or j.state == COMPLETED
        leave(id, j)
        clear_end(id, j)
        j.state, j.text, j.instant, j.run_at = AVAILABLE, '', 0, now
        come_back(id, j, 1)
    elseif kind == MOVE and given ~= 0 then
        if given < 0 then
            return false
        end
        leave(id, j)
        depart(id, j, given - 1, text, now)
    elseif kind == MOVE then
        local qid = call('HGET', base .. ':q', text)
        if qid and tonumber(qid) == j.qid then
            return false
        end
        if j.keyed == 1 and qid then
            local _, taken = key_owner(qid, key_of(id), now, 0)
            if taken then
                return false
            end
        end
        leave(id, j)
        drop_key(id, j)
        j.qid = qid_of(text)
        bring_key(id, j, now)
        come_back(id, j, 1)
    elseif kind == REPRIORITISE then
        leave(id, j, j.state == AVAILABLE)
        j.priority = given
        come_back(id, j, 0)
    elseif kind == PUT_OFF or kind == PUT_AT then
        reschedule(id, j, kind == PUT_OFF and now + given or given, j.expires_at, now)
    elseif kind == WATCH then
        watch(id, text)
    elseif kind == HOLD then
        if j.held_until <= now then
            return false
        end
        j.held_until = now + given
        save(id, j)
        if call('HEXISTS', base .. ':h', id) == 1 then
            call('ZADD', base .. ':hx', number(j.held_until), id)
        end
        end_key(id, j, j.held_until)
        call('DEL', base .. ':dm')
    elseif kind == DELETE then
        leave(id, j)
        forget(id, j)
    end
    return true
end

local answers, known = {}, {}

local function alter(id, j)
    local before = j.state
    local key = j.keyed == 1 and key_of(id) or false
    local changed = not dry and is_set(applies, 2 ^ before) and apply(id, j)
    call_groups()
    local after = before
    if changed then
        after = kind == DELETE and -1 or j.state
    end
    known[j.qid] = true
    answers[#answers + 1] = {id, before, after, changed and 1 or 0, j.qid, key}
end

local upto, met = '', 0
if is_named then
    local ids, keys, seen = ids_in(ARGV[3]), cmsgpack.unpack(ARGV[4]), {}
    while met < #ids + #keys and not is_enough() do
        met = met + 1
        local key = keys[met - #ids]
        local id = ids[met] or named_by(key[1], key[2])
        local j = id ~= '' and not seen[id] and meet(id, sel)
        seen[id] = true
        if j and j.cancel ~= asked.left then
            alter(id, j)
        end
    end
else
    local from = sel[6] == '' and '-' or '(' .. sel[6]
    local ids = call('ZRANGEBYLEX', ids_of(sel), from, '+', 'LIMIT', 0, look)
    local bytes = 0
    for i, id in ipairs(ids) do
        local j, _, _, size = meet(id, sel)
        bytes = bytes + size
        if j and j.cancel ~= asked.left and is_set(applies, 2 ^ j.state) and not (kind == CANCEL and asked[j.cancel]) then
            alter(id, j)
        end
        if #answers >= limit then
            break
        end
        if i == look or bytes > MOST_READ or is_enough() then
            upto = id
            break
        end
    end
end
settle()
return {answers, names_of(known), upto, met}
