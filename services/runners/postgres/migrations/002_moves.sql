-- Moves of organizations from this cell to another one, and arrivals from other cells.
CREATE TABLE moves (
    id              text        PRIMARY KEY,
    organization_id bigint      NOT NULL,
    -- Whether the organization comes from the other cell.
    arrival         boolean     NOT NULL,
    -- The other cell, and the address of its runners service; empty for an arrival.
    cell            text        NOT NULL,
    url             text        NOT NULL DEFAULT '',
    -- Larger than that of every earlier move of the organization in any cell, unless that was canceled.
    number          bigint      NOT NULL,
    phase           text        NOT NULL CHECK (phase IN ('copying', 'canceling', 'canceled', 'moved', 'handing_over',
        'ending', 'done', 'arriving', 'open')),
    -- Why the move waits, or was canceled.
    message         text        NOT NULL DEFAULT '',
    -- Personal access tokens for both cells, sealed with the key of the service; null after the end.
    tokens          bytea,
    started_by      bigint      NOT NULL DEFAULT 0,
    started_at      timestamptz NOT NULL,
    cancel_at       timestamptz,
    ended_at        timestamptz
);
CREATE UNIQUE INDEX moves_going_on ON moves (organization_id) WHERE ended_at IS NULL;
CREATE INDEX moves_of_organization ON moves (organization_id, number DESC);

-- Organizations that nobody may change here: the latest move took them away, or has not opened them yet. Whoever begins,
-- cancels or opens a move locks the organization exclusively; whoever changes something of it shares the lock.
CREATE VIEW closed_organizations AS
    SELECT organization_id, cell, phase, arrival
    FROM (
        SELECT DISTINCT ON (organization_id) organization_id, cell, phase, arrival
        FROM moves WHERE phase NOT IN ('canceling', 'canceled')
        ORDER BY organization_id, number DESC
    ) AS latest
    WHERE NOT arrival OR phase = 'arriving';

-- Jobs that ended here and have moved: their runners may repeat the last request until the claim expires.
CREATE TABLE moved_jobs (
    job_id     bigint      PRIMARY KEY,
    state      text        NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX moved_jobs_by_time ON moved_jobs (expires_at);

-- Pipelines move in this order.
CREATE INDEX pipelines_to_move ON pipelines (organization_id, (finished_at IS NOT NULL), id);
