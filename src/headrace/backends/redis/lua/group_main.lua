-- A group. ARGV: the queue's name, the group's. Answers the jobs that have a turn, and how many wait for one.
local qid = call('HGET', base .. ':q', ARGV[1])
if not qid then
    return {{}, 0}
end
return {call('ZRANGE', base .. ':ic:' .. qid .. ':' .. ARGV[2], 0, -1), call('ZCARD', base .. ':i:' .. qid .. ':' .. ARGV[2])}
