-- Finds how long the first job of a queue has been due, in some of its levels after the first.
-- ARGV: now or '', the queue's name, the level to begin with. Answers that time (-1: none is due), and the level to continue with ('' :
-- none).
local LEVELS = 1000

local now = clock(ARGV[1])
local qid = call('HGET', base .. ':q', ARGV[2])
local age = -1
local levels = qid and call('ZRANGEBYSCORE', base .. ':p:' .. qid, ARGV[3], '+inf', 'LIMIT', 0, LEVELS + 1) or {}
for i = 1, math.min(LEVELS, #levels) do
    local first = tonumber(call('ZRANGE', base .. ':r:' .. qid .. ':' .. levels[i], 0, 0, 'WITHSCORES')[2])
    if first and first <= now then
        age = math.max(age, now - first)
    end
end
return {number(age), levels[LEVELS + 1] or ''}
