-- Finds whether keys keep jobs from moving here. ARGV: now or '', {queue, key} (msgpack). Answers 1 or 0 for each.

local now = clock(ARGV[1])
local answers = {}
for i, one in ipairs(cmsgpack.unpack(ARGV[2])) do
    local qid = call('HGET', base .. ':q', one[1])
    answers[i] = qid and select(2, key_owner(qid, one[2], now, 0)) and 1 or 0
end
return answers
