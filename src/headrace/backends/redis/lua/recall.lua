-- Calls the jobs of all groups of a queue again, when the number that may run has changed.

-- How many groups in one step.
local CALLED = 250

-- Begins with the first group.
local function begin_recall(qid)
    call('HSET', base .. ':ir', qid, '[' .. qid .. ':')
end

-- Continues with some groups. Returns whether there are more.
local function recall(qid, most)
    local from = call('HGET', base .. ':ir', qid)
    if not from then
        return false
    end
    local found = call('ZRANGEBYLEX', base .. ':i', from, '(' .. qid .. ';', 'LIMIT', 0, most)
    local keep = groups().stays_called(qid)
    for _, name in ipairs(found) do
        local group = string.sub(name, #tostring(qid) + 2)
        local called = groups().called_in(qid, group)
        for _, id in ipairs(call('ZRANGE', called, 0, -1)) do
            local j = find(id) or read_state(false)
            local bound = j.state ~= AVAILABLE or (keep and j.epoch > 0)
            call('ZADD', called, bound and -1 or number(j.run_at), id)
        end
        groups().call(qid, group)
    end
    if #found < most then
        call('HDEL', base .. ':ir', qid)
        return false
    end
    call('HSET', base .. ':ir', qid, '(' .. found[#found])
    return true
end
