-- Controllers. A deleted one stays while jobs wait for it.
CREATE TABLE controllers (
    id         bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    -- project, group or instance; owner_id is 0 for the instance.
    level      text        NOT NULL,
    owner_id   bigint      NOT NULL,
    name       text        NOT NULL,
    position   int         NOT NULL,
    revision   bigint      NOT NULL DEFAULT 1,
    settings   jsonb       NOT NULL,
    -- Sealed signing secrets of a webhook: the current one, and the one before. That one signs until secret_before_until.
    secret     bytea       NOT NULL DEFAULT '',
    secret_before_until timestamptz,
    created_by bigint      NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    deleted_at timestamptz
);
CREATE UNIQUE INDEX controllers_by_name ON controllers (level, owner_id, name) WHERE deleted_at IS NULL;
CREATE INDEX controllers_of_owner ON controllers (level, owner_id, position) WHERE deleted_at IS NULL;

-- Admission of jobs: one row for the last preparation of each.
CREATE TABLE jobs (
    job_id      bigint      PRIMARY KEY,
    preparation bigint      NOT NULL,
    project_id  bigint      NOT NULL,
    -- Content of the event about the job; state of the chain, with predefined variables and no secret.
    subject     jsonb       NOT NULL,
    state       jsonb       NOT NULL,
    -- Larger after each change of the row: writers compare it.
    version     bigint      NOT NULL DEFAULT 1,
    -- open, admitted, rejected or canceled.
    outcome     text        NOT NULL,
    -- The cause of a rejection.
    cause       text        NOT NULL DEFAULT '',
    begun_at    timestamptz NOT NULL,
    deadline    timestamptz NOT NULL,
    -- The current controller must have decided then; null without one.
    answer_by   timestamptz,
    ended_at    timestamptz
) WITH (fillfactor = 70);
CREATE INDEX jobs_of_project ON jobs (project_id, job_id DESC);
CREATE INDEX jobs_due ON jobs (answer_by) WHERE answer_by IS NOT NULL;
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;

-- What is to be asked: one row for each open job. Replicas take rows by leases.
CREATE TABLE asks (
    job_id        bigint      PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    controller_id bigint      NOT NULL,
    attempt       int         NOT NULL,
    -- It is sent then, or again when the lease of the replica that took it has ended. Null: a callback is awaited.
    due_at        timestamptz
) WITH (fillfactor = 70);
CREATE INDEX asks_due ON asks (controller_id, due_at);

-- Attempts to ask webhooks: one row for each request that was sent or tried.
CREATE TABLE attempts (
    id            bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    job_id        bigint      NOT NULL REFERENCES jobs ON DELETE CASCADE,
    controller_id bigint      NOT NULL,
    attempt       int         NOT NULL,
    sent_at       timestamptz NOT NULL,
    ended_at      timestamptz,
    -- What became of the request, for people; empty while nothing is recorded.
    result        text        NOT NULL DEFAULT '',
    -- Hashes of the callback token and of the read token that the request has; null without a public address.
    callback_hash bytea,
    read_hash     bytea       UNIQUE,
    expires_at    timestamptz NOT NULL,
    used_at       timestamptz
);
CREATE INDEX attempts_of_job ON attempts (job_id, controller_id, attempt);
