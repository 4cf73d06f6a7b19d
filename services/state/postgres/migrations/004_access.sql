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

---- create above / drop below ----

drop table subscribers, token_signing_keys;
