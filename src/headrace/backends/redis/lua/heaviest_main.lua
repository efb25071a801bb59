-- Who has most of the dead letters. ARGV: ``jobs`` or ``bytes``, limit. Answers tenants and what they hold, one more than that at most.

return heaviest(ARGV[1], tonumber(ARGV[2]))
