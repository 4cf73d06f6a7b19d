-- Where each sink begins when the server knows no position of it, and what ails it.
CREATE TABLE sinks (
    name          text   COLLATE "C" PRIMARY KEY,
    next_sequence bigint NOT NULL, -- of DEPLOYS; all before it is delivered, dead or not for the sink
    trouble       text   NOT NULL DEFAULT '', -- why it does not get through; '' while it does
    trouble_since timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now()
);

-- Facts that a sink has done with, so that one that comes again is known. Kept for a week.
CREATE TABLE sink_deliveries (
    sink     text   COLLATE "C" NOT NULL,
    key      text   COLLATE "C" NOT NULL, -- id of the event
    sequence bigint NOT NULL,             -- on its stream
    outcome  text   NOT NULL,             -- delivered, combined (into a later one of its thread) or dead
    at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, key)
);
CREATE INDEX sink_deliveries_at ON sink_deliveries (at);

-- What external things are called: the message of a rollout, the comment of a group. Kept for 400 days after the last change.
CREATE TABLE sink_threads (
    sink       text  COLLATE "C" NOT NULL,
    thread     text  COLLATE "C" NOT NULL,
    value      jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, thread)
) WITH (fillfactor = 70);
CREATE INDEX sink_threads_updated_at ON sink_threads (updated_at);
