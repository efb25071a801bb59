-- Changes sheets, all or none. ARGV: tracker, then of each sheet tier, low, the version that is expected (8 bytes), and what becomes of it:
-- SHEET, 'e' (it goes) or '' (it stays). Answers whether it was done (1).
local tracker = ARGV[1]
local stored = {}
for i = 2, #ARGV, 4 do
    local sheet = call('GET', tracks.sheet(tracker, ARGV[i], ARGV[i + 1]))
    if (sheet and string.sub(sheet, 1, 8) or NO_VERSION) ~= ARGV[i + 2] then
        return 0
    end
    stored[i] = sheet
end
for i = 2, #ARGV, 4 do
    local tier, low, is = ARGV[i], ARGV[i + 1], ARGV[i + 3]
    if #is >= SHEET_SIZE then
        call('SET', tracks.sheet(tracker, tier, low), is)
        call('ZADD', tracks.lows(tracker, tier), low, low)
        call('ZADD', tracks.due(tracker), number(struct.unpack('>I8', is, DUE_AT)), tracks.member(tier, low))
        tracks.count(tracker, tier, stored[i], is)
    elseif is == 'e' and stored[i] then
        call('DEL', tracks.sheet(tracker, tier, low))
        call('ZREM', tracks.lows(tracker, tier), low)
        call('ZREM', tracks.due(tracker), tracks.member(tier, low))
        tracks.count(tracker, tier, stored[i], nil)
    end
end
return 1
