-- Whose dead letters go where there are too many: those of the tenants that hold most.

local PAGE = 20
local HEAVIEST = {jobs = ':Dj', bytes = ':Db'}

-- The first bound that they are over, and by how much; -1: no bound.
local function bound_of(jobs, bytes, most, most_bytes)
    if most >= 0 and jobs > most then
        return 'jobs', jobs - most
    elseif most_bytes >= 0 and bytes > most_bytes then
        return 'bytes', bytes - most_bytes
    end
end

-- The tenants that hold most, and how much, up to one more than the limit.
local function heaviest(bound, limit)
    return call('ZREVRANGE', base .. HEAVIEST[bound], 0, limit, 'WITHSCORES')
end

-- How much each of them gives of what is too much, so that nobody is left with more than need be. Where there may be more of them than are
-- told of, all stay as heavy as the last one, but for one.
local function gives(held, excess, limit)
    local floor, total = #held > limit and math.max(held[#held] - 1, 0) or 0, 0
    for _, mine in ipairs(held) do
        total = total + mine
    end
    excess = math.min(excess, total - #held * floor)
    local givers = 0
    total = 0
    repeat
        givers = givers + 1
        total = total + held[givers]
    until total - givers * (held[givers + 1] or floor) >= excess
    local level = math.floor((total - excess) / givers)
    local rest, gifts = total - excess - level * givers, {}
    for i = 1, givers do
        gifts[i] = held[i] - level - (i <= rest and 1 or 0)
    end
    return gifts
end

-- The oldest dead letters of a tenant, up to this gift: ``found`` gets the id, the state and the instant of each, up to one more than the
-- limit. One that is dead no longer, but could not be read when it left, leaves now.
local function give(tenant, bound, gift, spared, limit, dry, found)
    local at, given = 0, 0
    repeat
        local piece = call('ZRANGEBYSCORE', dead.key(tenant), '-inf', number(spared), 'WITHSCORES', 'LIMIT', at, PAGE)
        for i = 1, #piece, 2 do
            local id, j = piece[i], read_state(call('HGET', base .. ':s', piece[i]))
            if given >= gift or #found > limit then
                return
            elseif call('ZSCORE', base .. ':d:' .. FAILED, id) then
                found[#found + 1] = {id, j, piece[i + 1]}
                given = given + (bound == 'jobs' and 1 or j.size)
            elseif not dry then
                dead.remove(tenant, id, j.size)
                at = at - 1
            end
        end
        at = at + PAGE
    until #piece < 2 * PAGE
end

-- What goes, up to one more than the limit. Where nobody holds more than one, the oldest of all go.
local function condemn(bound, excess, spared, limit, dry)
    local told, held, found = heaviest(bound, limit), {}, {}
    for i = 2, #told, 2 do
        held[#held + 1] = tonumber(told[i])
    end
    excess = bound == 'jobs' and math.min(excess, limit + 1) or excess
    if bound == 'jobs' and (held[1] or 0) <= 1 then
        for _, id in ipairs(call('ZRANGEBYSCORE', base .. ':d:' .. FAILED, '-inf', number(spared), 'LIMIT', 0, excess)) do
            found[#found + 1] = {id, read_state(call('HGET', base .. ':s', id))}
        end
    elseif #held > 0 then
        for i, gift in ipairs(gives(held, excess, limit)) do
            give(told[2 * i - 1], bound, gift, spared, limit, dry, found)
        end
    end
    for _, one in ipairs(found) do
        one[2].state = FAILED
    end
    return found
end
