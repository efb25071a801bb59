-- Finds the tenants with most dead letters. ARGV: ``jobs`` or ``bytes``, limit. Answers tenants and how much they have, at most one more
-- than the limit.

return heaviest(ARGV[1], tonumber(ARGV[2]))
