-- Stores a whole job that comes from elsewhere; its id is not in use here. ``j``: its state, with its queue here.

local function store_whole(now, id, j, job, error, cells, result, waiters)
    call('ZADD', base .. ':a', 0, id)
    call('HSET', base .. ':j', id, job)
    local tenant = labels_of(job)[3]
    if tenant ~= '' then
        enter_tenant(id, tenant)
    end
    for name, value in pairs({[':e'] = error, [':c'] = cells, [':h'] = result, [':w'] = waiters}) do
        if value then
            call('HSET', base .. name, id, value)
        else
            call('HDEL', base .. name, id)
        end
    end
    references.list(id)
    bring_key(id, j, now)
    if j.state < COMPLETED then
        come_back(id, j, 1)
        return
    end
    save(id, j)
    mind_sweep(j.instant)
    list_ended(id, j)
    if result then
        call('ZADD', base .. ':hx', number(j.held_until), id)
    end
end
