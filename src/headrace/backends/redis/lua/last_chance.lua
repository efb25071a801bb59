-- Chooses, for each queue, the holder that makes room for jobs on their last chance (base:lc:qid: holder, and until when).

local NO_BOUND = 2 ^ 31
local choose, stay_chosen

do
    local CHOSEN = '>I8'

    local function chosen_of(qid)
        local found = call('GET', base .. ':lc:' .. qid)
        if not found then
            return nil, 0
        end
        local till, after = struct.unpack(CHOSEN, found)
        return string.sub(found, after), till
    end

    -- The choice is forgotten some time after it has ended.
    local function note_chosen(qid, till, holder, lease_for)
        call('SETEX', base .. ':lc:' .. qid, number(math.ceil(lease_for / 1000000) * 3 + 60), struct.pack(CHOSEN, till) .. holder)
    end

    -- For a claim that has passed over a job of the queue: returns 2 if its holder is the chosen one, else 1.
    function choose(qid, now, holder, lease_for)
        local other, till = chosen_of(qid)
        if till > now then
            return other == holder and 2 or 1
        elseif other == holder and till + lease_for > now then
            return 1
        end
        note_chosen(qid, now + lease_for, holder, lease_for)
        return 2
    end

    -- A holder that is chosen in some of these queues (keyed by number) and claims one job without a bound stays chosen.
    function stay_chosen(qids, now, holder, lease_for)
        local asked, keys = {}, {}
        for qid in pairs(qids) do
            asked[#asked + 1], keys[#keys + 1] = qid, base .. ':lc:' .. qid
        end
        for first = 1, #keys, MANY do
            for i, found in ipairs(call('MGET', unpack(keys, first, math.min(first + MANY - 1, #keys)))) do
                if found and string.sub(found, 9) == holder then
                    note_chosen(asked[first + i - 1], now + math.floor(lease_for / 3), holder, lease_for)
                end
            end
        end
    end
end
