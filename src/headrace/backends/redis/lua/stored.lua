-- Reads and replaces the cells of jobs as they are stored: as they were enqueued, or as a run has replaced them.

local stored = {}

do
    local LENGTHS, KEPT = '>I4I4I4I4', 4294967294

    -- Calls ``visit`` with the number of each section, its length, and where its bytes begin; these begin at ``first``.
    local function each(packed, at, first, visit)
        local lengths = {struct.unpack(LENGTHS, packed, at)}
        for i = 1, 4 do
            visit(i, lengths[i], first)
            first = first + (lengths[i] < KEPT and lengths[i] or 0)
        end
    end

    -- Returns where the lengths of a job's cells begin, and where its cells do.
    local function layout(job)
        local _, at = labels_of(job)
        if at then
            local headers = struct.unpack('>I4', job, at)
            return at + 4, at + 20 + (headers == NONE and 0 or headers)
        end
    end

    -- Returns the cells of a packed job by the number of their section; ``patched``: those that were replaced.
    function stored.cells_of(job, patched)
        local found = {}
        local function read(packed)
            return function(i, length, from)
                if length ~= KEPT then
                    found[i] = length ~= NONE and string.sub(packed, from, from + length - 1) or nil
                end
            end
        end
        local at, first = layout(job)
        if at then
            each(job, at, first, read(job))
        end
        if patched then
            each(patched, 1, 17, read(patched))
        end
        return found
    end

    -- The same of a stored job.
    function stored.cells(id)
        return stored.cells_of(call('HGET', base .. ':j', id), call('HGET', base .. ':c', id))
    end

    -- Returns a packed job, or its replaced cells, with other cells in the place of those that are in it.
    local function rewritten(packed, at, first, cells)
        local lengths, bytes = {}, {}
        each(packed, at, first, function(i, length, from)
            local cell = length < KEPT and (cells[i] or string.sub(packed, from, from + length - 1))
            lengths[i] = cell and #cell or length
            bytes[#bytes + 1] = cell or nil
        end)
        return string.sub(packed, 1, at - 1) .. struct.pack(LENGTHS, unpack(lengths)) .. string.sub(packed, at + 16, first - 1)
            .. table.concat(bytes)
    end

    -- The job has become larger. One that has ended keeps the weight that was counted.
    local function grow(id, bytes)
        local packed = call('HGET', base .. ':s', id)
        local j = packed and read_state(packed)
        if j and j.state < COMPLETED then
            j.size = j.size + bytes
            save(id, j)
        elseif not packed then
            local job = call('HGET', base .. ':j', id)
            local size = struct.pack('>I4', struct.unpack('>I4', job, JOB_SIZE_AT) + bytes)
            call('HSET', base .. ':j', id, string.sub(job, 1, JOB_SIZE_AT - 1) .. size .. string.sub(job, JOB_SIZE_AT + 4))
        end
    end

    -- Replaces cells, by the number of their section, wherever they are.
    function stored.replace(id, cells)
        if next(cells) == nil then
            return
        end
        local grown, found = 0, stored.cells(id)
        for i, cell in pairs(cells) do
            grown = grown + #cell - #found[i]
        end
        local job, patched = call('HGET', base .. ':j', id), call('HGET', base .. ':c', id)
        local at, first = layout(job)
        if patched then
            call('HSET', base .. ':c', id, rewritten(patched, 1, 17, cells))
            each(patched, 1, 17, function(i, length)
                if length ~= KEPT then
                    cells[i] = nil
                end
            end)
        end
        if at and next(cells) ~= nil then
            call('HSET', base .. ':j', id, rewritten(job, at, first, cells))
        end
        if grown ~= 0 then
            grow(id, grown)
        end
    end
end
