-- Replace a policy. ARGV: now or '', the queue's name ('' : the store), the version that must be stored (0: none), the policy (POLICY),
-- Answers whether it was done, and whether something is still to be done bit by bit.
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

if policy[RULE.governs] then
    rule().govern(qid)
end
if is_governed(qid) then
    local rates = base .. ':of:' .. qid
    if not is_same(was[RULE.rate], policy[RULE.rate]) then
        call('HDEL', rates, 'q')
    end
    local changed = {}
    for task, rate in pairs(was[RULE.task_rates]) do
        if not is_same(rate, policy[RULE.task_rates][task]) then
            changed[#changed + 1] = 'k' .. task
        end
    end
    many('HDEL', rates, changed)
end
wake(qid, SIGNALS)
if was[RULE.group_running] ~= policy[RULE.group_running] then
    begin_recall(qid)
end
local more
if is_governed(qid) then
    rule().rouse_all(qid)
    more = rule().is_going_on(qid)
else
    more = recall(qid, CALLED)
end
settle()
return {1, more and 1 or 0}
