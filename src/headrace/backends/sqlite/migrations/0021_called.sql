-- How many jobs of each group are called.
ALTER TABLE groups ADD COLUMN called INTEGER NOT NULL DEFAULT 0;

UPDATE groups SET called = (SELECT count(*) FROM called AS c WHERE c.gid = groups.gid);

CREATE TRIGGER called_more AFTER INSERT ON called BEGIN
    UPDATE groups SET called = called + 1 WHERE gid = new.gid;
END;

CREATE TRIGGER called_less AFTER DELETE ON called BEGIN
    UPDATE groups SET called = called - 1 WHERE gid = old.gid;
END;
