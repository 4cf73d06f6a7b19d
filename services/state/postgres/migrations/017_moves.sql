-- Organizations move between cells. Where one is decides whether it can be changed.
alter table organizations
    add column residence  text not null default 'here' check (residence in ('here', 'leaving', 'arriving', 'away')),
    -- The cell that it goes to, comes from or is in.
    add column other_cell text not null default '',
    add check ((residence = 'here') = (other_cell = ''));

-- Moves of organizations from and to this cell. One that was canceled before it began has no direction.
create table organization_moves (
    move_id         text primary key,
    organization_id bigint not null,
    direction       text not null check (direction in ('', 'out', 'in')),
    other_cell      text not null,
    outcome         text not null check (outcome in ('', 'moved', 'canceled')),
    begun_at        timestamptz not null,
    ended_at        timestamptz,
    -- What the import has stored, and the directory entries of what its end has removed.
    imported        jsonb not null,
    removed         jsonb not null default '[]',
    check ((outcome = '') = (ended_at is null))
);

create index on organization_moves (organization_id, begun_at);

---- create above / drop below ----

drop table organization_moves;
alter table organizations drop column residence, drop column other_cell;
