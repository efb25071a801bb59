-- Ends leases and leases due jobs in one call; see ``finish`` and ``claim_answer``. ARGV: now or '', then as in ``claim_answer``, then as in
-- ``finish``. Answers what both do; without a claim, if not all leases could be ended.

local now = clock(ARGV[1])
local answers = finish_all(now, 9)
if #answers < tonumber(ARGV[9]) then
    settle()
    return {answers}
end
settle_counts()
ready.settle()
settle_soon()
local claimed = answer_claim(now, 2)
settle()
return {answers, claimed}
