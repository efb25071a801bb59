-- Reads and writes documents. ARGV: 'get' and names; or 'find', prefix, name to begin after, limit; or 'put', name, version, and the body,
-- if it is not to be removed. Answers version and body of each, or nothing; the names too if they were looked for; or whether it was done.

local key = base .. ':K'

local function version_of(packed)
    return packed and struct.unpack('>I8', packed) or 0
end

if ARGV[1] == 'get' then
    local answers = {}
    for i = 2, #ARGV do
        local packed = call('HGET', key, ARGV[i])
        answers[i - 1] = packed and {number(version_of(packed)), string.sub(packed, 9)}
    end
    return answers
elseif ARGV[1] == 'find' then
    local prefix, after, found, answers = ARGV[2], ARGV[3], {}, {}
    for _, name in ipairs(call('HKEYS', key)) do
        if before(after, name) and string.sub(name, 1, #prefix) == prefix then
            found[#found + 1] = name
        end
    end
    table.sort(found, before)
    for i = 1, math.min(#found, tonumber(ARGV[4])) do
        local packed = call('HGET', key, found[i])
        answers[i] = {found[i], number(version_of(packed)), string.sub(packed, 9)}
    end
    return answers
end
local version = tonumber(ARGV[3])
if version_of(call('HGET', key, ARGV[2])) ~= version then
    return 0
elseif ARGV[4] then
    call('HSET', key, ARGV[2], struct.pack('>I8', version + 1) .. ARGV[4])
else
    call('HDEL', key, ARGV[2])
end
return 1
