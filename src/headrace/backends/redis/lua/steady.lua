-- Whether a holder's own beats have come without a gap, and lately: then those whose leases have run out had time to say that they
-- live. ``given`` is a place in ARGV: the holder or '', gap, steady.

local function is_steady(now, given)
    if ARGV[given] == '' then
        return true
    end
    local packed = call('HGET', base .. ':W', ARGV[given])
    if not packed then
        return false
    end
    local whole, worker = pcall(cmsgpack.unpack, packed)
    if not whole or type(worker) ~= 'table' or not tonumber(worker[6]) or not tonumber(worker[7]) then
        return false
    end
    return tonumber(worker[6]) >= now - tonumber(ARGV[given + 1]) and tonumber(worker[7]) <= now - tonumber(ARGV[given + 2])
end
