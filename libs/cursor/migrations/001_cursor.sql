-- How far each consumer has taken each stream into this schema. It moves in the transaction that writes what the messages say.
CREATE TABLE stream_cursors (
    consumer       text   COLLATE "C" NOT NULL,
    stream         text   COLLATE "C" NOT NULL,
    epoch          bigint NOT NULL DEFAULT 0, -- grows when the stream turns out to be another incarnation, and is read from the start
    sequence       bigint NOT NULL DEFAULT 0, -- of the last message taken; 0 before the first
    event_id       text   NOT NULL DEFAULT '', -- of that message, which tells one incarnation of a stream from another
    stored_at      bigint NOT NULL DEFAULT 0, -- when the stream stored that message, in nanoseconds
    stream_created bigint NOT NULL DEFAULT 0, -- when the stream was made, in nanoseconds
    updated_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, stream)
) WITH (fillfactor = 50);
