-- Reads the ticks that were planned first. ARGV: now or '', how many. Answers now, how many there are, and those (PLANNED) with their
-- instants.
local now = clock(ARGV[1])
return {number(now), call('ZCARD', base .. ':T'), call('ZRANGE', base .. ':T', 0, ARGV[2] - 1, 'WITHSCORES')}
