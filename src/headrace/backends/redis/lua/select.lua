-- Finds the jobs that a selector means.
-- A selector (msgpack): queue, tenant, task (false: any), states as bits (63: any), the instant before which they were enqueued (-1: any),
-- the id above which they are ('' : any), the reason for which they ended (false: any).

local function selector(packed)
    local sel = cmsgpack.unpack(packed)
    sel[6] = string.gsub(sel[6], '..', function(pair) return string.char(tonumber(pair, 16)) end)
    return sel
end

-- Returns the key of the ids to search.
local function ids_of(sel)
    return base .. (sel[2] and sel[2] ~= '' and ':u:' .. sel[2] or ':a')
end

local function matches(id, job, j, sel)
    if math.floor(sel[4] / 2 ^ j.state) % 2 == 0 then
        return false
    end
    if sel[6] ~= '' and not before(sel[6], id) then
        return false
    end
    if sel[1] and name_of(j.qid) ~= sel[1] then
        return false
    end
    if sel[7] and sel[7] ~= (j.state >= COMPLETED and j.text or '') then
        return false
    end
    if sel[5] >= 0 and head(job) > sel[5] then
        return false
    end
    if sel[2] or sel[3] then
        local head = labels_of(job)
        if (sel[3] and head[2] ~= sel[3]) or (sel[2] and head[3] ~= sel[2]) then
            return false
        end
    end
    return true
end

-- Bytes of jobs that one call reads, roughly.
local MOST_READ = 8 * 1024 * 1024

-- Returns j, the job and its state, if the selector means it; and how many bytes were read.
local function meet(id, sel)
    local packed = call('HGET', base .. ':s', id)
    local j = packed and read_state(packed)
    if j and (math.floor(sel[4] / 2 ^ j.state) % 2 == 0 or (sel[1] and name_of(j.qid) ~= sel[1])) then
        return nil, nil, nil, 0
    end
    local job = call('HGET', base .. ':j', id) or ''
    if job == '' and not call('ZSCORE', base .. ':a', id) then
        return nil, nil, nil, 0
    end
    j = j or fresh(id, job)
    if matches(id, job, j, sel) then
        return j, job, packed, #job
    end
    return nil, nil, nil, #job
end

-- Returns the ids of named jobs: ids, then {queue, key}; each once.
local function named(ids, keys)
    local found, seen = {}, {}
    local function add(id)
        if not seen[id] then
            seen[id] = true
            found[#found + 1] = id
        end
    end
    for _, id in ipairs(ids_in(ids)) do
        add(id)
    end
    for _, one in ipairs(keys) do
        local id = named_by(one[1], one[2])
        if id ~= '' then
            add(id)
        end
    end
    return found
end
