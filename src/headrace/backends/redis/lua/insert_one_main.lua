-- Stores one job that is due, without a key, a group or a tenant, if no queue has rules and its own is known: what ``insert`` does then, and
-- nothing else.
-- ARGV: now or '', queue, id, priority, expires or -1, size, inbox or '', body. Answers 0; or 1 if nothing was stored, and ``insert`` is to
-- be asked.

local now = clock(ARGV[1])
local id, priority, expires = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local qid = call('HGET', base .. ':q', ARGV[2])
if not qid or call('EXISTS', base .. ':P', base .. ':o', base .. ':m') > 0 or call('ZADD', base .. ':a', 0, id) == 0 then
    return 1
end
local expires_at = expires >= 0 and now + expires or 0
call('HSET', base .. ':j', id, struct.pack(JOB, now, ARGV[6], qid, priority, 0, expires_at) .. ARGV[8])
if expires_at > 0 then
    call('ZADD', base .. ':y', number(expires_at), id)
end
if ARGV[7] ~= '' then
    watch(id, ARGV[7])
end
call('ZADD', base .. ':r:' .. qid .. ':' .. priority, number(now), id)
local first = tonumber(call('ZSCORE', base .. ':pq', qid))
if first and priority ~= first then
    local further = math.max(first, priority)
    call('ZADD', base .. ':p:' .. qid, further, further)
end
if not first or priority < first then
    call('ZADD', base .. ':pq', priority, qid)
end
call('HINCRBY', base .. ':n', qid .. ':' .. AVAILABLE, 1)
call('HINCRBY', base .. ':n', 'w', 1)
signal(ARGV[2], 1)
return 0
