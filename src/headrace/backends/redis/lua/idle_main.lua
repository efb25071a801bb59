-- Removes tenants that have no jobs and whose rate is not in use. ARGV: now or '', limit, whether it is a dry run. Answers how many, and
-- whether there are more.

local now = clock(ARGV[1])
local limit, dry = tonumber(ARGV[2]), ARGV[3] == '1'
local idle = call('ZRANGEBYSCORE', base .. ':Mi', '-inf', number(now), 'LIMIT', 0, limit + 1)
local more = #idle > limit
idle[limit + 1] = nil
if not dry then
    for _, n in ipairs(idle) do
        turns().remove(turns().by_number(tonumber(n)))
    end
    settle()
end
return {#idle, more and 1 or 0}
