-- Replaces cells of jobs.
-- ARGV: for each job its id; section (1 byte, 5: the result), length (4 bytes) and cell of each that was seen, all in one; and the same of
-- what comes in their place. Answers for each whether it was done (1).

local RESULT = 5

-- Returns cells by section.
local function cells_in(packed)
    local found, at = {}, 1
    while at <= #packed do
        local section, length = struct.unpack('>BI4', packed, at)
        found[section] = string.sub(packed, at + 5, at + 4 + length)
        at = at + 5 + length
    end
    return found
end

local answers = {}
for i = 1, #ARGV, 3 do
    local id, seen, cells = ARGV[i], cells_in(ARGV[i + 1]), cells_in(ARGV[i + 2])
    local found, same = stored.cells(id), call('HEXISTS', base .. ':j', id) == 1
    for section, cell in pairs(seen) do
        same = same and cell == (section == RESULT and call('HGET', base .. ':h', id) or found[section])
    end
    if same then
        if cells[RESULT] then
            call('HSET', base .. ':h', id, cells[RESULT])
            cells[RESULT] = nil
        end
        stored.replace(id, cells)
        references.list(id)
    end
    answers[#answers + 1] = same and 1 or 0
end
return answers
