-- Drops parcels of jobs that have arrived. ARGV: the leg, ids.

local leg = ARGV[1]
for _, id in ipairs(ids_in(ARGV[2])) do
    local parcel = parcel_of(leg, id)
    if parcel then
        if parcel[8] == 1 then
            local field = key_in_parcels(parcel[2], labels_of(parcel[3])[1])
            if call('HGET', base .. ':Lk:' .. leg, field) == id then
                call('HDEL', base .. ':Lk:' .. leg, field)
            end
        end
        call('HDEL', base .. ':Lp:' .. leg, id)
        call('ZREM', base .. ':Lo:' .. leg, id)
    end
end
return 0
