-- Reads parcels. ARGV: the leg, whether they are named, ids, {queue, key} (msgpack), limit. Answers them by id.

local leg, limit = ARGV[1], tonumber(ARGV[5])
local ids = {}
if ARGV[2] == '1' then
    ids = ids_in(ARGV[3])
    for _, one in ipairs(cmsgpack.unpack(ARGV[4])) do
        ids[#ids + 1] = call('HGET', base .. ':Lk:' .. leg, key_in_parcels(one[1], one[2])) or nil
    end
    table.sort(ids, bytes_before)
else
    ids = call('ZRANGEBYLEX', base .. ':Lo:' .. leg, '-', '+', 'LIMIT', 0, limit)
end
local parcels, last = {}, nil
for _, id in ipairs(ids) do
    local parcel = id ~= last and #parcels < limit and parcel_of(leg, id)
    if parcel then
        parcels[#parcels + 1] = parcel
    end
    last = id
end
return parcels
