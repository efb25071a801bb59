-- Lists what sweeps have removed of the first hour after one that is given (-1: of the first). ARGV: the hour. Answers field, jobs and bytes
-- of each.

local first = call('ZRANGEBYSCORE', base .. ':E', '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local answers = {}
for _, field in ipairs(first[1] and call('ZRANGEBYSCORE', base .. ':E', first[2], first[2]) or {}) do
    push(answers, field, call('HGET', base .. ':Ej', field), call('HGET', base .. ':Eb', field))
end
return answers
