-- Finds the oldest dead letters of tenants that have too many.
-- ARGV: now or '', how long ago they must have ended at least, limit, ``jobs`` or ``bytes``, whether it is a dry run, the last instant at
-- which they may have ended ('': none), then tenant and gift of each. Answers the index of the tenant, id, instant and size of each.

local now = clock(ARGV[1])
local spared, limit, dry = math.min(now - tonumber(ARGV[2]), tonumber(ARGV[6]) or now), tonumber(ARGV[3]), ARGV[5] == '1'
local found, answers = {}, {}
for i = 7, #ARGV, 2 do
    local first = #found + 1
    give(ARGV[i], ARGV[4], tonumber(ARGV[i + 1]), spared, limit, dry, found)
    for n = first, #found do
        push(answers, (i - 7) / 2, found[n].id, found[n].instant, found[n].j.size)
    end
end
return answers
