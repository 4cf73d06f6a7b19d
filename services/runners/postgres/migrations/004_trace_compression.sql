-- LZ4 compresses output of jobs as well as the default method, in a fifth of the time. A server may lack it. Parts that
-- are stored keep their method.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
        ALTER TABLE trace_parts ALTER COLUMN data SET COMPRESSION lz4;
    END IF;
END $$;
