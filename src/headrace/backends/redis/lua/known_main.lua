-- Finds which slots of a schedule have fired here. ARGV: uid, slots (8 bytes each). Answers their numbers.
local found = {}
for i = 1, #ARGV[2] / 8 do
    if has_fired(tick_at(ARGV[1], (struct.unpack('>i8', ARGV[2], 8 * i - 7)))) then
        found[#found + 1] = i
    end
end
return found
