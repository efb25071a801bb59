-- Compares ids and names by their bytes: a server with a locale compares strings by the rules of a language.

local ID = '>I4I4I4I4'

local function bytes_before(a, b)
    for i = 1, math.min(#a, #b) do
        local x, y = string.byte(a, i), string.byte(b, i)
        if x ~= y then
            return x < y
        end
    end
    return #a < #b
end

local function before(a, b)
    if #a ~= 16 or #b ~= 16 then
        return bytes_before(a, b)
    end
    local a1, a2, a3, a4 = struct.unpack(ID, a)
    local b1, b2, b3, b4 = struct.unpack(ID, b)
    if a1 ~= b1 then
        return a1 < b1
    elseif a2 ~= b2 then
        return a2 < b2
    elseif a3 ~= b3 then
        return a3 < b3
    end
    return a4 < b4
end
