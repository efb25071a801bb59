-- Keys, and who has them.

local function key_of(id)
    return described(call('HGET', base .. ':j', id))[1] or ''
end

local function key_field(qid, key)
    return qid .. ':' .. key
end

-- Whether the job that has a key is gone, or was set aside, and could not give the key back, as nobody knew of it.
local function is_lost(id)
    local packed = call('HGET', base .. ':s', id)
    if packed then
        return string.sub(packed, STATE_SIZE + 1) == 'corrupt'
    end
    return not (call('ZSCORE', base .. ':a', id) or call('ZSCORE', base .. ':m', id))
end

-- Who has the key now: the id, and whether that keeps others from taking it. ``seen``: ids of jobs that are about to be stored.
local function key_holder(qid, key, now, hold_failed, seen)
    local packed = call('HGET', base .. ':k', key_field(qid, key))
    if not packed or #packed < KEY_SIZE then
        return nil, false
    end
    local id, held_until, kind = struct.unpack(KEY, packed)
    return id, (kind == 0 and ((seen and seen[id]) or not is_lost(id))) or held_until > now or (kind == 2 and hold_failed)
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
