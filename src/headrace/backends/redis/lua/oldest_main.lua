-- How long the first job of a queue is due, of some of its levels but the first. ARGV: now or '', the queue's name, the level to begin with. Answers that (-1: none
-- is), and the level to go on with ('' : these were all).
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
