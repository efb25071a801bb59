-- Lists jobs by the hour of the oldest object that their cells refer to (:R). After a run has replaced cells, the hour may be too early.

local references = {}

do
    local SIZE, KIND, HOUR_AT = 25, 3, 4
    local by_hour = base .. ':R'

    -- Returns the hour of a cell that is a reference.
    function references.hour_of(cell)
        if #cell == SIZE and string.byte(cell) == KIND then
            return (struct.unpack('>I3', cell, HOUR_AT))
        end
    end

    -- The job refers to an object of this hour.
    function references.add(id, hour)
        local was = call('ZSCORE', by_hour, id)
        if not was or hour < tonumber(was) then
            call('ZADD', by_hour, hour, id)
        end
    end

    -- The jobs are about to be removed.
    function references.forget(ids)
        if call('EXISTS', by_hour) == 1 then
            many('ZREM', by_hour, ids)
        end
    end

    -- Returns the references of a job by the number of their section.
    function references.of(id)
        local found = stored.cells(id)
        for i = 1, 4 do
            if found[i] and not references.hour_of(found[i]) then
                found[i] = nil
            end
        end
        return found
    end

    -- Lists the job by the oldest of its references, or not at all.
    function references.list(id)
        call('ZREM', by_hour, id)
        for _, cell in pairs(references.of(id)) do
            references.add(id, references.hour_of(cell))
        end
    end
end
