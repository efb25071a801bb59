-- Lists keys that outlive their jobs and are still held. ARGV: now or '', the queue and key to begin after, whether there is one, limit. Answers
-- {queue, key, id, until when it is held}.

local now, limit = clock(ARGV[1]), tonumber(ARGV[5])
local qid = ARGV[4] == '1' and call('HGET', base .. ':q', ARGV[2])
local rank = qid and call('ZRANK', base .. ':kx', key_field(qid, ARGV[3]))
local found = {}
local first = rank and rank + 1 or 0
while #found < limit do
    local fields = call('ZRANGE', base .. ':kx', first, first + limit - 1, 'WITHSCORES')
    for i = 1, #fields, 2 do
        local packed = call('HGET', base .. ':k', fields[i])
        if packed and tonumber(fields[i + 1]) > now and #found < limit then
            local number_of_queue, key = string.match(fields[i], '^(%d+):(.*)$')
            found[#found + 1] = {name_of(tonumber(number_of_queue)), key, string.sub(packed, 1, 16), fields[i + 1]}
        end
    end
    if #fields < 2 * limit then
        break
    end
    first = first + limit
end
return found
