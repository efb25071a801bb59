-- Holds keys that outlive their jobs. ARGV: now or '', then queue, key, id and until when of each.

local now = clock(ARGV[1])
for i = 2, #ARGV, 4 do
    local qid = qid_of(ARGV[i])
    local field = key_field(qid, ARGV[i + 1])
    local packed = call('HGET', base .. ':k', field)
    local free = not packed
    if packed and #packed >= KEY_SIZE then
        local _, held_until, kind = struct.unpack(KEY, packed)
        free = kind == OUTLIVES and held_until <= now
    end
    if free then
        call('HSET', base .. ':k', field, struct.pack(KEY, ARGV[i + 2], tonumber(ARGV[i + 3]), OUTLIVES))
        call('ZADD', base .. ':kx', ARGV[i + 3], field)
    end
end
return 0
