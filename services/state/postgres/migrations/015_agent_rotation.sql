-- The token of an agent before a rotation. Both columns are cleared when it has ended and its connections are closed.
alter table agents
    add column previous_token_hash bytea,
    add column previous_token_valid_until timestamptz,
    add check ((previous_token_hash is null) = (previous_token_valid_until is null));
create index on agents (previous_token_valid_until) where previous_token_hash is not null;

---- create above / drop below ----

alter table agents drop column previous_token_hash, drop column previous_token_valid_until;
