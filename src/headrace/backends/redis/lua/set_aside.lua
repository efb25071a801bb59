-- Sets aside jobs that cannot be read.
-- They become FAILED with the reason 'corrupt', so that they can be listed and deleted. If the enqueued job itself cannot be read, its
-- bytes become the blob of a job without a name.

-- A head without key, task, tenant or numbers (msgpack).
local NAMELESS = '\150\192\160\160\192\192\192'

-- Sets one job aside. The caller has taken it off every list and out of the counts; ``qid`` is its queue. An id that is not among the jobs
-- is forgotten.
set_aside = function(id, qid, as_blob)
    if #id ~= 16 or not call('ZSCORE', base .. ':a', id) then
        call('HDEL', base .. ':j', id)
        call('HDEL', base .. ':s', id)
        return
    end
    local job, was = call('HGET', base .. ':j', id) or '', call('HGET', base .. ':s', id)
    local j = read_state(was)
    if as_blob or not is_whole_job(job) then
        call('HSET', base .. ':j', id, struct.pack(JOB, instant, #job, qid, 0, 0, 0) .. struct.pack('>I4', #NAMELESS) .. NAMELESS
            .. string.rep('\255', 16) .. struct.pack('>I4', #job) .. job)
        call('HDEL', base .. ':c', id)
        j.keyed, j.grouped, j.size = 0, false, #job
    elseif j.unreadable then
        local _, _, _, size, priority, flags = head(job)
        j.keyed, j.grouped, j.size, j.priority = flags % 2, flags >= 2, size, priority
    end
    if call('EXISTS', base .. ':i') == 1 then
        groups().forget_member(id, qid)
    end
    j.state, j.qid, j.cancel, j.instant, j.held_until, j.text = FAILED, qid, 0, instant, 0, 'corrupt'
    j.epoch = j.epoch < FOREVER and j.epoch or instant
    save(id, j)
    call('ZREM', base .. ':y', id)
    call('ZADD', base .. ':d:' .. FAILED, number(instant), id)
    dead.add(id, number(instant), j.size)
    count(qid, FAILED, 1)
    weigh(FAILED, j.size)
    end_key(id, j, 0)
    tell_waiters(id)
    redis.log(redis.LOG_WARNING, 'a job could not be read, and is among the dead letters now')
end
