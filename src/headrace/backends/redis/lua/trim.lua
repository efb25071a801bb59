-- Leaves sections that are not wanted out of an answer. ``want`` has a bit for each section that is.

local ALL_SECTIONS = 15
local trim = {}

do
    local LENGTHS, LEFT, KEPT = '>I4I4I4I4', 4294967293, 4294967294

    -- Returns the lengths at ``at``, with LEFT for each section that is left out, and the bytes of the others, which begin at ``first``.
    local function trimmed(packed, at, first, want)
        local lengths, cells = {struct.unpack(LENGTHS, packed, at)}, {}
        for i = 1, 4 do
            local length = lengths[i]
            if length < LEFT then
                if bit.band(want, 2 ^ (i - 1)) ~= 0 then
                    cells[#cells + 1] = string.sub(packed, first, first + length - 1)
                else
                    lengths[i] = LEFT
                end
                first = first + length
            end
        end
        return struct.pack(LENGTHS, lengths[1], lengths[2], lengths[3], lengths[4]), table.concat(cells)
    end

    function trim.job(job, want)
        if not is_whole_job(job) then
            return job
        end
        local at = JOB_SIZE + 5 + struct.unpack('>I4', job, JOB_SIZE + 1)
        local headers = struct.unpack('>I4', job, at)
        local first = at + 20 + (headers == NONE and 0 or headers)
        local lengths, cells = trimmed(job, at + 4, first, want)
        return string.sub(job, 1, at + 3) .. lengths .. string.sub(job, at + 20, first - 1) .. cells
    end

    -- The same of cells that a run has replaced.
    function trim.patches(patched, want)
        if not patched or #patched < 16 then
            return patched
        end
        local lengths, cells = trimmed(patched, 1, 17, want)
        return lengths .. cells
    end

    -- Returns the wanted sections that are as they were enqueued: what a run has replaced need not be sent twice.
    function trim.unreplaced(patched, want)
        if patched and #patched >= 16 then
            for i, length in ipairs({struct.unpack(LENGTHS, patched)}) do
                if i <= 4 and length ~= KEPT then
                    want = bit.band(want, bit.bnot(2 ^ (i - 1)))
                end
            end
        end
        return want
    end

    -- Returns the bytes of the sections that are not wanted; ``patched``: what a run has replaced.
    function trim.spared(job, patched, want)
        local at = JOB_SIZE + 9 + struct.unpack('>I4', job, JOB_SIZE + 1)
        local lengths, total = {struct.unpack(LENGTHS, job, at)}, 0
        local replaced = patched and #patched >= 16 and {struct.unpack(LENGTHS, patched)}
        for i = 1, 4 do
            local length = replaced and replaced[i] ~= KEPT and replaced[i] or lengths[i]
            if length < LEFT and bit.band(want, 2 ^ (i - 1)) == 0 then
                total = total + length
            end
        end
        return total
    end
end
