local now = clock(ARGV[1])
local qids = {}
for i, name in ipairs(cmsgpack.unpack(ARGV[2])) do
    qids[i] = qid_of(name)
end
local answers = insert_rows(now, qids, ARGV[3], cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[5]), cmsgpack.unpack(ARGV[6]), 7, ARGV)
describe(answers, now)
settle_counts()
settle_signals()
return answers
