-- Stores the cells that a run has replaced or cleared.
-- They are kept as a length for each section (KEPT: as it was enqueued, NONE: there is none), then their bytes.

local patch_cells

do
    local SECTIONS, CELLS, KEPT = 4, '>I4I4I4I4', 4294967294

    local function read_cells(packed)
        local lengths, cells, at = {struct.unpack(CELLS, packed)}, {}, 17
        for i = 1, SECTIONS do
            local length = lengths[i]
            if length < KEPT then
                cells[i] = string.sub(packed, at, at + length - 1)
                at = at + length
            end
        end
        return lengths, cells
    end

    -- Returns by how many bytes the job grows.
    function patch_cells(id, changes)
        local job = call('HGET', base .. ':j', id)
        local _, at = labels_of(job)
        local was = at and {struct.unpack(CELLS, job, at + 4)} or {NONE, NONE, NONE, NONE}
        local packed = call('HGET', base .. ':c', id)
        local lengths, cells = {KEPT, KEPT, KEPT, KEPT}, {}
        if packed then
            lengths, cells = read_cells(packed)
        end
        local grown = 0
        for _, change in ipairs(changes) do
            local i, cell = change[1], change[2]
            local old = lengths[i] == KEPT and was[i] or lengths[i]
            grown = grown - (old == NONE and 0 or old)
            lengths[i], cells[i] = NONE, nil
            if cell then
                lengths[i], cells[i] = #cell, cell
                grown = grown + #cell
                local hour = references.hour_of(cell)
                if hour then
                    references.add(id, hour)
                end
            end
        end
        local bytes = {struct.pack(CELLS, lengths[1], lengths[2], lengths[3], lengths[4])}
        for i = 1, SECTIONS do
            bytes[#bytes + 1] = cells[i]
        end
        call('HSET', base .. ':c', id, table.concat(bytes))
        return grown
    end
end
