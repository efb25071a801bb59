-- Tells clients that wait for the end of a job, and holders.

local function tell(kind, name, what)
    call('PUBLISH', string.match(base, '^[^{]*') .. ':' .. kind .. ':' .. name, what)
end

local function tell_waiters(id)
    local packed = call('HGET', base .. ':w', id)
    if packed then
        call('HDEL', base .. ':w', id)
        local fine, inboxes = pcall(cmsgpack.unpack, packed)
        for _, inbox in ipairs(fine and type(inboxes) == 'table' and inboxes or {}) do
            tell('inbox', inbox, id)
        end
    end
end

local WATCHERS = 100

-- The newest inbox is last; if there are too many, the oldest goes.
local function watch(id, inbox)
    local packed = call('HGET', base .. ':w', id)
    local inboxes = packed and cmsgpack.unpack(packed) or {}
    for i, known in ipairs(inboxes) do
        if known == inbox then
            table.remove(inboxes, i)
            break
        end
    end
    inboxes[#inboxes + 1] = inbox
    if #inboxes > WATCHERS then
        table.remove(inboxes, 1)
    end
    call('HSET', base .. ':w', id, cmsgpack.pack(inboxes))
end
