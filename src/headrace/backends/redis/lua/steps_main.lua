-- Continues with what a change of the rules has begun. ARGV: now or '', the queue's name. Answers whether there is more to do.
clock(ARGV[1])
local qid = tonumber(call('HGET', base .. ':q', ARGV[2]) or 0)
local more = false
if qid > 0 and is_governed(qid) then
    more = rule().go_on(qid)
elseif qid > 0 then
    more = recall(qid, CALLED)
end
settle()
return more and 1 or 0
