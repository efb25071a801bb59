-- Lists what departed or arrived on a leg. ARGV: the leg, ``d`` or ``a``, the id to begin after ('': from the first), limit.

local from = ARGV[3] == '' and '-' or '(' .. ARGV[3]
return call('ZRANGEBYLEX', base .. ':L' .. ARGV[2] .. ':' .. ARGV[1], from, '+', 'LIMIT', 0, tonumber(ARGV[4]))
