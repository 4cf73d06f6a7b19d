-- Ids of runners, their managers, pipelines, definitions and jobs come from one sequence, whose range no other cell
-- shares: a move to another cell keeps them.
CREATE SEQUENCE ids;

-- Runners of the cell.
CREATE TABLE runners (
    id                bigint      PRIMARY KEY DEFAULT nextval('ids'),
    type              text        NOT NULL CHECK (type IN ('instance_type', 'group_type', 'project_type')),
    -- 0 for runners of the instance.
    organization_id   bigint      NOT NULL DEFAULT 0,
    -- Of runners of a group; else 0.
    group_id          bigint      NOT NULL DEFAULT 0,
    -- Of runners of projects; else empty.
    project_ids       bigint[]    NOT NULL DEFAULT '{}',
    description       text        NOT NULL DEFAULT '',
    maintenance_note  text        NOT NULL DEFAULT '',
    tags              text[]      NOT NULL DEFAULT '{}',
    run_untagged      boolean     NOT NULL DEFAULT true,
    locked            boolean     NOT NULL DEFAULT false,
    protected         boolean     NOT NULL DEFAULT false,
    paused            boolean     NOT NULL DEFAULT false,
    -- In seconds; 0 for none.
    maximum_timeout_s bigint      NOT NULL DEFAULT 0,
    -- Users and groups that the runner serves, for admission; empty for all.
    user_ids          bigint[]    NOT NULL DEFAULT '{}',
    group_ids         bigint[]    NOT NULL DEFAULT '{}',
    -- SHA-256 of the token.
    token_hash        bytea       NOT NULL UNIQUE,
    token_expires_at  timestamptz,
    created_by        bigint      NOT NULL DEFAULT 0,
    created_at        timestamptz NOT NULL DEFAULT now(),
    revision          bigint      NOT NULL DEFAULT 1
);

-- Processes of runners. Contact times are written at most every few minutes.
CREATE TABLE runner_managers (
    id           bigint      PRIMARY KEY DEFAULT nextval('ids'),
    runner_id    bigint      NOT NULL REFERENCES runners ON DELETE CASCADE,
    system_id    text        NOT NULL,
    version      text        NOT NULL DEFAULT '',
    revision     text        NOT NULL DEFAULT '',
    platform     text        NOT NULL DEFAULT '',
    architecture text        NOT NULL DEFAULT '',
    executor     text        NOT NULL DEFAULT '',
    address      text        NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now(),
    contacted_at timestamptz,
    UNIQUE (runner_id, system_id)
);

-- Pipelines. Whoever changes several jobs of one, or one so that others follow, locks its row first.
CREATE TABLE pipelines (
    id              bigint      PRIMARY KEY DEFAULT nextval('ids'),
    project_id      bigint      NOT NULL,
    organization_id bigint      NOT NULL,
    ref             text        NOT NULL DEFAULT '',
    source          text        NOT NULL DEFAULT '',
    protected       boolean     NOT NULL DEFAULT false,
    state           text        NOT NULL DEFAULT 'created',
    -- Some job failed, which was allowed.
    warnings        boolean     NOT NULL DEFAULT false,
    -- A user canceled the pipeline, and nobody has retried it or one of its jobs since: no job begins.
    canceled        boolean     NOT NULL DEFAULT false,
    -- Created once for each id of a caller. The hash is the SHA-256 of the request, null without an id.
    request_id      text,
    request_hash    bytea,
    created_by      bigint      NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL DEFAULT now(),
    finished_at     timestamptz,
    UNIQUE (project_id, created_by, request_id)
);
CREATE INDEX pipelines_of_project ON pipelines (project_id, id DESC);
CREATE INDEX pipelines_not_finished ON pipelines (project_id) WHERE finished_at IS NULL;

-- What the jobs of a pipeline execute; all attempts of a job share it. It has secret values and is in no event.
CREATE TABLE definitions (
    pipeline_id bigint  NOT NULL REFERENCES pipelines ON DELETE CASCADE,
    name        text    NOT NULL,
    position    int     NOT NULL,
    -- Name of the job in the file, which the copies of a parallel job share. Null: the name.
    job_group   text,
    stage_index int     NOT NULL,
    -- on_success, on_failure or always.
    run_when    text    NOT NULL,
    -- Null: the job needs all jobs of earlier stages.
    needs       jsonb,
    content     jsonb   NOT NULL,
    PRIMARY KEY (pipeline_id, name)
);

-- Jobs that were retried without a user and do not begin yet.
CREATE TABLE delayed_jobs (
    job_id      bigint      PRIMARY KEY,
    pipeline_id bigint      NOT NULL REFERENCES pipelines ON DELETE CASCADE,
    begins_at   timestamptz NOT NULL
);
CREATE INDEX delayed_jobs_by_time ON delayed_jobs (begins_at);
CREATE INDEX delayed_jobs_of_pipeline ON delayed_jobs (pipeline_id);

-- Jobs after their last transition. The stream JOBS alone rebuilds this table.
CREATE TABLE jobs (
    id              bigint      PRIMARY KEY,
    pipeline_id     bigint      NOT NULL,
    project_id      bigint      NOT NULL,
    organization_id bigint      NOT NULL,
    name            text        NOT NULL,
    stage           text        NOT NULL,
    tags            text[]      NOT NULL,
    protected       boolean     NOT NULL,
    timeout_s       bigint      NOT NULL,
    policy          jsonb       NOT NULL,
    state           text        NOT NULL,
    revision        bigint      NOT NULL,
    attempt         int         NOT NULL,
    retry_of        bigint      NOT NULL,
    retried_by      bigint      NOT NULL,
    claims          int         NOT NULL,
    runner_id       bigint      NOT NULL,
    manager_id      bigint      NOT NULL,
    run_timeout_s   bigint      NOT NULL,
    reason          text        NOT NULL,
    exit_code       bigint      NOT NULL,
    canceled_by     bigint      NOT NULL,
    created_at      timestamptz NOT NULL,
    pending_since   timestamptz,
    started_at      timestamptz,
    finished_at     timestamptz
) WITH (fillfactor = 70);
CREATE INDEX jobs_waiting ON jobs (pending_since) WHERE state = 'pending';
CREATE INDEX jobs_with_runners ON jobs (started_at) WHERE state IN ('running', 'canceling');
CREATE INDEX jobs_of_pipeline ON jobs (pipeline_id);
CREATE INDEX jobs_of_project ON jobs (project_id, id DESC);

-- Claims of jobs: the token that a runner got with the job. One row for each job that a runner took, also after its
-- end, so that the runner can repeat its last request.
CREATE TABLE claims (
    job_id       bigint      PRIMARY KEY,
    -- Equals jobs.claims while the claim is valid.
    number       int         NOT NULL,
    -- SHA-256 of the token.
    token_hash   bytea       NOT NULL,
    expires_at   timestamptz NOT NULL,
    claimed_at   timestamptz NOT NULL,
    -- When the runner first and last reported; null before.
    confirmed_at timestamptz,
    contacted_at timestamptz
) WITH (fillfactor = 70);

-- Output of jobs. The state is that of package trace.
CREATE TABLE traces (
    job_id        bigint      PRIMARY KEY,
    state         jsonb       NOT NULL,
    updated_at    timestamptz NOT NULL DEFAULT now(),
    -- Until then somebody reads the trace while it grows; null: nobody did.
    watched_until timestamptz
) WITH (fillfactor = 70);
CREATE TABLE trace_parts (
    job_id     bigint NOT NULL,
    generation int    NOT NULL,
    start      bigint NOT NULL,
    -- Masked.
    data       bytea  NOT NULL,
    PRIMARY KEY (job_id, generation, start)
);

-- Artifacts, whose content is in the object store.
CREATE TABLE artifacts (
    job_id     bigint      NOT NULL,
    type       text        NOT NULL,
    format     text        NOT NULL,
    filename   text        NOT NULL,
    size       bigint      NOT NULL,
    sha256     bytea       NOT NULL,
    object     text        NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Null: never.
    expires_at timestamptz,
    PRIMARY KEY (job_id, type)
);
CREATE INDEX artifacts_to_expire ON artifacts (expires_at) WHERE expires_at IS NOT NULL;
-- Objects that no artifact has: uploads that are not complete, and objects to delete.
CREATE TABLE unused_objects (
    object text        PRIMARY KEY,
    since  timestamptz NOT NULL DEFAULT now()
);

-- Keys that sign job tokens. The private key is sealed with the key of the service.
CREATE TABLE signing_keys (
    id        text        PRIMARY KEY,
    public    bytea       NOT NULL,
    private   bytea       NOT NULL,
    made_at   timestamptz NOT NULL,
    -- No token of the key is valid after it.
    not_after timestamptz NOT NULL
);
