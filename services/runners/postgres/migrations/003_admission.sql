-- What admission decided about a job: the tags of its definition, and which runners may take it. The tags of the job are
-- those after the decision.
ALTER TABLE jobs
    ADD COLUMN admission       jsonb,
    ADD COLUMN preparing_since timestamptz;
CREATE INDEX jobs_preparing ON jobs (preparing_since) WHERE state = 'preparing';

-- Prerequisites of jobs as admission last reported them: one for each controller.
CREATE TABLE prerequisites (
    job_id        bigint NOT NULL,
    preparation   bigint NOT NULL,
    controller_id bigint NOT NULL,
    -- As in the event.
    content       jsonb  NOT NULL,
    PRIMARY KEY (job_id, preparation, controller_id)
);

-- Runners that the stream RUNNERS does not have yet. Those that exist are published at the next start.
ALTER TABLE runners ADD COLUMN published boolean NOT NULL DEFAULT false;
