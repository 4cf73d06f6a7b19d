-- The schema of 2026-11-25, commit 505251d: 020.

CREATE FUNCTION public.count_deleted_objects() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    execute format('update %I.agents a set objects = a.objects - n.objects
        from (select agent_id, count(*) as objects from changed group by agent_id) n where a.id = n.agent_id', tg_table_schema);
    return null;
end $$;

CREATE FUNCTION public.count_inserted_objects() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    execute format('update %I.agents a set objects = a.objects + n.objects
        from (select agent_id, count(*) as objects from changed group by agent_id) n where a.id = n.agent_id', tg_table_schema);
    return null;
end $$;

CREATE TABLE public.agent_blocks (
    agent_id bigint NOT NULL,
    reason text NOT NULL,
    blocked_at timestamp with time zone NOT NULL,
    blocked_until timestamp with time zone NOT NULL
);

CREATE TABLE public.agent_silences (
    agent_id bigint NOT NULL,
    silent_since timestamp with time zone NOT NULL
);

CREATE SEQUENCE public.ids
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE public.agents (
    id bigint DEFAULT nextval('public.ids'::regclass) NOT NULL,
    project_id bigint NOT NULL,
    name text NOT NULL,
    token_hash bytea NOT NULL,
    curve_public_key text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    last_seen_at timestamp with time zone,
    ticked_at timestamp with time zone,
    cluster_uid text,
    epoch bigint DEFAULT 1 NOT NULL,
    revoked_at timestamp with time zone,
    configuration jsonb DEFAULT '{}'::jsonb NOT NULL,
    configuration_revision bigint DEFAULT 1 NOT NULL,
    considered_revision bigint DEFAULT 1 NOT NULL,
    entry_form integer DEFAULT 0 NOT NULL,
    clock_offset_ms bigint DEFAULT 0 NOT NULL,
    objects bigint DEFAULT 0 NOT NULL,
    previous_token_hash bytea,
    previous_token_valid_until timestamp with time zone,
    CONSTRAINT agents_check CHECK (((previous_token_hash IS NULL) = (previous_token_valid_until IS NULL)))
);

CREATE TABLE public.applied_migrations (
    series text NOT NULL,
    version integer NOT NULL,
    file text NOT NULL,
    sha256 bytea NOT NULL
);

CREATE TABLE public.cell_settings (
    one boolean DEFAULT true NOT NULL,
    settings jsonb NOT NULL,
    CONSTRAINT cell_settings_one_check CHECK (one)
);

CREATE TABLE public.cursor_migrations (
    version integer NOT NULL
);

CREATE TABLE public.ended_memberships (
    user_id bigint NOT NULL,
    scope text NOT NULL,
    scope_id bigint NOT NULL,
    role text NOT NULL
);

CREATE TABLE public.groups (
    id bigint DEFAULT nextval('public.ids'::regclass) NOT NULL,
    organization_id bigint NOT NULL,
    parent_group_id bigint,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE public.memberships (
    user_id bigint NOT NULL,
    scope text NOT NULL,
    scope_id bigint NOT NULL,
    role text NOT NULL,
    CONSTRAINT memberships_role_check CHECK ((role = ANY (ARRAY['reader'::text, 'developer'::text, 'maintainer'::text, 'owner'::text]))),
    CONSTRAINT memberships_scope_check CHECK ((scope = ANY (ARRAY['organization'::text, 'group'::text, 'project'::text])))
);

CREATE TABLE public.observed_objects (
    agent_id bigint NOT NULL,
    kind text NOT NULL,
    namespace text NOT NULL,
    name text NOT NULL,
    uid text NOT NULL,
    cluster_uid text NOT NULL,
    epoch bigint NOT NULL,
    resource_version numeric(39,0) NOT NULL,
    deleted boolean NOT NULL,
    workspace_id uuid,
    resync_id text,
    data text NOT NULL
);

CREATE TABLE public.organization_moves (
    move_id text NOT NULL,
    organization_id bigint NOT NULL,
    direction text NOT NULL,
    other_cell text NOT NULL,
    outcome text NOT NULL,
    begun_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    imported jsonb NOT NULL,
    removed jsonb DEFAULT '[]'::jsonb NOT NULL,
    CONSTRAINT organization_moves_check CHECK (((outcome = ''::text) = (ended_at IS NULL))),
    CONSTRAINT organization_moves_direction_check CHECK ((direction = ANY (ARRAY[''::text, 'out'::text, 'in'::text]))),
    CONSTRAINT organization_moves_outcome_check CHECK ((outcome = ANY (ARRAY[''::text, 'moved'::text, 'canceled'::text])))
);

CREATE TABLE public.organizations (
    id bigint DEFAULT nextval('public.ids'::regclass) NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    residence text DEFAULT 'here'::text NOT NULL,
    other_cell text DEFAULT ''::text NOT NULL,
    CONSTRAINT organizations_check CHECK (((residence = 'here'::text) = (other_cell = ''::text))),
    CONSTRAINT organizations_residence_check CHECK ((residence = ANY (ARRAY['here'::text, 'leaving'::text, 'arriving'::text, 'away'::text])))
);

CREATE TABLE public.orphans (
    agent_id bigint NOT NULL,
    uid text NOT NULL,
    workspace text NOT NULL,
    namespace text NOT NULL,
    name text NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    desired_revision bigint DEFAULT 0 NOT NULL,
    user_id bigint,
    message text DEFAULT ''::text NOT NULL,
    ended_at timestamp with time zone
);

CREATE TABLE public.outbox (
    id bigint NOT NULL,
    subject text NOT NULL COLLATE pg_catalog."C",
    header jsonb NOT NULL,
    data bytea NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0');

ALTER TABLE public.outbox ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.outbox_migrations (
    version integer NOT NULL
);

CREATE TABLE public.outbox_streams (
    stream text NOT NULL COLLATE pg_catalog."C",
    last_sequence bigint NOT NULL
);

CREATE TABLE public.personal_access_tokens (
    id bigint DEFAULT nextval('public.ids'::regclass) NOT NULL,
    user_id bigint NOT NULL,
    name text NOT NULL,
    token_hash bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone,
    last_used_at timestamp with time zone,
    revoked_at timestamp with time zone,
    scope text DEFAULT 'admin'::text NOT NULL,
    created_by bigint
);

CREATE TABLE public.projects (
    id bigint DEFAULT nextval('public.ids'::regclass) NOT NULL,
    organization_id bigint NOT NULL,
    group_id bigint NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE public.pull_secrets (
    project_id bigint NOT NULL,
    registries jsonb NOT NULL,
    box bytea NOT NULL,
    digest text NOT NULL
);

CREATE TABLE public.resync_members (
    agent_id bigint NOT NULL,
    resync_id text NOT NULL,
    kinds text[] NOT NULL,
    namespaces text[] NOT NULL,
    names text[] NOT NULL
);

CREATE TABLE public.resyncs (
    agent_id bigint NOT NULL,
    resync_id text NOT NULL,
    cluster_uid text NOT NULL,
    epoch bigint NOT NULL,
    nonce text,
    cause text NOT NULL,
    list_versions jsonb NOT NULL,
    expected bigint NOT NULL,
    received bigint DEFAULT 0 NOT NULL,
    outcome text DEFAULT 'open'::text NOT NULL,
    begun_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    recorded bigint DEFAULT 0 NOT NULL,
    CONSTRAINT resyncs_outcome_check CHECK ((outcome = ANY (ARRAY['open'::text, 'complete'::text, 'incomplete'::text])))
);

CREATE TABLE public.resyncs_to_judge (
    agent_id bigint NOT NULL,
    resync_id text NOT NULL,
    count bigint NOT NULL,
    ended_at timestamp with time zone NOT NULL
);

CREATE TABLE public.ssh_keys (
    fingerprint bytea NOT NULL,
    user_id bigint NOT NULL,
    name text NOT NULL,
    public_key text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    removed_at timestamp with time zone,
    CONSTRAINT ssh_keys_fingerprint_check CHECK ((length(fingerprint) = 32))
);

CREATE TABLE public.state_migrations (
    version integer NOT NULL
);

CREATE TABLE public.stream_cursors (
    consumer text NOT NULL COLLATE pg_catalog."C",
    stream text NOT NULL COLLATE pg_catalog."C",
    epoch bigint DEFAULT 0 NOT NULL,
    sequence bigint DEFAULT 0 NOT NULL,
    event_id text DEFAULT ''::text NOT NULL,
    stored_at bigint DEFAULT 0 NOT NULL,
    stream_created bigint DEFAULT 0 NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE public.subscribers (
    id bigint DEFAULT nextval('public.ids'::regclass) NOT NULL,
    name text NOT NULL,
    filter text NOT NULL,
    from_beginning boolean NOT NULL,
    token_hash bytea NOT NULL,
    user_id bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    revoked_at timestamp with time zone
);

CREATE TABLE public.templates (
    project_id bigint NOT NULL,
    name text NOT NULL,
    spec jsonb NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE public.token_signing_keys (
    id text NOT NULL,
    public_key bytea NOT NULL,
    box bytea NOT NULL,
    made_at timestamp with time zone NOT NULL,
    not_after timestamp with time zone NOT NULL
);

CREATE TABLE public.users (
    id bigint DEFAULT nextval('public.ids'::regclass) NOT NULL,
    username text NOT NULL,
    admin boolean DEFAULT false NOT NULL,
    state text DEFAULT 'active'::text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    entry_version integer DEFAULT 0 NOT NULL,
    CONSTRAINT users_state_check CHECK ((state = ANY (ARRAY['active'::text, 'blocked'::text])))
);

CREATE TABLE public.workspace_secrets (
    workspace_id uuid NOT NULL,
    kind text NOT NULL,
    box bytea NOT NULL,
    CONSTRAINT workspace_secrets_kind_check CHECK ((kind = ANY (ARRAY['env'::text, 'files'::text])))
);

CREATE TABLE public.workspaces (
    id uuid NOT NULL,
    name text NOT NULL,
    project_id bigint NOT NULL,
    agent_id bigint NOT NULL,
    user_id bigint NOT NULL,
    template text NOT NULL,
    namespace text NOT NULL,
    spec jsonb NOT NULL,
    desired_state text NOT NULL,
    desired_revision bigint NOT NULL,
    actual_state text NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    message text DEFAULT ''::text NOT NULL,
    actual_state_revision bigint DEFAULT 0 NOT NULL,
    reconsider_at timestamp with time zone,
    applied_revision bigint DEFAULT 0 NOT NULL,
    applied_at timestamp with time zone,
    apply_error_revision bigint,
    apply_error_reason text,
    apply_error_message text,
    termination text DEFAULT 'none'::text NOT NULL,
    idempotency_key text,
    created_at timestamp with time zone NOT NULL,
    desired_state_changed_at timestamp with time zone NOT NULL,
    actual_state_changed_at timestamp with time zone NOT NULL,
    desired_state_since timestamp with time zone DEFAULT now() NOT NULL,
    applied_uid text DEFAULT ''::text NOT NULL,
    applied_generation bigint DEFAULT 0 NOT NULL,
    expiry_warned_of timestamp with time zone,
    age_warned_of timestamp with time zone,
    rendered_revision bigint DEFAULT 0 NOT NULL,
    remaining_reason text DEFAULT ''::text NOT NULL,
    remaining_message text DEFAULT ''::text NOT NULL,
    shares jsonb DEFAULT '[]'::jsonb NOT NULL,
    last_activity_at timestamp with time zone,
    last_activity_user_id bigint,
    extended_until timestamp with time zone,
    idle_warned_of timestamp with time zone,
    CONSTRAINT workspaces_actual_state_check CHECK ((actual_state = ANY (ARRAY['creation_requested'::text, 'starting'::text, 'running'::text, 'stopping'::text, 'stopped'::text, 'failed'::text, 'error'::text, 'terminating'::text, 'terminated'::text, 'unknown'::text]))),
    CONSTRAINT workspaces_check CHECK (((apply_error_revision IS NULL) = (apply_error_reason IS NULL))),
    CONSTRAINT workspaces_desired_revision_check CHECK ((desired_revision > 0)),
    CONSTRAINT workspaces_desired_state_check CHECK ((desired_state = ANY (ARRAY['running'::text, 'stopped'::text, 'terminated'::text, 'restart_requested'::text]))),
    CONSTRAINT workspaces_termination_check CHECK ((termination = ANY (ARRAY['none'::text, 'in_progress'::text, 'finished'::text])))
);

INSERT INTO public.agent_blocks (agent_id, reason, blocked_at, blocked_until) VALUES (7, 'more than 100000 messages within an hour', '2026-03-02 10:30:00+00', '2026-03-02 11:00:00+00');

INSERT INTO public.agent_silences (agent_id, silent_since) VALUES (7, '2026-03-02 10:00:00+00');

INSERT INTO public.agents (id, project_id, name, token_hash, curve_public_key, created_at, last_seen_at, ticked_at, cluster_uid, epoch, revoked_at, configuration, configuration_revision, considered_revision, entry_form, clock_offset_ms, objects, previous_token_hash, previous_token_valid_until) VALUES (7, 4, 'eu', '\x0304', 'XAGENT', '2026-03-01 08:00:00+00', NULL, '2026-03-02 10:00:00+00', 'cluster-1', 2, NULL, '{}', 3, 1, 0, 0, 2, '\x0305', '2026-03-03 10:00:00+00');

INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 1, '001_directory.sql', '\x235695563ad1292c54f5b0c96ebbfc58ab9bc968c8b46ec1d64e16714b9d065c');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 2, '002_workspaces.sql', '\xe1583e7b8b30990e59695f0267244c6f6b17b1e8389f3e7f7f13f0edb097c5d7');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 3, '003_agents_configured.sql', '\xc03ca49c15e16264819c6317d7164a7d4065144b030f3933df8e8198c0c369ff');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 4, '004_access.sql', '\xe48e80ec66db344590790020bf059d25aa15bbeace9a146b1ec6e28755479d3d');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 5, '005_agent_entries.sql', '\x869a3991e41077955696cce190fea173159aaf4f78363322a383d8ee51af077b');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 6, '006_resync_members.sql', '\x5af3abbd03638b9b6a111da444568fee5e0f4f9327df2a83e6b26e6f0d0ae6af');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 7, '007_resyncs_to_judge.sql', '\x9db7e926c259e207174094462d1c07ea5d5d8fde11e356675b5782c77ced0829');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 8, '008_agent_clocks.sql', '\x2d4fdc52de74e97d25c8e588be6a09bf6deb47a8e6f2c5e5f56231a1780ee673');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 9, '009_agent_blocks.sql', '\xb3ac29de84b739c8aea2e82c650ab244e81760b028b8d4912a8bd2b561554d4d');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 10, '010_token_scopes.sql', '\xa8858e8d2127bf9524a4584456e843caafec489e3a951965e719b2bb18177a19');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('outbox', 1, '001_outbox.sql', '\xa75f87978dc7a9c6a5e720fafe072f2a00fe7f4b2b8d6c0b06a392ccc9265dbd');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('outbox', 2, '002_compression.sql', '\x1b5b285c54002fcee2f1d73b9102fb74ae9bc8b9f625e5b6ecfb3afa32770166');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('cursor', 1, '001_cursor.sql', '\x375903d9c67845e208eb9ba240bd26999ab513825a4d9ce243d33c2d453b377b');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 11, '011_repair.sql', '\xa1c5585b6782e10813f75c7b752495fdb73103457cc2eac0cc49da1263e93517');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 12, '012_object_counts.sql', '\x9b41244fb2fe95a20a7a81e18020dd570c6739f216f01db9b54260831c0e56bf');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 13, '013_token_parents.sql', '\x93479a4bf0d0c04c8e8adabf64d7ff57590faa8589fae591168870ac341dad7b');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 14, '014_agent_silences.sql', '\xdea00f89545bf7bbdf0eaeb0220a486c94b732c4af49f9b2c84e18ffd0ae08d8');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 15, '015_agent_rotation.sql', '\x737e896d55dfae63ba5d7abefbfacd0f26d34ed7162cddc7e732b23f30233bf1');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 16, '016_settings.sql', '\x0dcb1fd0ac562f8da546b8c912417f2be1236d43c390d1c99fff8758da91cf6c');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 17, '017_moves.sql', '\x1d8d8d22a58615c339019c5a9b60b30bbe4f8b03f76b4b31550dbdb07385cf46');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 18, '018_entering.sql', '\x0b9e7501bd066213bb2e82c8b7675bc250c15d99dbf02e54a08d433b58728598');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 19, '019_idle.sql', '\x4931fd4ef9157040e8e972932582eea2d170fb317b670dceaa38bc8f85ce27e3');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('state', 20, '020_pull_secrets.sql', '\xab77173c0366a193c6054c38faed70bca28c794bd8c3658b425e8587bb99d90b');

INSERT INTO public.cell_settings (one, settings) VALUES (true, '{}');

INSERT INTO public.cursor_migrations (version) VALUES (1);

INSERT INTO public.ended_memberships (user_id, scope, scope_id, role) VALUES (9, 'project', 4, 'reader');

INSERT INTO public.groups (id, organization_id, parent_group_id, name, created_at) VALUES (2, 1, NULL, 'platform', '2026-03-01 08:00:00+00');

INSERT INTO public.memberships (user_id, scope, scope_id, role) VALUES (10, 'group', 2, 'developer');

INSERT INTO public.observed_objects (agent_id, kind, namespace, name, uid, cluster_uid, epoch, resource_version, deleted, workspace_id, resync_id, data) VALUES (7, 'deployment', 'ws-7-tidy-otter', 'tidy-otter', 'u1', 'cluster-1', 2, 48213, false, '0199c0de-7a31-7c55-b1d4-3f2a9e10c6aa', 'r2', '{"object": {"uid": "u1", "name": "tidy-otter", "verb": "upserted", "namespace": "ws-7-tidy-otter", "annotations": {"lockstep.dev/desired-revision": "3"}, "cluster_uid": "cluster-1", "observed_at": "2026-03-02T10:40:12.417Z", "update_type": "full", "workspace_id": "0199c0de-7a31-7c55-b1d4-3f2a9e10c6aa", "resource_version": "48213"}, "replicas": 1, "conditions": [], "generation": 4, "has_status": true, "spec_replicas": 1, "ready_replicas": 1, "updated_replicas": 1, "available_replicas": 1, "observed_generation": 4}');
INSERT INTO public.observed_objects (agent_id, kind, namespace, name, uid, cluster_uid, epoch, resource_version, deleted, workspace_id, resync_id, data) VALUES (7, 'deployment', 'ws-7-lost', 'lost', 'u2', 'cluster-1', 2, 48001, false, NULL, 'r2', '{"object": {"uid": "u2", "name": "lost", "verb": "upserted", "namespace": "ws-7-lost", "annotations": {"lockstep.dev/desired-revision": "5"}, "cluster_uid": "cluster-1", "observed_at": "2026-03-02T10:40:12.417Z", "update_type": "full", "workspace_id": "gone", "resource_version": "48001"}, "conditions": [], "generation": 1, "has_status": true, "spec_replicas": 2, "observed_generation": 1}');

INSERT INTO public.organization_moves (move_id, organization_id, direction, other_cell, outcome, begun_at, ended_at, imported, removed) VALUES ('m1', 1, 'out', 'other', 'canceled', '2026-03-02 08:00:00+00', '2026-03-02 08:10:00+00', '{}', '[]');

INSERT INTO public.organizations (id, name, created_at, residence, other_cell) VALUES (1, 'acme', '2026-03-01 08:00:00+00', 'here', '');

INSERT INTO public.orphans (agent_id, uid, workspace, namespace, name, seen_at, desired_revision, user_id, message, ended_at) VALUES (7, 'u2', 'gone', 'ws-7-lost', 'lost', '2026-03-02 08:00:00+00', 6, 9, '', NULL);

INSERT INTO public.outbox (id, subject, header, data, created_at) VALUES (41, 'lockstep.local.workspace.4.0199c0de-7a31-7c55-b1d4-3f2a9e10c6aa.state_changed', '{"ce-id": ["e1"]}', '\x7b7d', '2026-03-02 10:40:12+00');

INSERT INTO public.outbox_migrations (version) VALUES (2);

INSERT INTO public.outbox_streams (stream, last_sequence) VALUES ('WORKSPACES', 12);

INSERT INTO public.personal_access_tokens (id, user_id, name, token_hash, created_at, expires_at, last_used_at, revoked_at, scope, created_by) VALUES (11, 10, 'laptop', '\x0102', '2026-03-01 08:00:00+00', NULL, NULL, NULL, 'admin', NULL);
INSERT INTO public.personal_access_tokens (id, user_id, name, token_hash, created_at, expires_at, last_used_at, revoked_at, scope, created_by) VALUES (12, 10, 'script', '\x0103', '2026-03-01 09:00:00+00', '2036-03-01 09:00:00+00', '2026-03-02 10:00:00+00', NULL, 'read', NULL);
INSERT INTO public.personal_access_tokens (id, user_id, name, token_hash, created_at, expires_at, last_used_at, revoked_at, scope, created_by) VALUES (13, 9, 'replacement', '\x0109', '2026-03-02 09:00:00+00', NULL, NULL, NULL, 'write', 11);

INSERT INTO public.projects (id, organization_id, group_id, name, created_at) VALUES (4, 1, 2, 'shop', '2026-03-01 08:00:00+00');

INSERT INTO public.resync_members (agent_id, resync_id, kinds, namespaces, names) VALUES (7, 'r2', '{deployment,deployment}', '{ws-7-tidy-otter,ws-7-lost}', '{tidy-otter,lost}');

INSERT INTO public.pull_secrets (project_id, registries, box, digest) VALUES (4, '[{"host": "registry.example", "username": "ci", "updated_at": "2026-03-02T09:00:00Z"}]', '\x01', 'd2');
INSERT INTO public.resyncs (agent_id, resync_id, cluster_uid, epoch, nonce, cause, list_versions, expected, received, outcome, begun_at, ended_at, recorded) VALUES (7, 'r1', 'cluster-1', 2, NULL, 'start', '{"deployment": "48000"}', 2, 2, 'complete', '2026-03-02 08:00:00+00', '2026-03-02 08:00:01+00', 2);
INSERT INTO public.resyncs (agent_id, resync_id, cluster_uid, epoch, nonce, cause, list_versions, expected, received, outcome, begun_at, ended_at, recorded) VALUES (7, 'r2', 'cluster-1', 2, 'n', 'timer', '{"deployment": "48300"}', 3, 2, 'open', '2026-03-02 10:40:00+00', NULL, 2);

INSERT INTO public.resyncs_to_judge (agent_id, resync_id, count, ended_at) VALUES (7, 'r2', 3, '2026-03-02 10:40:20+00');

INSERT INTO public.ssh_keys (fingerprint, user_id, name, public_key, created_at, expires_at, removed_at) VALUES ('\xabababababababababababababababababababababababababababababababab', 9, 'laptop', 'ssh-ed25519 AAAA', '2026-03-02 09:00:00+00', NULL, NULL);

INSERT INTO public.state_migrations (version) VALUES (20);

INSERT INTO public.stream_cursors (consumer, stream, epoch, sequence, event_id, stored_at, stream_created, updated_at) VALUES ('observed', 'OBSERVED', 1, 99, 'cluster-1/1', 5, 6, '2026-03-02 10:40:12+00');

INSERT INTO public.subscribers (id, name, filter, from_beginning, token_hash, user_id, created_at, revoked_at) VALUES (20, 'bot', 'deploy.>', true, '\x0708', 9, '2026-03-01 08:00:00+00', NULL);

INSERT INTO public.templates (project_id, name, spec, updated_at) VALUES (4, 'go', '{"image": "registry.example/go:1"}', '2026-03-01 08:00:00+00');
INSERT INTO public.templates (project_id, name, spec, updated_at) VALUES (0, 'default', '{"image": "registry.example/base:1", "command": ["sleep", "infinity"]}', '2026-03-01 08:00:00+00');

INSERT INTO public.token_signing_keys (id, public_key, box, made_at, not_after) VALUES ('key-1', '\x01', '\x02', '2026-03-01 08:00:00+00', '2026-04-01 08:00:00+00');

INSERT INTO public.users (id, username, admin, state, created_at, entry_version) VALUES (10, 'ben', false, 'active', '2026-03-01 08:00:00+00', 0);
INSERT INTO public.users (id, username, admin, state, created_at, entry_version) VALUES (9, 'ada', true, 'active', '2026-03-01 08:00:00+00', 1);

INSERT INTO public.workspace_secrets (workspace_id, kind, box) VALUES ('0199c0de-7a31-7c55-b1d4-3f2a9e10c6aa', 'env', '\x0506');

INSERT INTO public.workspaces (id, name, project_id, agent_id, user_id, template, namespace, spec, desired_state, desired_revision, actual_state, reason, message, actual_state_revision, reconsider_at, applied_revision, applied_at, apply_error_revision, apply_error_reason, apply_error_message, termination, idempotency_key, created_at, desired_state_changed_at, actual_state_changed_at, desired_state_since, applied_uid, applied_generation, expiry_warned_of, age_warned_of, rendered_revision, remaining_reason, remaining_message, shares, last_activity_at, last_activity_user_id, extended_until, idle_warned_of) VALUES ('0199c0de-7a31-7c55-b1d4-3f2a9e10c6ab', 'calm-heron', 4, 7, 10, '', 'ws-7-calm-heron', '{"image": "registry.example/ide:9"}', 'stopped', 2, 'error', 'apply_failed', 'quota exceeded', 2, NULL, 1, '2026-03-02 09:20:02+00', 2, 'Forbidden', 'quota exceeded', 'none', NULL, '2026-03-02 09:20:00+00', '2026-03-02 09:25:00+00', '2026-03-02 09:25:09+00', '2026-03-02 09:25:00+00', '', 0, NULL, NULL, 0, 'Finalizers', 'a volume remains', '[]', NULL, NULL, NULL, NULL);
INSERT INTO public.workspaces (id, name, project_id, agent_id, user_id, template, namespace, spec, desired_state, desired_revision, actual_state, reason, message, actual_state_revision, reconsider_at, applied_revision, applied_at, apply_error_revision, apply_error_reason, apply_error_message, termination, idempotency_key, created_at, desired_state_changed_at, actual_state_changed_at, desired_state_since, applied_uid, applied_generation, expiry_warned_of, age_warned_of, rendered_revision, remaining_reason, remaining_message, shares, last_activity_at, last_activity_user_id, extended_until, idle_warned_of) VALUES ('0199c0de-7a31-7c55-b1d4-3f2a9e10c6aa', 'tidy-otter', 4, 7, 10, 'go', 'ws-7-tidy-otter', '{"env": {"A": "1"}, "image": "registry.example/ide:9", "secret_env": ["TOKEN"], "secret_env_digest": "d1"}', 'running', 3, 'running', '', '', 4, '2026-03-02 11:00:00+00', 3, '2026-03-02 09:15:02+00', NULL, NULL, NULL, 'none', 'key-1', '2026-03-02 09:15:00+00', '2026-03-02 09:15:00+00', '2026-03-02 09:15:09+00', '2026-03-02 09:15:00+00', '', 0, NULL, NULL, 3, '', '', '[{"port": 3000, "user_id": 10}]', '2026-03-02 10:30:00+00', 9, '2026-03-02 14:00:00+00', '2026-03-02 14:00:00+00');

SELECT pg_catalog.setval('public.ids', 1000, true);

SELECT pg_catalog.setval('public.outbox_id_seq', 41, true);

ALTER TABLE ONLY public.agent_blocks
    ADD CONSTRAINT agent_blocks_pkey PRIMARY KEY (agent_id);

ALTER TABLE ONLY public.agent_silences
    ADD CONSTRAINT agent_silences_pkey PRIMARY KEY (agent_id);

ALTER TABLE ONLY public.agents
    ADD CONSTRAINT agents_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.agents
    ADD CONSTRAINT agents_project_id_name_key UNIQUE (project_id, name);

ALTER TABLE ONLY public.agents
    ADD CONSTRAINT agents_token_hash_key UNIQUE (token_hash);

ALTER TABLE ONLY public.applied_migrations
    ADD CONSTRAINT applied_migrations_pkey PRIMARY KEY (series, version);

ALTER TABLE ONLY public.cell_settings
    ADD CONSTRAINT cell_settings_pkey PRIMARY KEY (one);

ALTER TABLE ONLY public.ended_memberships
    ADD CONSTRAINT ended_memberships_pkey PRIMARY KEY (user_id, scope, scope_id);

ALTER TABLE ONLY public.groups
    ADD CONSTRAINT groups_organization_id_parent_group_id_name_key UNIQUE NULLS NOT DISTINCT (organization_id, parent_group_id, name);

ALTER TABLE ONLY public.groups
    ADD CONSTRAINT groups_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.memberships
    ADD CONSTRAINT memberships_pkey PRIMARY KEY (user_id, scope, scope_id);

ALTER TABLE ONLY public.observed_objects
    ADD CONSTRAINT observed_objects_pkey PRIMARY KEY (agent_id, kind, namespace, name);

ALTER TABLE ONLY public.organization_moves
    ADD CONSTRAINT organization_moves_pkey PRIMARY KEY (move_id);

ALTER TABLE ONLY public.organizations
    ADD CONSTRAINT organizations_name_key UNIQUE (name);

ALTER TABLE ONLY public.organizations
    ADD CONSTRAINT organizations_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.orphans
    ADD CONSTRAINT orphans_pkey PRIMARY KEY (agent_id, uid);

ALTER TABLE ONLY public.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.outbox_streams
    ADD CONSTRAINT outbox_streams_pkey PRIMARY KEY (stream);

ALTER TABLE ONLY public.personal_access_tokens
    ADD CONSTRAINT personal_access_tokens_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.personal_access_tokens
    ADD CONSTRAINT personal_access_tokens_token_hash_key UNIQUE (token_hash);

ALTER TABLE ONLY public.projects
    ADD CONSTRAINT projects_group_id_name_key UNIQUE (group_id, name);

ALTER TABLE ONLY public.projects
    ADD CONSTRAINT projects_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.pull_secrets
    ADD CONSTRAINT pull_secrets_pkey PRIMARY KEY (project_id);

ALTER TABLE ONLY public.resyncs
    ADD CONSTRAINT resyncs_pkey PRIMARY KEY (agent_id, resync_id);

ALTER TABLE ONLY public.resyncs_to_judge
    ADD CONSTRAINT resyncs_to_judge_pkey PRIMARY KEY (agent_id);

ALTER TABLE ONLY public.ssh_keys
    ADD CONSTRAINT ssh_keys_pkey PRIMARY KEY (fingerprint);

ALTER TABLE ONLY public.stream_cursors
    ADD CONSTRAINT stream_cursors_pkey PRIMARY KEY (consumer, stream);

ALTER TABLE ONLY public.subscribers
    ADD CONSTRAINT subscribers_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.subscribers
    ADD CONSTRAINT subscribers_token_hash_key UNIQUE (token_hash);

ALTER TABLE ONLY public.templates
    ADD CONSTRAINT templates_pkey PRIMARY KEY (project_id, name);

ALTER TABLE ONLY public.token_signing_keys
    ADD CONSTRAINT token_signing_keys_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.users
    ADD CONSTRAINT users_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.users
    ADD CONSTRAINT users_username_key UNIQUE (username);

ALTER TABLE ONLY public.workspace_secrets
    ADD CONSTRAINT workspace_secrets_pkey PRIMARY KEY (workspace_id, kind);

ALTER TABLE ONLY public.workspaces
    ADD CONSTRAINT workspaces_pkey PRIMARY KEY (id);

CREATE INDEX agents_previous_token_valid_until_idx ON public.agents USING btree (previous_token_valid_until) WHERE (previous_token_hash IS NOT NULL);

CREATE INDEX memberships_scope_scope_id_idx ON public.memberships USING btree (scope, scope_id);

CREATE INDEX observed_objects_workspace ON public.observed_objects USING btree (workspace_id) WHERE (workspace_id IS NOT NULL);

CREATE INDEX organization_moves_organization_id_begun_at_idx ON public.organization_moves USING btree (organization_id, begun_at);

CREATE INDEX orphans_deleting ON public.orphans USING btree (agent_id, workspace) WHERE (desired_revision > 0);

CREATE INDEX orphans_place ON public.orphans USING btree (agent_id, namespace, name);

CREATE INDEX personal_access_tokens_created_by_idx ON public.personal_access_tokens USING btree (created_by);

CREATE INDEX personal_access_tokens_user_id_idx ON public.personal_access_tokens USING btree (user_id);

CREATE INDEX resync_members_resync ON public.resync_members USING btree (agent_id, resync_id);

CREATE UNIQUE INDEX ssh_keys_name ON public.ssh_keys USING btree (user_id, name) WHERE (removed_at IS NULL);

CREATE INDEX ssh_keys_user_id_removed_at_idx ON public.ssh_keys USING btree (user_id, removed_at);

CREATE UNIQUE INDEX subscribers_name ON public.subscribers USING btree (name) WHERE (revoked_at IS NULL);

CREATE INDEX workspaces_agent ON public.workspaces USING btree (agent_id) WHERE (actual_state <> 'terminated'::text);

CREATE UNIQUE INDEX workspaces_idempotency_key ON public.workspaces USING btree (user_id, idempotency_key) WHERE (idempotency_key IS NOT NULL);

CREATE UNIQUE INDEX workspaces_name ON public.workspaces USING btree (name) WHERE (actual_state <> 'terminated'::text);

CREATE INDEX workspaces_project ON public.workspaces USING btree (project_id, id DESC);

CREATE INDEX workspaces_reconsider ON public.workspaces USING btree (agent_id, reconsider_at) WHERE (reconsider_at IS NOT NULL);

CREATE INDEX workspaces_shares_idx ON public.workspaces USING gin (shares jsonb_path_ops) WHERE (shares <> '[]'::jsonb);

CREATE INDEX workspaces_to_render ON public.workspaces USING btree (id) WHERE ((rendered_revision < desired_revision) AND (desired_state <> 'terminated'::text));

CREATE TRIGGER count_deleted AFTER DELETE ON public.observed_objects REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION public.count_deleted_objects();

CREATE TRIGGER count_inserted AFTER INSERT ON public.observed_objects REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION public.count_inserted_objects();

ALTER TABLE ONLY public.agent_blocks
    ADD CONSTRAINT agent_blocks_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES public.agents(id);

ALTER TABLE ONLY public.agent_silences
    ADD CONSTRAINT agent_silences_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES public.agents(id);

ALTER TABLE ONLY public.agents
    ADD CONSTRAINT agents_project_id_fkey FOREIGN KEY (project_id) REFERENCES public.projects(id);

ALTER TABLE ONLY public.ended_memberships
    ADD CONSTRAINT ended_memberships_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id);

ALTER TABLE ONLY public.groups
    ADD CONSTRAINT groups_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organizations(id);

ALTER TABLE ONLY public.groups
    ADD CONSTRAINT groups_parent_group_id_fkey FOREIGN KEY (parent_group_id) REFERENCES public.groups(id);

ALTER TABLE ONLY public.memberships
    ADD CONSTRAINT memberships_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id);

ALTER TABLE ONLY public.orphans
    ADD CONSTRAINT orphans_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id);

ALTER TABLE ONLY public.personal_access_tokens
    ADD CONSTRAINT personal_access_tokens_created_by_fkey FOREIGN KEY (created_by) REFERENCES public.personal_access_tokens(id);

ALTER TABLE ONLY public.personal_access_tokens
    ADD CONSTRAINT personal_access_tokens_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id);

ALTER TABLE ONLY public.projects
    ADD CONSTRAINT projects_group_id_fkey FOREIGN KEY (group_id) REFERENCES public.groups(id);

ALTER TABLE ONLY public.projects
    ADD CONSTRAINT projects_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organizations(id);

ALTER TABLE ONLY public.pull_secrets
    ADD CONSTRAINT pull_secrets_project_id_fkey FOREIGN KEY (project_id) REFERENCES public.projects(id) ON DELETE CASCADE;

ALTER TABLE ONLY public.ssh_keys
    ADD CONSTRAINT ssh_keys_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id);

ALTER TABLE ONLY public.subscribers
    ADD CONSTRAINT subscribers_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id);

ALTER TABLE ONLY public.workspace_secrets
    ADD CONSTRAINT workspace_secrets_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id) ON DELETE CASCADE;

ALTER TABLE ONLY public.workspaces
    ADD CONSTRAINT workspaces_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES public.agents(id);

ALTER TABLE ONLY public.workspaces
    ADD CONSTRAINT workspaces_project_id_fkey FOREIGN KEY (project_id) REFERENCES public.projects(id);

ALTER TABLE ONLY public.workspaces
    ADD CONSTRAINT workspaces_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id);
