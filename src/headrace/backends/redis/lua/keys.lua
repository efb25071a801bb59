-- Keys, and who has them.

local function key_of(id)
    return described(call('HGET', base .. ':j', id))[1]
end

local function key_field(qid, key)
    return qid .. ':' .. key
end

-- Who has the key now: the id, and whether that keeps others from taking it.
local function key_holder(qid, key, now, hold_failed)
    local packed = call('HGET', base .. ':k', key_field(qid, key))
    if not packed then
        return nil, false
    end
    local id, held_until, kind = struct.unpack(KEY, packed)
    return id, kind == 0 or held_until > now or (kind == 2 and hold_failed)
end

local function take_key(id, qid, key)
    call('HSET', base .. ':k', key_field(qid, key), struct.pack(KEY, id, 0, 0))
end

-- The end of the job that has it.
local function end_key(id, j, held_until)
    if j.keyed == 1 then
        local field = key_field(j.qid, key_of(id))
        local packed = call('HGET', base .. ':k', field)
        if packed and string.sub(packed, 1, 16) == id then
            call('HSET', base .. ':k', field, struct.pack(KEY, id, held_until, j.state == FAILED and 2 or 1))
        end
    end
end

local function drop_key(id, j)
    if j.keyed == 1 then
        local field = key_field(j.qid, key_of(id))
        local packed = call('HGET', base .. ':k', field)
        if packed and string.sub(packed, 1, 16) == id then
            call('HDEL', base .. ':k', field)
        end
    end
end
