local now = clock(ARGV[1])
local answer = answer_claim(now, 2)
settle()
return answer
