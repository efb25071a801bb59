-- What a reap would meet. ARGV: now or '', limit, holder or '', gap, steady; leases count only where the holder is steady. Answers now, how many leases have expired, how many jobs run, two of the holders whose
-- leases have expired, the first ``limit`` of those jobs and the ends of their leases, how many due jobs have expired (at most
-- ``limit``), the shards for which something waits, and how many workers are listed whose time is over, or whether queues have groups
-- that are still to be called anew.

-- Of how many leases, at either end, it is asked whose they are.
local HOLDERS = 500

local now = clock(ARGV[1])
local limit = tonumber(ARGV[2])
local steady = is_steady(now, 3)
local over = steady and call('ZCOUNT', base .. ':l', '-inf', number(now)) or 0
local running = steady and call('ZCARD', base .. ':l') or 0
local found = call('ZRANGEBYSCORE', base .. ':l', '-inf', number(now), 'WITHSCORES', 'LIMIT', 0, steady and limit or 0)
local holders = {}
for _, from in ipairs(limit > 0 and {0, math.max(0, over - HOLDERS)} or {}) do
    local some = call('ZRANGE', base .. ':l', from, math.min(over, from + HOLDERS) - 1)
    for _, packed in ipairs(over > 0 and ask('HMGET', base .. ':s', some) or {}) do
        local holder = string.sub(packed or '', STATE_SIZE + 1)
        if #holders < 2 and holder ~= holders[1] then
            holders[#holders + 1] = holder
        end
    end
end
local expired = #call('ZRANGEBYSCORE', base .. ':y', '-inf', number(now), 'LIMIT', 0, limit)
local targets = {}
for _, target in ipairs(call('HKEYS', base .. ':tn')) do
    if call('EXISTS', base .. ':t:' .. target) == 1 then
        targets[#targets + 1] = tonumber(target)
    end
end
local others = call('ZCOUNT', base .. ':X', '-inf', number(now)) + call('EXISTS', base .. ':ir')
return {number(now), over, running, holders, found, expired, targets, others}
