-- Removes ticks. ARGV: each tick (PLANNED) and when it was planned; a tick that has changed since stays. Answers how many were removed.
local gone = 0
for i = 1, #ARGV, 2 do
    if tonumber(call('ZSCORE', base .. ':T', ARGV[i]) or -1) == tonumber(ARGV[i + 1]) then
        local uid, slot = struct.unpack(PLANNED, ARGV[i])
        call('ZREM', ticks_of(uid), tick_at(uid, slot))
        call('ZREM', base .. ':T', ARGV[i])
        gone = gone + 1
    end
end
return gone
