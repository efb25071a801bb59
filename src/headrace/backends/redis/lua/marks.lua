-- Marks jobs that belong here by their queue, or did, and are in another shard, so that a repeated insert finds them.

-- Microseconds for which marks are kept.
local MARKED = 3600 * 1000000

-- Each new mark removes some that are too old.
local function mark_left(id)
    local now = clock('')
    many('ZREM', base .. ':m', call('ZRANGEBYSCORE', base .. ':m', '-inf', number(now - MARKED), 'LIMIT', 0, 2))
    call('ZADD', base .. ':m', number(now), id)
    call('EXPIRE', base .. ':m', MARKED / 1000000)
end
