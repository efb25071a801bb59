-- Reads ticks of a schedule, latest slot first. ARGV: uid, the slot before which they are ('' : any), limit. Answers each tick (TICK).
local before = ARGV[2] == '' and '+inf' or '(' .. ARGV[2]
return call('ZRANGE', ticks_of(ARGV[1]), before, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, ARGV[3])
