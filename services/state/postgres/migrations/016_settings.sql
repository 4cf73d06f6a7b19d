-- Settings of the cell, which those of an agent override. The service stores what it is configured with when it starts:
-- one row.
create table cell_settings (
    one      boolean primary key default true check (one),
    settings jsonb not null
);

-- The desired revision whose manifests were rendered with the present settings; 0 for none. Earlier versions do not
-- write it, and allowed other pods to connect: their workspaces are rendered again.
alter table workspaces add column rendered_revision bigint not null default 0;
create index workspaces_to_render on workspaces (id)
    where rendered_revision < desired_revision and desired_state <> 'terminated';

-- Sizes that earlier versions filled in. Without them, the defaults of the agent apply.
update templates set spec = spec - '{cpu,memory,volume_size}'::text[]
    where project_id = 0 and name = 'default'
        and spec @> '{"cpu": "500m", "memory": "1Gi", "volume_size": "10Gi"}';

-- Why objects remain while a workspace is terminated.
alter table workspaces
    add column remaining_reason  text not null default '',
    add column remaining_message text not null default '';
-- Earlier versions waited for terminations without end. The next tick of the agent computes them.
update workspaces set reconsider_at = 'epoch' where termination = 'in_progress';

---- create above / drop below ----

alter table workspaces
    drop column remaining_message, drop column remaining_reason, drop column rendered_revision;
drop table cell_settings;
