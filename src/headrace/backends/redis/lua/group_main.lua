-- Reads a group. ARGV: the names of the queue and of the group. Answers the jobs that are called, and how many wait.
local qid = call('HGET', base .. ':q', ARGV[1])
if not qid then
    return {{}, 0}
end
return {call('ZRANGE', base .. ':ic:' .. qid .. ':' .. ARGV[2], 0, -1), call('ZCARD', base .. ':i:' .. qid .. ':' .. ARGV[2])}
