-- Which jobs are meant. A selector (msgpack): queue, tenant, task (false: any), states as bits (63: any), the instant before
-- which they were enqueued (-1: any), the id above which they are ('' : any).

local function selector(packed)
    local sel = cmsgpack.unpack(packed)
    sel[6] = string.gsub(sel[6], '..', function(pair) return string.char(tonumber(pair, 16)) end)
    return sel
end

-- Its task and tenant, and where that begins which only clients read, and its length.
local function parts(job)
    local at, texts = JOB_SIZE + 1, {}
    for i = 1, 3 do
        local length = struct.unpack('>I2', job, at)
        texts[i] = string.sub(job, at + 2, at + 1 + length)
        at = at + 2 + length
    end
    local length = struct.unpack('>I4', job, at)
    return at + 4, length, texts[2], texts[3]
end

-- A job without its cells.
local function without_cells(job)
    local at, length = parts(job)
    return string.sub(job, 1, at + length - 1)
end

local function matches(id, job, j, sel)
    if math.floor(sel[4] / 2 ^ j.state) % 2 == 0 then
        return false
    end
    if sel[6] ~= '' and id <= sel[6] then
        return false
    end
    if sel[1] and name_of(j.qid) ~= sel[1] then
        return false
    end
    if sel[5] >= 0 and head(job) > sel[5] then
        return false
    end
    if sel[2] or sel[3] then
        local _, _, task, tenant = parts(job)
        if (sel[3] and task ~= sel[3]) or (sel[2] and tenant ~= sel[2]) then
            return false
        end
    end
    return true
end

-- Jobs by name: ids, then {queue, key}; each once.
local function named(ids, keys)
    local found, seen = {}, {}
    local function add(id)
        if not seen[id] then
            seen[id] = true
            found[#found + 1] = id
        end
    end
    for i = 1, #ids / 16 do
        add(string.sub(ids, (i - 1) * 16 + 1, i * 16))
    end
    for _, one in ipairs(keys) do
        local qid = call('HGET', base .. ':q', one[1])
        local packed = qid and call('HGET', base .. ':k', key_field(qid, one[2]))
        if packed then
            add(string.sub(packed, 1, 16))
        end
    end
    return found
end
