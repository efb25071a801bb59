-- Reads and writes ticks: what became of each slot of a schedule.

-- slot, run_at, outcome, planned_at, count, job; and once its end was noted: how long it waited, how long it ran (8 bytes each), its state
-- (or a code for it).
local TICK = '>i8i8BI8I4c16'
local TICK_SIZE = 45
local OUTCOME_AT = 17
-- uid, slot
local PLANNED = '>c16i8'
local FIRED, SKIPPED, MISSED = 1, 2, 3

local function ticks_of(uid)
    return base .. ':T:' .. uid
end

local function tick_at(uid, slot)
    local at = number(slot)
    return call('ZRANGE', ticks_of(uid), at, at, 'BYSCORE')[1]
end

local function has_fired(tick)
    return tick and string.byte(tick, OUTCOME_AT) == FIRED
end

-- Replaces the tick of this slot, if there is one.
local function put_tick(was, uid, slot, run_at, outcome, now, count, job)
    if was then
        call('ZREM', ticks_of(uid), was)
    end
    call('ZADD', ticks_of(uid), number(slot), struct.pack(TICK, slot, run_at, outcome, now, count, job))
    call('ZADD', base .. ':T', number(now), struct.pack(PLANNED, uid, slot))
end
