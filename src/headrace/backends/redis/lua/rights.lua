-- Which of the commands that Headrace needs the user may not run with the keys and channels of this store. Nothing is
-- run here. A server that cannot tell, as Redis before 7, is taken at its word later. ARGV: a channel; the commands.

local lacking = {}

if redis.acl_check_cmd then
    local key = KEYS[1] .. ':-'
    local others = {
        INFO = {}, PING = {}, TIME = {}, EVAL = { '', '1', key }, EVALSHA = { '', '1', key }, BLPOP = { key, '0' },
        SUBSCRIBE = { ARGV[1] }, PUBLISH = { ARGV[1], '' }, ['CLIENT ID'] = {}, ['CLIENT UNBLOCK'] = { '1' },
        EXISTS = { key }, DEL = { key },
    }
    for i = 2, #ARGV do
        local words = {}
        for word in string.gmatch(ARGV[i], '%S+') do
            words[#words + 1] = word
        end
        for _, argument in ipairs(others[ARGV[i]] or { key, '0', '0' }) do
            words[#words + 1] = argument
        end
        if not redis.acl_check_cmd(unpack(words)) then
            lacking[#lacking + 1] = ARGV[i]
        end
    end
end

return lacking
