-- Legs of transfers: what departed and arrived on them.

local function is_open(leg)
    return call('HEXISTS', base .. ':L', leg) == 1
end

local function key_in_parcels(queue, key)
    return #queue .. ':' .. queue .. key
end

-- Returns a parcel as clients read it: id, the name of the queue, job, state, replaced cells, error, result, whether it had its key, inboxes,
-- when it departed.
local function parcel_of(leg, id)
    local packed = call('HGET', base .. ':Lp:' .. leg, id)
    if packed then
        local parcel = cmsgpack.unpack(packed)
        parcel[9] = parcel[9] and cmsgpack.unpack(parcel[9]) or {}
        return parcel
    end
end
