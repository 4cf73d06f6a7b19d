-- A message is compressed twice in its short life here, in its row and out of it, by a faster method where the server has it.
DO $$
BEGIN
    ALTER TABLE outbox ALTER COLUMN data SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END
$$;
