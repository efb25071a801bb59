-- Sends jobs, rows and schedules to another shard.
-- A job that leaves is taken off every list at once. Its record stays readable until the job has arrived.

-- The replication id of this server. It gets a new one each time it starts or becomes a primary.
local replid

-- Puts an entry into the channel to ``target``. Its serial is the next number, and the server's replid.
local function send(target, kind, now, what)
    replid = replid or string.match(call('INFO', 'replication'), 'master_replid:(%x+)')
    local serial = number(call('HINCRBY', base .. ':tn', target, 1)) .. ':' .. replid
    call('RPUSH', base .. ':t:' .. target, cmsgpack.pack({serial, kind, number(now), what}))
    return serial
end

-- Sends a job that is on no list; its key is free here.
local function depart(id, j, target, queue, now)
    drop_key(id, j)
    j.qid = qid_of(queue)
    j.cancel = asked.left
    save(id, j)
    call('HSET', base .. ':to', id, send(target, 'job', now, id))
end

-- Settles a job that goes to a queue of another shard; its lease has ended.
local function settle_away(id, j, state, reason, kind, result, extra, now)
    j.state, j.text, j.instant = state, '', 0
    if state >= COMPLETED then
        j.text, j.instant, j.held_until = reason, now, state == COMPLETED and now + kind.ttl or 0
        if result and state == COMPLETED and kind.ttl > 0 then
            j.size = j.size + #result
            call('HSET', base .. ':h', id, result)
        end
        tell_waiters(id)
    else
        j.run_at = kind.due or j.run_at
    end
    depart(id, j, extra[7], extra[5], now)
end
