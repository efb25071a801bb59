-- Go on calling the groups of a queue anew. ARGV: now or '', the queue's name, how many. Answers whether there are more.
clock(ARGV[1])
local qid = call('HGET', base .. ':q', ARGV[2])
local more = qid and recall(tonumber(qid), tonumber(ARGV[3]))
settle()
return more and 1 or 0
