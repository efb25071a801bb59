-- Runs an insert; see ``insert``.

local now = clock(ARGV[1])
local qids = {}
for i, name in ipairs(cmsgpack.unpack(ARGV[2])) do
    qids[i] = qid_of(name)
end
local given = {}
for i = 4, 7 do
    given[i] = cmsgpack.unpack(ARGV[i])
end
local answers = insert_rows(now, qids, ARGV[3], given[4], given[5], given[6], given[7], 8, ARGV, nil, true)
describe(answers, now)
settle()
return answers
