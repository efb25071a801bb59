-- Chooses who makes room for jobs that a claim from several shards has passed over.
-- ARGV: now or '', holder, lease_for, their ids. Answers 2 if this holder is to make room for one of them, else 1.
local now, chosen = clock(ARGV[1]), 1
for i = 4, #ARGV do
    local j = find(ARGV[i])
    chosen = math.max(chosen, j and choose(j.qid, now, ARGV[2], tonumber(ARGV[3])) or 1)
end
return chosen
