-- Reads schedules by name. ARGV: names (msgpack). Answers each (SCHEDULE, or nothing), and the names of those that are on their way to
-- another shard.
local names = cmsgpack.unpack(ARGV[1])
local leaving = {}
for i, serial in ipairs(ask('HMGET', base .. ':So', names)) do
    if serial then
        leaving[#leaving + 1] = names[i]
    end
end
return {ask('HMGET', base .. ':S', names), leaving}
