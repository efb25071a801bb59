-- Reads and writes the sheets of trackers. Names are data: a name of a key tells how long the tracker's name in it is.

-- version, due_at, run, ran_at (0: never), subjects; then the content
local SHEET = '>I8I8I8I8I4'
local SHEET_SIZE = 36
local SUBJECTS_AT = 33
local DUE_AT = 9
local NO_VERSION = string.rep('\0', 8)

local tracks = {}

function tracks.name(tracker, tier)
    return #tracker .. ':' .. tracker .. ':' .. tier
end

function tracks.lows(tracker, tier)
    return base .. ':Yl:' .. tracks.name(tracker, tier)
end

function tracks.due(tracker)
    return base .. ':Yd:' .. tracker
end

function tracks.sheet(tracker, tier, low)
    return base .. ':Ys:' .. low .. ':' .. tracks.name(tracker, tier)
end

-- In the list of what is due; the digits come first, so that a tier may have any name.
function tracks.member(tier, low)
    return low .. ':' .. tier
end

-- Adds what changed to the numbers of a tier.
function tracks.count(tracker, tier, was, is)
    local key, name = base .. ':Yn', tracks.name(tracker, tier)
    local sheets, subjects, bytes = 0, 0, 0
    local known = call('HGET', key, name)
    if known then
        sheets, subjects, bytes = unpack(cmsgpack.unpack(known))
    end
    if was then
        sheets, bytes = sheets - 1, bytes - #was + SHEET_SIZE
        subjects = subjects - struct.unpack('>I4', was, SUBJECTS_AT)
    end
    if is then
        sheets, bytes = sheets + 1, bytes + #is - SHEET_SIZE
        subjects = subjects + struct.unpack('>I4', is, SUBJECTS_AT)
    end
    if sheets > 0 then
        call('HSET', key, name, cmsgpack.pack({sheets, subjects, bytes}))
    else
        call('HDEL', key, name)
    end
end
