-- Gives queues numbers: names may be long, and are part of many keys.

local names = {}

local function qid_of(name)
    local found = call('HGET', base .. ':q', name)
    if not found then
        found = call('INCR', base .. ':qi')
        call('HSET', base .. ':q', name, found)
        call('HSET', base .. ':qn', found, name)
    end
    found = tonumber(found)
    names[found] = name
    return found
end

local function name_of(qid)
    local found = names[qid]
    if not found then
        found = call('HGET', base .. ':qn', qid) or ''
        names[qid] = found
    end
    return found
end

-- Returns number, name, number, name … of the queues whose numbers are the keys of ``qids``.
local function names_of(qids)
    local flat = {}
    for qid in pairs(qids) do
        flat[#flat + 1], flat[#flat + 2] = qid, name_of(qid)
    end
    return flat
end
