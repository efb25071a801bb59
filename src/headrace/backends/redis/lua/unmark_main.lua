-- Forget that jobs were here. ARGV: ids.

for i = 1, #ARGV[1] / 16 do
    call('ZREM', base .. ':m', string.sub(ARGV[1], (i - 1) * 16 + 1, i * 16))
end
return 0
