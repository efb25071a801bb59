-- Forget that jobs were here. ARGV: ids ('' : those that left long ago).

local gone = {}
if ARGV[1] == '' then
    gone = call('ZRANGEBYSCORE', base .. ':m', '-inf', number(clock('') - MARKED), 'LIMIT', 0, 1000)
end
for i = 1, #ARGV[1] / 16 do
    gone[i] = string.sub(ARGV[1], (i - 1) * 16 + 1, i * 16)
end
for _, id in ipairs(gone) do
    if call('ZREM', base .. ':m', id) == 1 and call('HEXISTS', base .. ':j', id) == 0 then
        call('ZREM', base .. ':a', id)
    end
end
return #gone
