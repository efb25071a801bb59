-- A waiting job takes on the cells (1), the time (2) or both (3) of a row that has its key.

local replace_waiting

do
    local CELLS, TIME = 1, 2

    -- Returns whether it does: it must wait, and have the task and the tenant of the row.
    function replace_waiting(id, what, body, run_at, expires_at, now)
        local j = find(id)
        if not j or j.unreadable or j.cancel == asked.left or (j.state ~= AVAILABLE and j.state ~= PAUSED) then
            return false
        end
        local row = string.rep('\0', JOB_SIZE) .. body
        local its, new = labels_of(call('HGET', base .. ':j', id)), labels_of(row)
        if its[2] ~= new[2] or its[3] ~= new[3] then
            return false
        end
        if what % TIME == CELLS then
            local cells, changes = stored.cells_of(row), {}
            for i = 1, 4 do
                changes[i] = {i, cells[i] or false}
            end
            j.size = j.size + patch_cells(id, changes)
            save(id, j)
            references.list(id)
        end
        if what >= TIME then
            reschedule(id, j, run_at, expires_at, now)
            call_groups()
        end
        return true
    end
end
