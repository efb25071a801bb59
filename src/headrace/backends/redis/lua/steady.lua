-- Reads a worker as its last beat left it (name, queues, slots, busy, started_at, seen_at, steady_since); nil if there is none, or it
-- cannot be read.
local function worker_of(holder)
    local whole, worker = pcall(cmsgpack.unpack, call('HGET', base .. ':W', holder) or '')
    if whole and type(worker) == 'table' and tonumber(worker[6]) and tonumber(worker[7]) then
        return worker
    end
end

-- Whether the holder's own beats have come without a gap, and lately: then the others have had time to renew the leases that have run out.
-- ``given`` is where ARGV has: the holder or '', gap, steady.
local function is_steady(now, given)
    if ARGV[given] == '' then
        return true
    end
    local worker = worker_of(ARGV[given])
    if not worker then
        return false
    end
    return tonumber(worker[6]) >= now - tonumber(ARGV[given + 1]) and tonumber(worker[7]) <= now - tonumber(ARGV[given + 2])
end
