-- Lists the dead letters of each tenant by the instant of their end, and keeps their number and bytes per tenant.

local dead = {}

function dead.key(tenant)
    return base .. ':D:' .. tenant
end

function dead.tenant_of(id)
    return labels_of(call('HGET', base .. ':j', id))[3]
end

function dead.add(id, at, size)
    local tenant = dead.tenant_of(id)
    if call('ZADD', dead.key(tenant), at, id) == 1 then
        call('ZINCRBY', base .. ':Dj', 1, tenant)
        call('ZINCRBY', base .. ':Db', number(size), tenant)
    end
end

function dead.remove(tenant, id, size)
    if call('ZREM', dead.key(tenant), id) == 0 then
        return
    elseif tonumber(call('ZINCRBY', base .. ':Dj', -1, tenant)) > 0 then
        call('ZINCRBY', base .. ':Db', number(-size), tenant)
    else
        call('ZREM', base .. ':Dj', tenant)
        call('ZREM', base .. ':Db', tenant)
    end
end
