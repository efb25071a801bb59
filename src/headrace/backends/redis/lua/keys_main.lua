-- Removes keys that outlive the records of their jobs: those that are free by now, and, if there are too many, those that would be free
-- first.
-- ARGV: now or '', max_count (-1: no bound), limit, whether it is a dry run. Answers removed, kept, more, and until when the removed ones
-- were held.

local now = clock(ARGV[1])
local most, limit, dry = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local total = call('ZCARD', base .. ':kx')
local excess = most >= 0 and total - most or 0
local first = call('ZRANGE', base .. ':kx', 0, limit, 'WITHSCORES')
local fields, instants = {}, {}
for i = 1, #first, 2 do
    if #fields < excess or tonumber(first[i + 1]) <= now then
        fields[#fields + 1], instants[#instants + 1] = first[i], first[i + 1]
    end
end
local more = #fields > limit
fields[limit + 1], instants[limit + 1] = nil, nil
if not dry then
    for i, packed in ipairs(ask('HMGET', base .. ':k', fields)) do
        if packed and string.byte(packed, KEY_SIZE) == OUTLIVES then
            call('HDEL', base .. ':k', fields[i])
        end
    end
    many('ZREM', base .. ':kx', fields)
end
return {#fields, total - #fields, more and 1 or 0, instants}
