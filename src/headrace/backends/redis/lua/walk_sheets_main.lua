-- Reads sheets of a tier. ARGV: now or '', tracker, tier, the first low, how many. Answers as sheets_main.
local now, tracker, tier = clock(ARGV[1]), ARGV[2], ARGV[3]
local answer = {number(now)}
for _, low in ipairs(call('ZRANGE', tracks.lows(tracker, tier), ARGV[4], '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[5])) do
    push(answer, tier, low, call('GET', tracks.sheet(tracker, tier, low)))
end
return answer
