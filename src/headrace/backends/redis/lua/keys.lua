-- Takes keys, looks up who has them, and gives them back.

local key_of, key_field, key_owner, named_by, take_key, bring_key, end_key, drop_key

do
    function key_of(id)
        return labels_of(call('HGET', base .. ':j', id))[1] or ''
    end

    function key_field(qid, key)
        return qid .. ':' .. key
    end

    -- Whether the job that has a key is gone or was set aside: then it could not give the key back.
    local function is_lost(id)
        local packed = call('HGET', base .. ':s', id)
        if packed then
            return string.sub(packed, STATE_SIZE + 1) == 'corrupt'
        end
        return not (call('ZSCORE', base .. ':a', id) or call('ZSCORE', base .. ':m', id))
    end

    -- Fields of keys that were found to outlive their jobs.
    local outliving = {}

    -- Returns the id that has the key, whether that keeps others from taking it, and whether the key outlives its job. ``seen``: ids of
    -- jobs that are about to be stored. ``rule``: 1 if a failed job keeps its key, plus 2 if only a live job does, or 4 if only one that waits,
    -- plus what the row replaces, times 8 (see replace_waiting).
    function key_owner(qid, key, now, rule, seen)
        local hold_failed, till = rule % 2 == 1, math.floor(rule / 2) % 4
        local field = key_field(qid, key)
        local packed = call('HGET', base .. ':k', field)
        if not packed or #packed < KEY_SIZE then
            return nil, false
        end
        local id, held_until, kind = struct.unpack(KEY, packed)
        local held = till == 0 and held_until > now
        if kind == OUTLIVES then
            outliving[field] = true
            return id, held, true
        end
        if kind ~= 0 then
            return id, held or (kind == 2 and hold_failed)
        elseif seen and seen[id] then
            return id, true
        end
        local j = till == 2 and find(id)
        return id, not is_lost(id) and not (j and j.state == RUNNING)
    end

    -- Returns the job that a key names, or ''.
    function named_by(queue, key)
        local qid = call('HGET', base .. ':q', queue)
        local packed = qid and call('HGET', base .. ':k', key_field(qid, key))
        return packed and string.byte(packed, KEY_SIZE) ~= OUTLIVES and string.sub(packed, 1, 16) or ''
    end

    -- Takes a key that is free according to ``key_owner``.
    function take_key(id, qid, key)
        local field = key_field(qid, key)
        call('HSET', base .. ':k', field, struct.pack(KEY, id, 0, 0))
        if outliving[field] then
            call('ZREM', base .. ':kx', field)
            outliving[field] = nil
        end
    end

    -- The job has come to this queue: it takes its key here, unless another has it.
    function bring_key(id, j, now)
        if j.keyed == 1 then
            local key = key_of(id)
            local _, taken = key_owner(j.qid, key, now, 0)
            if taken then
                j.keyed = 0
            else
                take_key(id, j.qid, key)
            end
        end
    end

    -- Returns the field of a job's key and its entry, if the job has the key.
    local function own_field(id, j)
        if j.keyed == 1 then
            local field = key_field(j.qid, key_of(id))
            local packed = call('HGET', base .. ':k', field)
            if packed and string.sub(packed, 1, 16) == id then
                return field, packed
            end
        end
    end

    -- The job that has the key has ended.
    function end_key(id, j, held_until)
        local field = own_field(id, j)
        if field then
            call('HSET', base .. ':k', field, struct.pack(KEY, id, held_until, j.state == FAILED and 2 or 1))
        end
    end

    -- The job is about to be removed. With ``held_after``, a key that is held beyond that instant outlives it.
    function drop_key(id, j, held_after)
        local field, packed = own_field(id, j)
        if not field then
            return
        end
        local held_until = held_after and #packed >= KEY_SIZE and select(2, struct.unpack(KEY, packed)) or 0
        if held_until > (held_after or 0) then
            call('HSET', base .. ':k', field, struct.pack(KEY, id, held_until, OUTLIVES))
            call('ZADD', base .. ':kx', number(held_until), field)
        else
            call('HDEL', base .. ':k', field)
        end
    end
end
