-- A sign of life. Answers the clock.
return {'OK', whole(now)}
