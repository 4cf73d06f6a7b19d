-- Credentials with which the workspaces of a project pull private images.
create table pull_secrets (
    project_id bigint primary key references projects on delete cascade,
    -- Hosts and user names, without passwords.
    registries jsonb not null,
    -- All passwords in one box, sealed to this service's own key.
    box        bytea not null,
    -- The keyed digest of the passwords. Workspaces of the project have it in their spec.
    digest     text not null
);

---- create above / drop below ----

drop table pull_secrets;
