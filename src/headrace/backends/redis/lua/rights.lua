-- Finds the commands that Headrace needs and the user may not run, and whether the keys and channels of this store are out of its reach.
-- Nothing is run here. A server that cannot tell, such as Redis before 7, refuses later. ARGV: a key; a channel; the commands. Answers the
-- commands, then '~' for the keys and '&' for the channels. The server does not check the number of arguments in such a question: only
-- those given here may be left out.

local lacking = {}

if redis.acl_check_cmd then
    local key, channel = ARGV[1], ARGV[2]
    local keys = redis.acl_check_cmd('EVAL', '', '1', key)
    local others = {
        INFO = {}, PING = {}, TIME = {}, EVAL = { '', '0' }, EVALSHA = { '', '0' }, SUBSCRIBE = {}, PUBLISH = {},
        ['CLIENT ID'] = {}, ['CLIENT UNBLOCK'] = { '1' },
    }
    local of_keys = { BLPOP = { key, '0' }, EXISTS = { key }, DEL = { key }, MGET = { key } }
    for i = 3, #ARGV do
        local words = {}
        for word in string.gmatch(ARGV[i], '%S+') do
            words[#words + 1] = word
        end
        local arguments = others[ARGV[i]]
        if keys and not arguments then
            arguments = of_keys[ARGV[i]] or { key, '0', '0' }
        end
        for _, argument in ipairs(arguments or {}) do
            words[#words + 1] = argument
        end
        if arguments and not redis.acl_check_cmd(unpack(words)) then
            lacking[#lacking + 1] = ARGV[i]
        end
    end
    if not keys then
        lacking[#lacking + 1] = '~'
    end
    for _, words in ipairs({ { 'SUBSCRIBE', channel }, { 'PUBLISH', channel, '' } }) do
        if redis.acl_check_cmd(words[1]) and not redis.acl_check_cmd(unpack(words)) then
            lacking[#lacking + 1] = '&'
            break
        end
    end
end

return lacking
