-- Finds the schedules that must be looked at now.
-- ARGV: now or '', limit, the share, of how many. Answers now; name, SCHEDULE and definition of each, by (plan_priority, look_at, name);
-- and the time until the next one (-1: there is none, or more are due). No schedule comes before the first of its list, so the first N of
-- a priority are in the N lists whose first entries come first.

local PIECE = 100

local now = clock(ARGV[1])
local limit, share, shares = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local at = number(now)

-- Calls ``visit`` with each list of a priority whose first schedule is due between two instants, and with that schedule, until it returns
-- true.
local function each_bucket(priority, from, to, visit)
    local first = 0
    while true do
        local names = call('ZRANGEBYSCORE', base .. ':Sh:' .. priority, from, to, 'LIMIT', first, PIECE)
        for _, packed in ipairs(ask('HMGET', base .. ':S', names)) do
            local bucket = struct.unpack('>I2', packed, BUCKET_AT)
            if bucket % shares == share and visit(base .. ':Sl:' .. priority .. ':' .. bucket, packed) then
                return
            end
        end
        if #names < PIECE then
            return
        end
        first = first + PIECE
    end
end

local function comes_first(a, b)
    return a[2] < b[2] or (a[2] == b[2] and bytes_before(a[1], b[1]))
end

-- Returns the first due schedules of some lists, in order.
local function first_of(keys, want)
    local piece = math.ceil(2 * want / #keys)
    while true do
        local items, last = {}, nil
        for _, key in ipairs(keys) do
            local found = call('ZRANGEBYSCORE', key, '-inf', at, 'WITHSCORES', 'LIMIT', 0, piece)
            for i = 1, #found, 2 do
                items[#items + 1] = {found[i], tonumber(found[i + 1])}
            end
            if #found == 2 * piece and (not last or comes_first(items[#items], last)) then
                last = items[#items]
            end
        end
        table.sort(items, comes_first)
        while last and items[#items] ~= last do
            items[#items] = nil
        end
        if not last or #items >= want then
            return items
        end
        piece = 4 * piece
    end
end

local priorities = call('ZRANGE', base .. ':Sr', 0, -1)
local names, due = {}, {}
for _, priority in ipairs(priorities) do
    local want, keys = limit - #names, {}
    if want <= 0 then
        break
    end
    each_bucket(priority, '-inf', at, function(key)
        keys[#keys + 1], due[#due + 1] = key, key
        return #keys == want
    end)
    for i, item in ipairs(#keys > 0 and first_of(keys, want) or {}) do
        if i <= want then
            names[#names + 1] = item[1]
        end
    end
end

local coming
if #names < limit then
    local function consider(instant)
        coming = math.min(coming or instant, instant)
    end
    for _, key in ipairs(due) do
        local first = call('ZRANGEBYSCORE', key, '(' .. at, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
        if first[2] then
            consider(tonumber(first[2]))
        end
    end
    for _, priority in ipairs(priorities) do
        each_bucket(priority, '(' .. at, '+inf', function(_, packed)
            consider(read_schedule(packed).look_at)
            return true
        end)
    end
end

local answers = {}
local records, definitions = ask('HMGET', base .. ':S', names), ask('HMGET', base .. ':Sd', names)
for i, name in ipairs(names) do
    answers[3 * i - 2], answers[3 * i - 1], answers[3 * i] = name, records[i], definitions[i]
end
return {at, answers, number(coming and coming - now or -1)}
