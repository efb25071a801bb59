-- Notes with ticks what became of their jobs. ARGV: notes (NOTE), states (msgpack). Answers the numbers of those whose ticks are not here.

-- uid, slot, how long it waited, how long it ran
local NOTE = '>c16i8c16'
local NOTE_SIZE = 40

local missing = {}
for i, state in ipairs(cmsgpack.unpack(ARGV[2])) do
    local uid, slot, times = struct.unpack(NOTE, ARGV[1], (i - 1) * NOTE_SIZE + 1)
    local tick = tick_at(uid, slot)
    if tick then
        call('ZREM', ticks_of(uid), tick)
        call('ZADD', ticks_of(uid), number(slot), string.sub(tick, 1, TICK_SIZE) .. times .. state)
    else
        missing[#missing + 1] = i
    end
end
return missing
