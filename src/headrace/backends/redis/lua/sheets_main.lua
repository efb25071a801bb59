-- Reads the sheets that points lie on, each once. ARGV: now or '', tracker, then tiers and points. Answers now, and of each sheet its tier,
-- low and SHEET.
local now, tracker = clock(ARGV[1]), ARGV[2]
local answer, seen = {number(now)}, {}
for i = 3, #ARGV, 2 do
    local tier = ARGV[i]
    local low = call('ZRANGE', tracks.lows(tracker, tier), ARGV[i + 1], '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1)[1]
    if low and not seen[tracks.member(tier, low)] then
        seen[tracks.member(tier, low)] = true
        push(answer, tier, low, call('GET', tracks.sheet(tracker, tier, low)))
    end
end
return answer
