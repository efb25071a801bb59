-- Finds what a reap would find.
-- ARGV: now or '', limit, holder or '', gap, steady; leases and workers count only if the holder is steady. Answers the first ``limit``
-- jobs whose leases have expired, and when; how many due jobs have expired (at most ``limit``); the shards for which something waits; and
-- how many listed workers are gone, plus 1 if groups are still to be called again.

local now = clock(ARGV[1])
local limit = tonumber(ARGV[2])
local steady = is_steady(now, 3)
local found = call('ZRANGEBYSCORE', base .. ':l', '-inf', number(now), 'WITHSCORES', 'LIMIT', 0, steady and limit or 0)
local expired = #call('ZRANGEBYSCORE', base .. ':y', '-inf', number(now), 'LIMIT', 0, limit)
local targets = {}
for _, target in ipairs(call('HKEYS', base .. ':tn')) do
    if call('EXISTS', base .. ':t:' .. target) == 1 then
        targets[#targets + 1] = tonumber(target)
    end
end
local others = (steady and call('ZCOUNT', base .. ':X', '-inf', number(now)) or 0) + call('EXISTS', base .. ':ir')
return {found, expired, targets, others}
