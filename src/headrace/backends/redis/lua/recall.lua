-- Calls the jobs of all groups of a queue again, when the number that may run has changed.

-- How many groups, or jobs of them, in one step.
local CALLED = 250

-- Begins with the first group.
local function begin_recall(qid)
    call('HSET', base .. ':ir', qid, '[' .. qid .. ':')
end

-- Notes anew which of its called jobs are known to stay called, up to ``most`` from a cursor on ('' : the first). Returns the cursor of the
-- others ('c': none), and how many these were.
local function note_called(qid, group, cursor, most)
    local called, keep, noted = groups().called_in(qid, group), groups().stays_called(qid), 0
    while cursor ~= 'c' and noted < most do
        local found = call('ZSCAN', called, cursor == '' and '0' or cursor, 'COUNT', most)
        for i = 1, #found[2], 2 do
            local id = found[2][i]
            local j = find(id) or read_state(false)
            local bound = j.state ~= AVAILABLE or (keep and j.epoch > 0)
            call('ZADD', called, bound and -1 or number(j.run_at), id)
        end
        noted = noted + #found[2] / 2
        cursor = found[1] == '0' and 'c' or found[1]
    end
    return cursor, noted
end

-- Continues with some groups. Returns whether there are more.
local function recall(qid, most)
    local stored = call('HGET', base .. ':ir', qid)
    if not stored then
        return false
    end
    local cursor, from = string.match(stored, '^([%dc]*)(.*)$')
    local found, left = call('ZRANGEBYLEX', base .. ':i', from, '(' .. qid .. ';', 'LIMIT', 0, most), most
    for i, name in ipairs(found) do
        local group, noted, moved, more = string.sub(name, #tostring(qid) + 2), nil, 0, true
        cursor, noted = note_called(qid, group, '[' .. name == from and cursor or '', left)
        if cursor == 'c' then
            moved, more = groups().call(qid, group)
        end
        left = left - math.max(1, noted, moved)
        if more or (left <= 0 and i < #found) then
            call('HSET', base .. ':ir', qid, more and cursor .. '[' .. name or '(' .. name)
            return true
        end
    end
    if #found < most then
        call('HDEL', base .. ':ir', qid)
        return false
    end
    call('HSET', base .. ':ir', qid, '(' .. found[#found])
    return true
end
