-- All that was added up, written once.
local function settle()
    settle_counts()
    settle_turns()
    settle_signals()
end
