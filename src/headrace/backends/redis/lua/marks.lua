-- Marks of jobs that belong here by their queue, or did, and are in another shard: for an insert that is repeated.

-- For how many microseconds they are kept.
local MARKED = 3600 * 1000000

-- Some that are older go with each that comes.
local function mark_left(id)
    local now = clock('')
    many('ZREM', base .. ':m', call('ZRANGEBYSCORE', base .. ':m', '-inf', number(now - MARKED), 'LIMIT', 0, 2))
    call('ZADD', base .. ':m', number(now), id)
    call('EXPIRE', base .. ':m', MARKED / 1000000)
end
