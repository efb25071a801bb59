-- Removes ended jobs, and counts them by the hour since 1970 in which they ended, state, task and tenant. The counts are in two
-- hashes, jobs and bytes; a sorted set has their fields by the hour.

local removals = {counted = {}, ids = {}}

-- Removes an ended job; what is left of it goes when all are settled.
function removals.remove(id, j, now)
    local labels = labels_of(call('HGET', base .. ':j', id))
    local hour = math.floor((j.instant or 0) / 3600000000)
    local field = struct.pack('>I4BI4', hour, j.state, #labels[2]) .. labels[2] .. labels[3]
    local found = removals.counted[field] or {hour = hour, jobs = 0, bytes = 0}
    found.jobs, found.bytes = found.jobs + 1, found.bytes + j.size
    removals.counted[field] = found
    leave(id, j)
    drop_key(id, j, now)
    removals.ids[#removals.ids + 1] = id
end

-- Removes what is left of the jobs, and stores what was counted.
function removals.settle()
    if #removals.ids > 0 then
        forget_all(removals.ids)
    end
    for field, found in pairs(removals.counted) do
        call('ZADD', base .. ':E', found.hour, field)
        call('HINCRBY', base .. ':Ej', field, found.jobs)
        call('HINCRBY', base .. ':Eb', field, number(found.bytes))
    end
    settle_counts()
end
