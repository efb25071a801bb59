-- What a reap would meet. ARGV: now or '', limit. Answers now, how many leases have expired, how many jobs run, two of the holders whose
-- leases have expired, the first ``limit`` of those jobs and the ends of their leases, how many due jobs have expired (at most
-- ``limit``), the shards for which something waits, how many jobs left this one long ago, and how many workers are
-- listed whose time is over.

local now = clock(ARGV[1])
local limit = tonumber(ARGV[2])
local over = call('ZCOUNT', base .. ':l', '-inf', number(now))
local found = call('ZRANGEBYSCORE', base .. ':l', '-inf', number(now), 'WITHSCORES', 'LIMIT', 0, limit)
local holders = {}
if over > 0 then
    for _, id in ipairs(call('ZRANGEBYSCORE', base .. ':l', '-inf', number(now))) do
        local holder = read_state(call('HGET', base .. ':s', id)).text
        if holder ~= holders[1] then
            holders[#holders + 1] = holder
        end
        if #holders == 2 then
            break
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
local silent = call('ZCOUNT', base .. ':X', '-inf', number(now))
local marks = call('ZCOUNT', base .. ':m', '-inf', number(clock('') - MARKED))
return {number(now), over, call('ZCARD', base .. ':l'), holders, found, expired, targets, marks, silent}
