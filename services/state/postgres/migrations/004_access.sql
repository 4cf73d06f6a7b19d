-- Access tokens for other services, and subscribers outside.
create table token_signing_keys (
    id         text primary key,
    public_key bytea not null,
    -- The private part, sealed to this service's own key.
    box        bytea not null,
    made_at    timestamptz not null,
    -- When the last token that it signed is over.
    not_after  timestamptz not null
);

create table subscribers (
    id             bigint primary key default nextval('ids'),
    name           text not null,
    -- Subjects that it may hear.
    filter         text not null,
    from_beginning boolean not null,
    token_hash     bytea not null unique,
    user_id        bigint not null references users,
    created_at     timestamptz not null,
    revoked_at     timestamptz
);

create unique index subscribers_name on subscribers (name) where revoked_at is null;

-- Memberships that were taken away: a stream DIRECTORY that is restored from an older copy still knows them, and is told again that they are no more.
create table ended_memberships (
    user_id  bigint not null references users,
    scope    text   not null,
    scope_id bigint not null,
    role     text   not null,
    primary key (user_id, scope, scope_id)
);

---- create above / drop below ----

drop table ended_memberships, subscribers, token_signing_keys;
