-- Lists the jobs of each tenant by id; jobs without a tenant are not listed.

local function enter_tenant(id, tenant)
    local key = base .. ':u:' .. tenant
    if call('ZADD', key, 0, id) == 1 and call('ZCARD', key) == 1 then
        call('SADD', base .. ':u', tenant)
    end
end

-- The job is about to be removed.
local function leave_tenant(id, job)
    local tenant = labels_of(job)[3]
    if tenant ~= '' then
        local key = base .. ':u:' .. tenant
        call('ZREM', key, id)
        if call('EXISTS', key) == 0 then
            call('SREM', base .. ':u', tenant)
        end
    end
end

local function leave_tenants(ids)
    if call('EXISTS', base .. ':u') == 1 then
        for i, job in ipairs(ask('HMGET', base .. ':j', ids)) do
            if job then
                leave_tenant(ids[i], job)
            end
        end
    end
end
