-- Traces of jobs that belong here by their queue, or did, and are in another shard, so that a repeated insert finds them.

-- Microseconds for which traces are kept.
local TRACED = 3600 * 1000000

-- Each new trace removes some that are too old.
local function leave_trace(id)
    local now = clock('')
    many('ZREM', base .. ':m', call('ZRANGEBYSCORE', base .. ':m', '-inf', number(now - TRACED), 'LIMIT', 0, 2))
    call('ZADD', base .. ':m', number(now), id)
    call('EXPIRE', base .. ':m', TRACED / 1000000)
end
