-- Takes sheets that must be looked at. ARGV: now or '', tracker, how many, how long they are held. Answers now, when the first of the others
-- must be looked at ('' : none, or the limit was reached), and of each sheet its tier, low and the head of SHEET.
local now, tracker, limit = clock(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local key = tracks.due(tracker)
local answer = {number(now), ''}
local found = call('ZRANGE', key, '-inf', number(now), 'BYSCORE', 'LIMIT', 0, limit)
for _, member in ipairs(found) do
    local colon = string.find(member, ':', 1, true)
    local low, tier = string.sub(member, 1, colon - 1), string.sub(member, colon + 1)
    call('ZADD', key, number(now + tonumber(ARGV[4])), member)
    push(answer, tier, low, call('GETRANGE', tracks.sheet(tracker, tier, low), 0, SHEET_SIZE - 1))
end
if #found < limit then
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    answer[2] = first[2] and number(tonumber(first[2])) or ''
end
return answer
