-- Removes ended jobs, and counts them by the hour since 1970 in which they ended, state, task and tenant. The counts are in two
-- hashes, jobs and bytes; a sorted set has their fields by the hour.

local removals = {counted = {}}

-- Removes an ended job.
function removals.remove(id, j, now)
    local labels = labels_of(call('HGET', base .. ':j', id))
    local hour = math.floor((j.instant or 0) / 3600000000)
    local field = struct.pack('>I4BI4', hour, j.state, #labels[2]) .. labels[2] .. labels[3]
    local found = removals.counted[field] or {hour = hour, jobs = 0, bytes = 0}
    found.jobs, found.bytes = found.jobs + 1, found.bytes + j.size
    removals.counted[field] = found
    leave(id, j)
    forget(id, j, now)
end

-- Stores what was counted.
function removals.settle()
    for field, found in pairs(removals.counted) do
        call('ZADD', base .. ':E', found.hour, field)
        call('HINCRBY', base .. ':Ej', field, found.jobs)
        call('HINCRBY', base .. ':Eb', field, number(found.bytes))
    end
    settle_counts()
end
