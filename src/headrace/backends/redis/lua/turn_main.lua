local now = clock(ARGV[1])
local answers = finish_all(now, 8)
if #answers < tonumber(ARGV[8]) then
    settle()
    return {answers}
end
settle_counts()
ready.settle()
settle_soon()
local claimed = answer_claim(now, 2)
settle()
return {answers, claimed}
