-- Reads the policies of queues.

-- Locals that were declared far above are found faster by the functions below when they are declared again.
local base, call, number, many, ask = base, call, number, many, ask

-- POLICY (msgpack; false where there is no such rule): version, running, rate ({every, burst}), tenant_running, tenant_rate, whether tasks
-- have rates, tenant_workers, tenant_batch, ageing, group_running, depth, whether it governs its queue.
local RULE = {
    version = 1, running = 2, rate = 3, tenant_running = 4, tenant_rate = 5, task_rates = 6, tenant_workers = 7,
    tenant_batch = 8, ageing = 9, group_running = 10, depth = 11, governs = 12,
}
local NO_POLICY = {0, false, false, false, false, false, false, false, false, 1, false, false}

local policies, governed = nil, nil

local function policy_of(qid)
    if policies == nil then
        policies = call('EXISTS', base .. ':P') == 1 and {}
    end
    if not policies then
        return NO_POLICY
    end
    local known = policies[tonumber(qid)]
    if not known then
        local packed = call('HGET', base .. ':P', qid)
        known = packed and cmsgpack.unpack(packed) or NO_POLICY
        policies[tonumber(qid)] = known
    end
    return known
end

-- Whether any queue is governed: its tenants take turns.
local function is_any_governed()
    if governed == nil then
        governed = call('EXISTS', base .. ':o') == 1 and {}
    end
    return governed
end

-- Whether this queue is governed.
local function is_governed(qid)
    if not is_any_governed() then
        return false
    end
    qid = tonumber(qid)
    local known = governed[qid]
    if known == nil then
        known = call('HEXISTS', base .. ':o', qid) == 1
        governed[qid] = known
    end
    return known
end
