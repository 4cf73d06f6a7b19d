-- HTTP status of the response; 0 without one.
ALTER TABLE attempts ADD COLUMN status int NOT NULL DEFAULT 0;
-- The result of a request changes no index: it only needs room in the page.
ALTER TABLE attempts SET (fillfactor = 70);
