-- Replaces a policy.
-- ARGV: now or '', the queue's name ('' : the store), the version that must be stored (0: none), the policy (POLICY), then each task that
-- has a rate, and the rate. Answers whether it was done, and whether steps are left to be done.
local now = clock(ARGV[1])
local qid = ARGV[2] == '' and 0 or qid_of(ARGV[2])
local was = policy_of(qid)
if was[RULE.version] ~= tonumber(ARGV[3]) then
    return {0, 0}
end
call('HSET', base .. ':P', qid, ARGV[4])
policies = nil
local policy = policy_of(qid)
if qid == 0 then
    return {1, 0}
end

local function is_same(one, other)
    return one and other and one[1] == other[1] and one[2] == other[2]
end

-- Stores the rates of tasks. Returns the fields of those that have changed or gone.
local function replace_rates()
    local key, given, wanted, fresh, gone, changed = base .. ':Pk:' .. qid, {}, {}, {}, {}, {}
    for i = 5, #ARGV, 2 do
        given[ARGV[i]] = ARGV[i + 1]
    end
    local flat = was[RULE.task_rates] and call('HGETALL', key) or {}
    for i = 1, #flat, 2 do
        wanted[flat[i]] = given[flat[i]] == flat[i + 1]
        if not given[flat[i]] then
            gone[#gone + 1] = flat[i]
        end
        if not wanted[flat[i]] then
            changed[#changed + 1] = 'k' .. flat[i]
        end
    end
    for task, rate in pairs(given) do
        if not wanted[task] then
            fresh[#fresh + 1], fresh[#fresh + 2] = task, rate
        end
    end
    many('HDEL', key, gone)
    many('HSET', key, fresh)
    return changed
end

local changed = replace_rates()

if policy[RULE.governs] then
    rule().govern(qid)
end
if is_governed(qid) then
    local rates = base .. ':of:' .. qid
    if not is_same(was[RULE.rate], policy[RULE.rate]) then
        call('HDEL', rates, 'q')
    end
    many('HDEL', rates, changed)
end
wake(qid, SIGNALS)
if was[RULE.group_running] ~= policy[RULE.group_running] then
    begin_recall(qid)
end
local more
if is_governed(qid) then
    rule().reconsider_all(qid)
    more = rule().is_going_on(qid)
else
    more = recall(qid, CALLED)
end
settle()
return {1, more and 1 or 0}
