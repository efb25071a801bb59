-- The groups of a queue are called anew, as the number of their turns has changed.

-- How many in one go.
local CALLED = 250

-- From the first on.
local function begin_recall(qid)
    call('HSET', base .. ':ir', qid, '[' .. qid .. ':')
end

-- Some of those that are still to be called; whether there are more.
local function recall(qid, most)
    local from = call('HGET', base .. ':ir', qid)
    if not from then
        return false
    end
    local found = call('ZRANGEBYLEX', base .. ':i', from, '(' .. qid .. ';', 'LIMIT', 0, most)
    local keep = groups().keeps_turns(qid)
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
