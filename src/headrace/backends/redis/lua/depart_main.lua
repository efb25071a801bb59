-- Turns jobs into parcels. ARGV: now or '', the leg, ids. Answers the parcels; nothing if the leg is not open.

local now, leg = clock(ARGV[1]), ARGV[2]
if not is_open(leg) then
    return false
end
local parcels = {}
for _, id in ipairs(ids_in(ARGV[3])) do
    local job, j = call('HGET', base .. ':j', id), find(id)
    local readable = j and not j.unreadable and is_whole_job(job) and select(2, labels_of(job))
    if readable and j.state ~= RUNNING and j.cancel ~= asked.left then
        local queue, key = name_of(j.qid), j.keyed == 1 and key_of(id)
        local owner = key and call('HGET', base .. ':k', key_field(j.qid, key))
        local keyed = owner and string.sub(owner, 1, 16) == id
        local result = j.state == COMPLETED and j.held_until > now and call('HGET', base .. ':h', id)
        local parcel = {
            id, queue, job, write_state(j), call('HGET', base .. ':c', id), call('HGET', base .. ':e', id), result, keyed and 1 or 0,
            call('HGET', base .. ':w', id), number(now),
        }
        leave(id, j)
        forget(id, j)
        call('HSET', base .. ':Lp:' .. leg, id, cmsgpack.pack(parcel))
        call('ZADD', base .. ':Ld:' .. leg, 0, id)
        call('ZADD', base .. ':Lo:' .. leg, 0, id)
        if keyed then
            call('HSET', base .. ':Lk:' .. leg, key_in_parcels(queue, key), id)
        end
        parcels[#parcels + 1] = parcel_of(leg, id)
    end
end
settle()
return parcels
