-- Pauses or resumes a queue, or one of its tenants or tasks.
-- ARGV: now or '', the queue's name, what (q, t, k), the name of the tenant or task, for how long (0: resume; '' : until it is resumed).
-- Answers whether steps are left to be done.
local now = clock(ARGV[1])
local qid = qid_of(ARGV[2])
local resumed = ARGV[5] == '0'
local till = resumed and 0 or ARGV[5] == '' and FOREVER or now + tonumber(ARGV[5])

local function keep(key, name)
    if resumed then
        call('ZREM', key, name)
    else
        call('ZADD', key, number(till), name)
    end
end

if ARGV[3] == 'q' then
    keep(base .. ':z', qid)
else
    rule().govern(qid)
    if ARGV[3] == 'k' then
        local paused = base .. ':oz:' .. qid
        many('ZREM', paused, call('ZRANGEBYSCORE', paused, '-inf', number(now), 'LIMIT', 0, 1000))
        keep(paused, ARGV[4])
        rule().reconsider_all(qid)
    elseif not resumed or turns().known(qid, ARGV[4]) then
        local t = turns().tenant(qid, ARGV[4])
        t.paused = till
        turns().change(t)
    end
end
if resumed then
    wake(qid, SIGNALS)
end
local more = ARGV[3] ~= 'q' and rule().is_going_on(qid)
settle()
return more and 1 or 0
