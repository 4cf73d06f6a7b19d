-- The schema of 2026-11-23, commit 95ea6da: 002.

CREATE TABLE public.agents (
    agent_id bigint NOT NULL,
    cluster_uid text NOT NULL,
    epoch integer DEFAULT 0 NOT NULL,
    ticked_at timestamp with time zone,
    resync_id text DEFAULT ''::text NOT NULL,
    resync_open boolean DEFAULT false NOT NULL,
    resync_expected bigint DEFAULT 0 NOT NULL,
    resync_versions jsonb,
    resync_at timestamp with time zone,
    selection text DEFAULT ''::text NOT NULL,
    selection_complete text,
    complete_at timestamp with time zone,
    listed_versions jsonb,
    listed_at timestamp with time zone
);

CREATE TABLE public.applied_migrations (
    series text NOT NULL,
    version integer NOT NULL,
    file text NOT NULL,
    sha256 bytea NOT NULL
);

CREATE TABLE public.claims (
    number bigint NOT NULL,
    cluster_uid text NOT NULL COLLATE pg_catalog."C",
    since bigint NOT NULL,
    project_id bigint NOT NULL,
    agent_id bigint NOT NULL,
    user_id bigint DEFAULT 0 NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    claimed_at timestamp with time zone DEFAULT now() NOT NULL
);

ALTER TABLE public.claims ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.claims_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.cursor_migrations (
    version integer NOT NULL
);

CREATE TABLE public.deploys_migrations (
    version integer NOT NULL
);

CREATE TABLE public.environments (
    id uuid NOT NULL,
    cluster_uid text NOT NULL,
    agent_id bigint NOT NULL,
    wake_at timestamp with time zone,
    state text NOT NULL,
    told bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70');

CREATE TABLE public.facts (
    id text NOT NULL COLLATE pg_catalog."C",
    workload uuid NOT NULL,
    sequence bigint NOT NULL,
    fact text NOT NULL,
    rollout_id text DEFAULT ''::text NOT NULL,
    occurred_at timestamp with time zone NOT NULL,
    observed_at timestamp with time zone NOT NULL,
    data text NOT NULL,
    stream_sequence bigint DEFAULT 0 NOT NULL,
    recorded_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE public.intake (
    one boolean DEFAULT true NOT NULL,
    batches bigint DEFAULT 0 NOT NULL,
    CONSTRAINT intake_one_check CHECK (one)
);

CREATE TABLE public.reporters (
    agent_id bigint NOT NULL,
    project_id bigint NOT NULL,
    since bigint NOT NULL
);

CREATE TABLE public.resync_members (
    agent_id bigint NOT NULL,
    object text NOT NULL COLLATE pg_catalog."C",
    workload uuid
);

CREATE TABLE public.resyncs (
    agent_id bigint NOT NULL,
    resync_id text NOT NULL COLLATE pg_catalog."C",
    begun_at timestamp with time zone NOT NULL
);

CREATE TABLE public.rollouts (
    id text NOT NULL COLLATE pg_catalog."C",
    workload uuid NOT NULL,
    cluster_uid text NOT NULL,
    agent_id bigint NOT NULL,
    namespace text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    uid text NOT NULL,
    revision bigint NOT NULL,
    template_hash text NOT NULL,
    change text NOT NULL,
    of_revision bigint NOT NULL,
    strategy text NOT NULL,
    images jsonb NOT NULL,
    previous_images jsonb NOT NULL,
    labels jsonb NOT NULL,
    commit_sha text NOT NULL,
    deploy_group text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    started_observed_at timestamp with time zone NOT NULL,
    replicas_at_start bigint NOT NULL,
    scaled_during boolean NOT NULL,
    last_sequence bigint NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    first_sequence bigint,
    state text,
    ended_at timestamp with time zone,
    ended_observed_at timestamp with time zone,
    drained_at timestamp with time zone,
    duration_ms bigint,
    counts jsonb,
    stalled boolean,
    blocked boolean,
    paused boolean,
    troubled boolean,
    reconstructed boolean,
    reason text,
    message text,
    superseded_by text
)
WITH (fillfactor='70');

CREATE TABLE public.sink_deliveries (
    sink text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    sequence bigint NOT NULL,
    outcome text NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE public.sink_migrations (
    version integer NOT NULL
);

CREATE TABLE public.sink_threads (
    sink text NOT NULL COLLATE pg_catalog."C",
    thread text NOT NULL COLLATE pg_catalog."C",
    value jsonb NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
)
WITH (fillfactor='70');

CREATE TABLE public.sinks (
    name text NOT NULL COLLATE pg_catalog."C",
    next_sequence bigint NOT NULL,
    trouble text DEFAULT ''::text NOT NULL,
    trouble_since timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL
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

CREATE TABLE public.workloads (
    id uuid NOT NULL,
    cluster_uid text NOT NULL,
    agent_id bigint NOT NULL,
    present boolean NOT NULL,
    wake_at timestamp with time zone,
    state text NOT NULL,
    told bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70');

INSERT INTO public.agents (agent_id, cluster_uid, epoch, ticked_at, resync_id, resync_open, resync_expected, resync_versions, resync_at, selection, selection_complete, complete_at, listed_versions, listed_at) VALUES (7, 'cluster-1', 1, '2026-03-04 05:06:07+00', 'r1', false, 0, NULL, NULL, 's', 's', '2026-03-04 05:00:00+00', NULL, NULL);

INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('deploys', 1, '001_deploys.sql', '\xa22999466c2b8a2b61449c9642ef04b451754bd2f155a9aed3c4a32050675f7d');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('deploys', 2, '002_repair.sql', '\x565e868510568752f633254fa18c50440e6afe302ff6543680d28e0be98235f2');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('cursor', 1, '001_cursor.sql', '\x375903d9c67845e208eb9ba240bd26999ab513825a4d9ce243d33c2d453b377b');
INSERT INTO public.applied_migrations (series, version, file, sha256) VALUES ('sink', 1, '001_sinks.sql', '\x0d88f7398cc74cadef4e05fa60425201a5cd762a20369d0ba279b8f158f2488f');

INSERT INTO public.claims (number, cluster_uid, since, project_id, agent_id, user_id, reason, claimed_at) OVERRIDING SYSTEM VALUE VALUES (1, 'cluster-1', 1, 4, 7, 0, '', '2026-03-04 05:00:00+00');
INSERT INTO public.claims (number, cluster_uid, since, project_id, agent_id, user_id, reason, claimed_at) OVERRIDING SYSTEM VALUE VALUES (2, 'cluster-2', 9, 4, 0, 9, 'moved', '2026-03-04 05:30:00+00');

INSERT INTO public.cursor_migrations (version) VALUES (1);

INSERT INTO public.deploys_migrations (version) VALUES (2);

INSERT INTO public.environments (id, cluster_uid, agent_id, wake_at, state, told) VALUES ('0b5e4c7e-9f0a-5d1f-8f4f-5a1000000002', 'cluster-1', 7, NULL, '{"key": {"cluster_uid": "cluster-1", "namespace": "shop", "name": "shop"}, "serial": 1}', 0);

INSERT INTO public.facts (id, workload, sequence, fact, rollout_id, occurred_at, observed_at, data, stream_sequence, recorded_at) VALUES ('f1', '0b5e4c7e-9f0a-5d1f-8f4f-5a1000000001', 1, 'started', 'cluster-1/web/1/h', '2026-03-04 05:06:07+00', '2026-03-04 05:06:08+00', '{}', 5, '2026-03-04 05:06:08+00');

INSERT INTO public.intake (one, batches) VALUES (true, 12);

INSERT INTO public.reporters (agent_id, project_id, since) VALUES (7, 4, 1);

INSERT INTO public.resync_members (agent_id, object, workload) VALUES (7, 'deployment/shop/web', '0b5e4c7e-9f0a-5d1f-8f4f-5a1000000001');

INSERT INTO public.resyncs (agent_id, resync_id, begun_at) VALUES (7, 'r1', '2026-03-04 05:00:00+00');

INSERT INTO public.rollouts (id, workload, cluster_uid, agent_id, namespace, kind, name, uid, revision, template_hash, change, of_revision, strategy, images, previous_images, labels, commit_sha, deploy_group, started_at, started_observed_at, replicas_at_start, scaled_during, last_sequence, updated_at, first_sequence, state, ended_at, ended_observed_at, drained_at, duration_ms, counts, stalled, blocked, paused, troubled, reconstructed, reason, message, superseded_by) VALUES ('cluster-1/web/1/h', '0b5e4c7e-9f0a-5d1f-8f4f-5a1000000001', 'cluster-1', 7, 'shop', 'deployment', 'web', 'u1', 1, 'h', 'updated', 0, 'RollingUpdate', '[]', '[]', '{}', 'c0ffee', '', '2026-03-04 05:06:07+00', '2026-03-04 05:06:08+00', 2, false, 1, '2026-03-04 05:06:08+00', 1, 'running', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);

INSERT INTO public.sink_deliveries (sink, key, sequence, outcome, at) VALUES ('chat', 'f1', 5, 'delivered', '2026-03-04 05:06:09+00');

INSERT INTO public.sink_migrations (version) VALUES (1);

INSERT INTO public.sink_threads (sink, thread, value, updated_at) VALUES ('chat', 'cluster-1/web/1/h', '"m1"', '2026-03-04 05:06:09+00');

INSERT INTO public.sinks (name, next_sequence, trouble, trouble_since, created_at) VALUES ('chat', 5, '', NULL, '2026-03-04 05:00:00+00');

INSERT INTO public.stream_cursors (consumer, stream, epoch, sequence, event_id, stored_at, stream_created, updated_at) VALUES ('workloads', 'OBSERVED', 1, 99, 'cluster-1/1', 5, 6, '2026-03-04 05:06:08+00');

INSERT INTO public.workloads (id, cluster_uid, agent_id, present, wake_at, state, told) VALUES ('0b5e4c7e-9f0a-5d1f-8f4f-5a1000000001', 'cluster-1', 7, true, NULL, '{"key": {"cluster_uid": "cluster-1", "namespace": "shop", "kind": "deployment", "name": "web"}, "serial": 3, "sequence": 1, "agent_id": 7, "epoch": 1, "version": "48213", "uid": "u1", "view": {}}', 5);

SELECT pg_catalog.setval('public.claims_number_seq', 2, true);

ALTER TABLE ONLY public.agents
    ADD CONSTRAINT agents_pkey PRIMARY KEY (agent_id);

ALTER TABLE ONLY public.applied_migrations
    ADD CONSTRAINT applied_migrations_pkey PRIMARY KEY (series, version);

ALTER TABLE ONLY public.claims
    ADD CONSTRAINT claims_pkey PRIMARY KEY (number);

ALTER TABLE ONLY public.environments
    ADD CONSTRAINT environments_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.facts
    ADD CONSTRAINT facts_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.intake
    ADD CONSTRAINT intake_pkey PRIMARY KEY (one);

ALTER TABLE ONLY public.reporters
    ADD CONSTRAINT reporters_pkey PRIMARY KEY (agent_id);

ALTER TABLE ONLY public.resync_members
    ADD CONSTRAINT resync_members_pkey PRIMARY KEY (agent_id, object);

ALTER TABLE ONLY public.resyncs
    ADD CONSTRAINT resyncs_pkey PRIMARY KEY (agent_id, resync_id);

ALTER TABLE ONLY public.rollouts
    ADD CONSTRAINT rollouts_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.sink_deliveries
    ADD CONSTRAINT sink_deliveries_pkey PRIMARY KEY (sink, key);

ALTER TABLE ONLY public.sink_threads
    ADD CONSTRAINT sink_threads_pkey PRIMARY KEY (sink, thread);

ALTER TABLE ONLY public.sinks
    ADD CONSTRAINT sinks_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.stream_cursors
    ADD CONSTRAINT stream_cursors_pkey PRIMARY KEY (consumer, stream);

ALTER TABLE ONLY public.workloads
    ADD CONSTRAINT workloads_pkey PRIMARY KEY (id);

CREATE INDEX claims_cluster ON public.claims USING btree (cluster_uid, number);

CREATE INDEX environments_wake ON public.environments USING btree (cluster_uid, wake_at) WHERE (wake_at IS NOT NULL);

CREATE INDEX facts_stream ON public.facts USING btree (stream_sequence);

CREATE INDEX facts_workload ON public.facts USING btree (workload, sequence);

CREATE INDEX rollouts_running ON public.rollouts USING btree (agent_id) WHERE (state = 'running'::text);

CREATE INDEX rollouts_started ON public.rollouts USING btree (started_at DESC, id DESC);

CREATE INDEX rollouts_workload ON public.rollouts USING btree (workload, first_sequence);

CREATE INDEX sink_deliveries_at ON public.sink_deliveries USING btree (at);

CREATE INDEX sink_threads_updated_at ON public.sink_threads USING btree (updated_at);

CREATE INDEX workloads_agent ON public.workloads USING btree (agent_id) WHERE present;

CREATE INDEX workloads_wake ON public.workloads USING btree (cluster_uid, wake_at) WHERE (wake_at IS NOT NULL);

