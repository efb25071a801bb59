-- Makes, changes and removes schedules.
-- ARGV: now or '', names (msgpack), changes (CHANGE); then, for each that is not a removal, the schedule (SCHEDULE) and its definition.
-- Answers for each whether it was done (1).

-- The version that must be stored (0: none), kind, and for a move the target shard.
local CHANGE = '>I8BI2'
local CHANGE_SIZE = 11
local DROP, KEEP, MOVE = 0, 1, 2

local now = clock(ARGV[1])
local answers, changed = {}, false
local at = 4
for i, name in ipairs(cmsgpack.unpack(ARGV[2])) do
    local expect, kind, target = struct.unpack(CHANGE, ARGV[3], (i - 1) * CHANGE_SIZE + 1)
    local was = find_schedule(name)
    local fits = (was and was.version or 0) == expect
    if fits and kind == DROP then
        if was then
            drop_schedule(name, was)
        end
    elseif fits then
        local s = read_schedule(ARGV[at])
        s.version, s.updated_at, s.created_at = expect + 1, now, was and was.created_at or now
        if kind == KEEP then
            keep_schedule(name, was, s, ARGV[at + 1])
        else
            drop_schedule(name, was)
            call('HSET', base .. ':So', name, send(target, 'schedule', now, {name, write_schedule(s), ARGV[at + 1]}))
        end
    end
    if kind ~= DROP then
        at = at + 2
    end
    answers[i] = fits and 1 or 0
    changed = changed or fits
end
if changed then
    tell('schedules', 'all', '')
end
return answers
