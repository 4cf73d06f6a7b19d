package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/events"
	stateingest "lockstep.internal/services/state/ingest"
	store "lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natsd"
)

const (
	// workspacePrefix begins the names of workspaces.
	workspacePrefix = "w"
	// resyncSmall is the number of workspaces of the smallest resync.
	resyncSmall = 1000
	// liveChanges is the least number of changes for a 99th percentile.
	liveChanges = 300
	// livePause is the time between two changes.
	livePause = 10 * time.Millisecond
)

// resyncFixture is a control plane with one agent. The state service and the watcher are processes.
type resyncFixture struct {
	*fixture

	database    *pgxpool.Pool
	state       *child
	agent       int64
	project     int64
	credentials string
	workspaces  int // stored ones
	http        *http.Client
	live        *commits
	changed     int // number of changes
}

// resync measures full resyncs, each with a new watcher.
func resync(ctx context.Context, f *fixture, size Size, measured Measured) {
	r := newResyncFixture(ctx, f)
	sizes := []struct {
		name  string
		count int
	}{{"1k_s", resyncSmall}, {"10k_s", 10_000}, {"50k_s", 50_000}}
	if !size.Long {
		sizes = sizes[:2]
	}
	var first float64
	for i, s := range sizes {
		count := size.of(s.count)
		isLast := i == len(sizes)-1
		seconds, peak := 0.0, 0.0
		check(onFixture(ctx, f.profile, func(f *fixture) {
			c := r.startCluster(ctx, f, count)
			seconds = c.resync(ctx)
			peak = float64(c.watcher.memory(ctx).Peak) / (1 << 20)
			if isLast && size.wants("live_p99_ms") {
				measured["live_p99_ms"] = c.measureLive(ctx, size.of(liveChanges))
			}
		}))
		if i == 0 {
			first = seconds / float64(count)
		}
		measured[s.name] = Measurement{Value: seconds}
		measured["peak_mb.watcher"] = Measurement{Value: peak, Note: fmt.Sprintf("%d workspaces", count)}
		growth := beside(seconds/float64(count)*1000, first*1000)
		growth.Note = fmt.Sprintf("%d workspaces beside %d", count, size.of(resyncSmall))
		measured["growth"] = growth
	}
	peak := float64(r.state.memory(ctx).Peak) / (1 << 20)
	measured["peak_mb.state"] = Measurement{Value: peak, Note: measured["peak_mb.watcher"].Note}
}

func newResyncFixture(ctx context.Context, f *fixture) *resyncFixture {
	r := &resyncFixture{fixture: f, http: f.httpClient()}
	database := f.postgres(ctx)
	natsDir := f.file("nats")
	server := f.nats(natsd.Options{ConfigFile: must(natsauth.Init(natsDir, natsauth.Options{Cell: benchCell})).ConfigFile})
	keys, _, err := stack.InitKeys(f.file("keys"))
	check(err)
	r.state = f.start(ctx, childState,
		"--cell-name="+string(benchCell), "--database-url="+database, "--nats-url="+server.ClientURL(),
		"--agents-keys-dir="+natsDir, "--secrets-seal-seed-file="+keys.SealSeedFile,
		"--secrets-digest-key-file="+keys.DigestKeyFile, "--bootstrap-admin-token-file="+keys.AdminTokenFile,
		"--api-listen="+loopback, "--ops-listen="+loopback)
	r.database = f.pool(ctx, database, childState)
	r.live = watchCommits(ctx, f, r.database, "observed_objects", "resource_version",
		fmt.Sprintf("new.resource_version > %d", listedAt))
	api := client.New(r.http, "http://"+r.state.addresses["api"], readLine(keys.AdminTokenFile))
	r.project = must(api.EnsureProject(ctx, "bench/bench/bench")).GetId()
	credentials, agent, err := stack.RegisterAgent(ctx, api, r.project, "bench")
	check(err)
	r.agent, r.credentials = agent.GetId(), f.file("agent.json")
	check(natsauth.WriteAgentCredentials(r.credentials, credentials))
	return r
}

// resyncCluster is a cluster with a watcher.
type resyncCluster struct {
	*resyncFixture

	workspaces int
	watcher    *child
	changes    string // URL
	completed  int    // number of complete resyncs
}

// startCluster starts a cluster with n running workspaces and a watcher, and waits for its first full resync.
func (r *resyncFixture) startCluster(ctx context.Context, f *fixture, n int) *resyncCluster {
	r.storeWorkspaces(ctx, n)
	kubeconfig, server := f.cluster(ctx, clusterConfig{Agent: r.agent, Workspaces: n})
	c := &resyncCluster{resyncFixture: r, workspaces: n, changes: server.addresses[addressChanges]}
	c.await(ctx, 0)
	c.watcher = f.startWatcher(ctx, r.credentials, kubeconfig)
	// The configuration of the agent may cause another one.
	c.await(ctx, c.completed+1)
	return c
}

// resync requests a full resync and returns the seconds until it is complete.
func (c *resyncCluster) resync(ctx context.Context) float64 {
	began := time.Now()
	c.request(ctx)
	c.await(ctx, c.completed+1)
	return time.Since(began).Seconds()
}

// storeWorkspaces stores running workspaces until there are n.
func (r *resyncFixture) storeWorkspaces(ctx context.Context, n int) {
	o := newObjects(r.agent, workspacePrefix)
	var ids, names, namespaces []string
	for i := r.workspaces; i < n; i++ {
		ids = append(ids, o.id("workspace", i).String())
		names, namespaces = append(names, o.name(i)), append(namespaces, o.namespace(i))
	}
	r.workspaces = max(r.workspaces, n)
	must(r.database.Exec(ctx, `
		insert into workspaces (id, name, namespace, project_id, agent_id, user_id, template, created_at, spec,
			desired_state, desired_revision, desired_state_changed_at,
			actual_state, actual_state_changed_at, applied_revision, applied_at)
		select n.id, n.name, n.namespace, $4, $5, (select id from users limit 1), 'default', now(), '{"image": "ide"}',
			'running', 1, now(), 'running', now(), 1, now()
		from unnest($1::uuid[], $2::text[], $3::text[]) as n (id, name, namespace)`,
		ids, names, namespaces, r.project, r.agent))
}

// request requests a full resync, as the state service does.
func (c *resyncCluster) request(ctx context.Context) {
	ingest := &stateingest.Ingest{Logger: quiet(), Encoder: publish.Encoder{Cell: benchCell}}
	stores := &store.IngestStores{}
	agents, cause := []int64{c.agent}, events.ResyncRequestCauseOperator
	check(postgres.InTx(ctx, c.database, func(tx pgx.Tx) error {
		nonces, err := ingest.RequestResyncs(ctx, stores.In(tx), agents, cause, time.Now())
		if err == nil && len(nonces) == 0 {
			return errors.New("the agent does not exist")
		}
		return err
	}))
}

// await waits until at least so many full resyncs are complete and none is open.
func (c *resyncCluster) await(ctx context.Context, least int) {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !c.isComplete(ctx, least) {
		select {
		case <-poll.C:
		case <-c.state.ended:
			check(fmt.Errorf("the state service ended: %w", c.state.err))
		case <-ctx.Done():
			check(fmt.Errorf("wait for a full resync: %w", context.Cause(ctx)))
		}
	}
}

func (c *resyncCluster) isComplete(ctx context.Context, least int) bool {
	var open int
	check(c.database.QueryRow(ctx, `
		select count(*) filter (where outcome = 'complete'), count(*) filter (where outcome = 'open') from resyncs`).
		Scan(&c.completed, &open))
	return c.completed >= least && open == 0
}

// measureLive measures from the change of an object in the API server to the commit of its row in PostgreSQL, which the
// API of the state service reads: during full resyncs, beside the same without a resync.
func (c *resyncCluster) measureLive(ctx context.Context, n int) Measurement {
	idle := c.change(ctx, func(changes int) bool { return changes < n })
	var during []float64
	resyncs := 0
	for ; len(during) < n; resyncs++ {
		least := c.completed + 1
		c.request(ctx)
		during = append(during, c.change(ctx, func(int) bool { return !c.isComplete(ctx, least) })...)
	}
	m := beside(percentile(during, 99), percentile(idle, 99))
	m.Note = fmt.Sprintf("%d changes during %d resyncs of %d workspaces; p50 %.1f, without a resync %.1f",
		len(during), resyncs, c.workspaces, median(during), median(idle))
	return m
}

// change changes a Deployment every livePause while more holds, at least once, and returns the milliseconds until the
// commit of each change.
func (c *resyncCluster) change(ctx context.Context, more func(changes int) bool) []float64 {
	pace := time.NewTicker(livePause)
	defer pace.Stop()
	var changes []commit
	for len(changes) == 0 || more(len(changes)) {
		<-pace.C
		c.changed++
		version := listedAt + c.changed
		url := fmt.Sprintf("%s?version=%d", c.changes, version)
		request := must(http.NewRequestWithContext(ctx, http.MethodPost, url, nil))
		response := must(c.http.Do(request)) //nolint:bodyclose // closed below
		body := must(io.ReadAll(response.Body))
		check(response.Body.Close())
		at := must(strconv.ParseInt(string(body), 10, 64))
		changes = append(changes, commit{number: uint64(version), at: time.Unix(0, at)})
	}
	times := make([]float64, len(changes))
	for i, change := range changes {
		// A later version of the same Deployment may replace it.
		committed := c.live.first(ctx, func(number uint64) bool {
			return number >= change.number && (number-change.number)%uint64(c.workspaces) == 0
		})
		times[i] = milliseconds(committed.Sub(change.at))
	}
	return times
}
