-- Finds schedules.
-- ARGV: names in their order (msgpack) or '' for all, the name above which to look ('' : any), tenant and queue (msgpack; false: any),
-- limit, how many to look at. Answers name, SCHEDULE and definition of each, the name up to which it has looked ('' : to the end), and
-- whether any schedule is on its way to another shard.

-- Bytes that one call reads, roughly.
local MOST_READ = 8 * 1024 * 1024

local wanted = cmsgpack.unpack(ARGV[3])
local tenant, queue = wanted[1], wanted[2]
local limit, look = tonumber(ARGV[4]), tonumber(ARGV[5])

local function matches(packed)
    local at = SCHEDULE_SIZE + 1
    local length = struct.unpack('>I4', packed, at)
    local of_queue = string.sub(packed, at + 4, at + 3 + length)
    at = at + 4 + length
    length = struct.unpack('>I4', packed, at)
    return (not queue or queue == of_queue) and (not tenant or tenant == string.sub(packed, at + 4, at + 3 + length))
end

local names
if ARGV[1] ~= '' then
    names = cmsgpack.unpack(ARGV[1])
    look = #names + 1
else
    names = call('ZRANGEBYLEX', base .. ':Sn', ARGV[2] == '' and '-' or '(' .. ARGV[2], '+', 'LIMIT', 0, look)
end
local answers, upto, bytes = {}, '', 0
for i, packed in ipairs(ask('HMGET', base .. ':S', names)) do
    if packed and matches(packed) then
        local definition = call('HGET', base .. ':Sd', names[i])
        push(answers, names[i], packed, definition)
        bytes = bytes + #names[i] + #packed + #definition
    end
    if #answers >= 3 * limit then
        break
    end
    if i == look or bytes > MOST_READ then
        upto = names[i]
        break
    end
end
return {answers, upto, call('EXISTS', base .. ':So')}
