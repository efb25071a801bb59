-- Keeps parts of a running job.
-- ARGV: name of the inbox of the job, its id, for how many milliseconds, how many; then the parts: epoch and number (8 bytes each), body.

local key = base .. ':parts:' .. ARGV[1]
local last = call('ZREVRANGEBYLEX', key, '+', '-', 'LIMIT', 0, 1)[1]
last = last and string.sub(last, 1, 16)
for i = 5, #ARGV do
    local place = string.sub(ARGV[i], 1, 16)
    if not last or before(last, place) then
        if last and string.sub(last, 1, 8) ~= string.sub(place, 1, 8) then
            call('DEL', key)
        end
        call('ZADD', key, 0, ARGV[i])
        last = place
    end
end
call('ZREMRANGEBYRANK', key, 0, -tonumber(ARGV[4]) - 1)
call('PEXPIRE', key, ARGV[3])
tell('inbox', ARGV[1], ARGV[2])
