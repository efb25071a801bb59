-- Finds ended jobs that a sweep may remove.
-- ARGV: now or '', state, older_than (-1: no bound), limit, whether there are other bounds, whether it is a dry run, how long ago they must
-- have ended at least, and the last instant at which they may have ('': none). Answers how many there are and their bytes; id, instant, size
-- and whether it is too old, of each that may go (with other bounds the first ``limit``; of those that are too old at most ``limit``); and
-- whether it stopped half way.

local now, state, limit = clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
local found, more = find_ended(now, state, {
    age = tonumber(ARGV[3]), most = limit, first = ARGV[5] == '1' and limit or 0, dry = ARGV[6] == '1',
    last = math.min(now - tonumber(ARGV[7]), tonumber(ARGV[8]) or now),
})
local answers = {}
for _, one in ipairs(found) do
    push(answers, one.id, one.instant, one.j.size, one.old and 1 or 0)
end
return {call('ZCARD', base .. ':d:' .. state), call('HGET', base .. ':b', state) or '0', answers, more and 1 or 0}
