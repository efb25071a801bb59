-- Writes everything that was added up.
local function settle()
    settle_counts()
    ready.settle()
    settle_turns()
    settle_signals()
end
