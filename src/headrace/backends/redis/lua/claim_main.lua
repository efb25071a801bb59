-- Leases due jobs; see ``claim_answer``. ARGV: now or '', then as there.

local now = clock(ARGV[1])
local answer = answer_claim(now, 2)
settle()
return answer
