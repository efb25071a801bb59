-- Finds jobs that refer to old objects.
-- ARGV: the hour before which they are, the hour and the id above which they are, how many. Answers {id, hour, section, reference, ...} of each.

local by_hour, hour, after = base .. ':R', tonumber(ARGV[2]), ARGV[3]
local first = 0
if after ~= '' then
    local added = call('ZADD', by_hour, 'NX', hour, after) == 1
    local score = tonumber(call('ZSCORE', by_hour, after))
    if score == hour then
        first = call('ZRANK', by_hour, after) + 1
    else
        -- Its hour has changed: for a moment it is listed where it was.
        call('ZADD', by_hour, hour, after)
        first = call('ZRANK', by_hour, after) + (score < hour and 1 or 0)
        call('ZADD', by_hour, score, after)
    end
    if added then
        call('ZREM', by_hour, after)
        first = first - 1
    end
end
local answers = {}
for _, id in ipairs(call('ZRANGE', by_hour, first, first + tonumber(ARGV[4]) - 1)) do
    local found = tonumber(call('ZSCORE', by_hour, id))
    if found >= tonumber(ARGV[1]) then
        break
    end
    local answer = {id, found}
    for section, cell in pairs(references.of(id)) do
        answer[#answer + 1], answer[#answer + 2] = section, cell
    end
    answers[#answers + 1] = answer
end
return answers
