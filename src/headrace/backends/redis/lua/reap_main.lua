-- Takes back leases of holders that are gone, and cancels expired jobs.
-- ARGV: now or '', limit, max_lost, spread, holder or '', gap, steady; and if several scripts share a reap: how many leases at most, the
-- position of the first job in the spread, how many jobs are spread, and '1' if no expired ones are left to cancel. Answers id, job and
-- state of each, the names of the queues by number, and if it has stopped after many steps: the limit of the next script, and its share.

local now = clock(ARGV[1])
local LOOK_AT = 10
-- How many workers that are gone are taken off the list.
local GONE = 1000

local steady = is_steady(now, 5)
local limit, max_lost, spread = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local holders = steady and call('ZRANGEBYSCORE', base .. ':X', '-inf', number(now), 'LIMIT', 0, GONE) or {}
many('HDEL', base .. ':W', holders)
many('ZREM', base .. ':X', holders)

-- Looks at a few queues, and drops those that have no job any more. A number is never used again.
for _, name in ipairs(call('EXISTS', base .. ':to') == 0 and call('HRANDFIELD', base .. ':q', LOOK_AT) or {}) do
    local qid = call('HGET', base .. ':q', name)
    local counts = call('HMGET', base .. ':n', qid .. ':0', qid .. ':1', qid .. ':2', qid .. ':3', qid .. ':4', qid .. ':5')
    local till = tonumber(call('ZSCORE', base .. ':z', qid) or 0)
    local used = till > now or policy_of(qid) ~= NO_POLICY or is_governed(qid)
    for i = 1, 6 do
        used = used or counts[i]
    end
    if not used then
        call('HDEL', base .. ':q', name)
        call('HDEL', base .. ':qn', qid)
        call('ZREM', base .. ':z', qid)
    end
end

-- Continues to call groups again, in case the one that began was interrupted.
local calling = call('HRANDFIELD', base .. ':ir')
if calling then
    recall(tonumber(calling), CALLED)
end

local most = not steady and 0 or ARGV[8] or limit
local ids = call('ZRANGEBYSCORE', base .. ':l', '-inf', number(now), 'LIMIT', 0, most)
local states = ask('HMGET', base .. ':s', ids)
local begins, ends = last_absence()
local first, total = tonumber(ARGV[9] or 0), tonumber(ARGV[10] or #ids)
local done, expired, taken = {}, {}, 0

-- Ends a lease whose job cannot be read.
local function give_up(id)
    local _, _, qid = head(call('HGET', base .. ':j', id))
    call('ZREM', base .. ':l', id)
    if qid > 0 then
        count(qid, RUNNING, -1)
    end
    set_aside(id, qid)
    call_groups()
end

local function take_back(i, id)
    local j = read_state(states[i])
    j.begun = true
    local cancelled = asked[j.cancel]
    local spared = begins < j.instant and j.instant <= ends
    local dies = j.lost + 1 > max_lost and not spared
    leave(id, j, not cancelled and not dies)
    if cancelled then
        finish(id, j, CANCELLED, now, cancelled)
    else
        if not spared then
            j.lost = j.lost + 1
        end
        if dies then
            finish(id, j, FAILED, now, 'lost')
        else
            j.state, j.text, j.instant = AVAILABLE, '', 0
            j.run_at = now + math.floor(spread * (first + i - 1) / total)
            come_back(id, j, 1)
        end
    end
    done[#done + 1] = id
end

-- Cancels jobs that have expired. Others of their groups that have expired too are not called, as this reap cancels them as well.
-- Returns whether it stopped.
local function cancel_expired(most)
    groups().call_no_expired()
    local stopped = false
    for _, id in ipairs(most > 0 and call('ZRANGEBYSCORE', base .. ':y', '-inf', number(now), 'LIMIT', 0, most) or {}) do
        if is_enough() then
            stopped = true
            break
        end
        local j = find(id)
        if j and j.state == AVAILABLE then
            leave(id, j)
            finish(id, j, CANCELLED, now, 'expired')
            expired[#expired + 1] = id
        else  -- it cannot be read: the next claim sets it aside
            call('ZREM', base .. ':y', id)
        end
    end
    if not stopped then
        groups().call_expired_again()
    end
    return stopped
end

-- What is taken back here may have expired too, and is left to the next reap: expired jobs come first.
local stopped = ARGV[11] ~= '1' and cancel_expired(limit - #ids)
while taken < #ids and not is_enough() do
    taken = taken + 1
    if is_whole_state(states[taken]) and string.byte(states[taken]) == RUNNING then
        take_back(taken, ids[taken])
    else
        give_up(ids[taken])
    end
end
local rest = {}
if stopped then
    rest = {limit - #expired, #ids, first, total, 0}
elseif taken < #ids then
    rest = {#ids - taken, #ids - taken, first + taken, total, 1}
end
for _, id in ipairs(expired) do
    done[#done + 1] = id
end
local answer, known = taken_back(done), {}
for i = 3, #answer, 3 do
    known[read_state(answer[i]).qid] = true
end
settle()
return {answer, names_of(known), rest}
