-- A claim from several shards has passed over these jobs. ARGV: now or '', holder, lease_for, their ids. Answers whether the holder is
-- the one who makes room for one of them.
local now, chosen = clock(ARGV[1]), 1
for i = 4, #ARGV do
    local j = find(ARGV[i])
    chosen = math.max(chosen, j and choose(j.qid, now, ARGV[2], tonumber(ARGV[3])) or 1)
end
return chosen
