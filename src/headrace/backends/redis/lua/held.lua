-- Completed jobs whose results are held stay beyond their age. Up to which of them all that is left is held, and until when at
-- least, is remembered, so that a sweep does not walk over them each time.

-- Seconds.
local MEMORY = 3600

-- The rank to go on at, and the last of those (its instant, its id, and till when all are held), if any are remembered.
local function after_held(now)
    local instant, till, id = string.match(call('GET', base .. ':dm') or '', '^(%d+):(%d+):(.+)$')
    if not till or tonumber(till) <= now then
        return 0
    end
    local key = base .. ':d:' .. COMPLETED
    local rank = call('ZRANK', key, id)
    return rank and rank + 1 or call('ZCOUNT', key, '-inf', '(' .. instant), instant, id, tonumber(till)
end

local function remember_held(instant, id, till)
    call('SETEX', base .. ':dm', MEMORY, instant .. ':' .. number(till) .. ':' .. id)
end
