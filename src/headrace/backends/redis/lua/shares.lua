-- Chooses which dead letters go if there are too many: those of the tenants that have most.

local PAGE = 20
local HEAVIEST = {jobs = ':Dj', bytes = ':Db'}

-- Returns the first bound that is exceeded, and by how much; -1: no bound.
local function bound_of(jobs, bytes, most, most_bytes)
    if most >= 0 and jobs > most then
        return 'jobs', jobs - most
    elseif most_bytes >= 0 and bytes > most_bytes then
        return 'bytes', bytes - most_bytes
    end
end

-- Returns the tenants that have most, and how much, up to one more than the limit.
local function heaviest(bound, limit)
    return call('ZREVRANGE', base .. HEAVIEST[bound], 0, limit, 'WITHSCORES')
end

-- Returns how much of the excess each tenant gives, so that no tenant is left with more than necessary. If there may be more tenants than
-- were read, all keep at least one less than the last one has.
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

-- Collects the oldest dead letters of a tenant, up to its gift: ``found`` gets id, state (j) and instant of each, up to one more than
-- the limit. An entry whose job is no dead letter any more, but could not be read when it left, is removed now.
local function give(tenant, bound, gift, spared, limit, dry, found)
    local at, given = 0, 0
    repeat
        local piece = call('ZRANGEBYSCORE', dead.key(tenant), '-inf', number(spared), 'WITHSCORES', 'LIMIT', at, PAGE)
        for i = 1, #piece, 2 do
            local id, j = piece[i], read_state(call('HGET', base .. ':s', piece[i]))
            if given >= gift or #found > limit then
                return
            elseif call('ZSCORE', base .. ':d:' .. FAILED, id) then
                j.state = FAILED
                found[#found + 1] = {id = id, j = j, instant = piece[i + 1]}
                given = given + (bound == 'jobs' and 1 or j.size)
            elseif not dry then
                dead.remove(tenant, id, j.size)
                at = at - 1
            end
        end
        at = at + PAGE
    until #piece < 2 * PAGE
end

-- Returns what goes, up to one more than the limit. If no tenant has more than one, the oldest go.
local function condemn(bound, excess, spared, limit, dry)
    local most, held, found = heaviest(bound, limit), {}, {}
    for i = 2, #most, 2 do
        held[#held + 1] = tonumber(most[i])
    end
    excess = bound == 'jobs' and math.min(excess, limit + 1) or excess
    if bound == 'jobs' and (held[1] or 0) <= 1 then
        for _, id in ipairs(call('ZRANGEBYSCORE', base .. ':d:' .. FAILED, '-inf', number(spared), 'LIMIT', 0, excess)) do
            local j = read_state(call('HGET', base .. ':s', id))
            j.state = FAILED
            found[#found + 1] = {id = id, j = j}
        end
    elseif #held > 0 then
        for i, gift in ipairs(gives(held, excess, limit)) do
            give(most[2 * i - 1], bound, gift, spared, limit, dry, found)
        end
    end
    return found
end
