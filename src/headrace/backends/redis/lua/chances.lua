-- Who makes room for jobs on their last chance: of each queue (base:lc:qid) one holder, and until when.

local CHOSEN = '>I8'
local NO_BOUND = 2 ^ 31

local function chosen_of(qid)
    local found = call('GET', base .. ':lc:' .. qid)
    if not found then
        return nil, 0
    end
    local till, after = struct.unpack(CHOSEN, found)
    return string.sub(found, after), till
end

-- It is forgotten when it has meant nothing for a while.
local function note_chosen(qid, till, holder, lease_for)
    call('SETEX', base .. ':lc:' .. qid, number(math.ceil(lease_for / 1000000) * 3 + 60), struct.pack(CHOSEN, till) .. holder)
end

-- A claim has passed over a job of the queue: 2, if its holder is the one, else 1.
local function choose(qid, now, holder, lease_for)
    local other, till = chosen_of(qid)
    if till > now then
        return other == holder and 2 or 1
    elseif other == holder and till + lease_for > now then
        return 1
    end
    note_chosen(qid, now + lease_for, holder, lease_for)
    return 2
end

-- Who was chosen, and claims one job without a bound, stays so.
local function stay_chosen(qid, now, holder, lease_for)
    if chosen_of(qid) == holder then
        note_chosen(qid, now + math.floor(lease_for / 3), holder, lease_for)
    end
end
