-- Reads what settlements of one kind have in common, so that each kind is read once.

local kinds_of

do
    local FAILED_ATTEMPT, KEEP_LOST, KEEP, RESULT, UNBEGUN = 1, 2, 4, 8, 16

    function kinds_of(packed, now)
        local kinds = cmsgpack.unpack(packed)
        for i, given in ipairs(kinds) do
            local state, flags, ttl = given[1], given[2], given[4]
            kinds[i] = {
                state = state, due = given[5] >= 0 and given[5] or given[3] >= 0 and now + given[3], ttl = ttl,
                has_result = is_set(flags, RESULT), keep = is_set(flags, KEEP), failed = is_set(flags, FAILED_ATTEMPT),
                keep_lost = is_set(flags, KEEP_LOST), unbegun = is_set(flags, UNBEGUN),
                plain = state == COMPLETED and not is_set(flags, FAILED_ATTEMPT) and not is_set(flags, KEEP_LOST),
                -- What the state of every job begins with that ends so.
                done = struct.pack('>BBI4I8I8', state, 0, 0, now, state == COMPLETED and now + ttl or 0),
            }
        end
        return kinds
    end
end
