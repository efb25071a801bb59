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
    local fits = is_set(sel[4], 2 ^ j.state)
        and (sel[6] == '' or before(sel[6], id))
        and (not sel[1] or sel[1] == name_of(j.qid))
        and (not sel[7] or sel[7] == (j.state >= COMPLETED and j.text or ''))
        and (sel[5] < 0 or head(job) <= sel[5])
    local labels = fits and (sel[2] or sel[3]) and labels_of(job)
    return fits and (not labels or ((not sel[3] or sel[3] == labels[2]) and (not sel[2] or sel[2] == labels[3])))
end

-- Bytes of jobs that one call reads, roughly.
local MOST_READ = 8 * 1024 * 1024

-- Returns j, the job and its state, if the selector means it; and how many bytes were read.
local function meet(id, sel)
    local packed = call('HGET', base .. ':s', id)
    local j = packed and read_state(packed)
    if j and (not is_set(sel[4], 2 ^ j.state) or (sel[1] and name_of(j.qid) ~= sel[1])) then
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
local function named(packed, keys)
    local ids, found, seen = ids_in(packed), {}, {[''] = true}
    for _, one in ipairs(keys) do
        ids[#ids + 1] = named_by(one[1], one[2])
    end
    for _, id in ipairs(ids) do
        if not seen[id] then
            found[#found + 1], seen[id] = id, true
        end
    end
    return found
end
