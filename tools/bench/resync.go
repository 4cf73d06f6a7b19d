package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
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
	// liveChanges is the least number of changes for a 99th percentile.
	liveChanges = 300
	// livePause is the time between two changes.
	livePause = 10 * time.Millisecond
)

// resyncFixture is a control plane with one agent.
type resyncFixture struct {
	*fixture

	database    *pgxpool.Pool
	state       *process
	agent       int64
	project     int64
	credentials string
	stored      int // workspaces
	completed   int // resyncs
	http        *http.Client
	live        *timeline[commit]
	changed     int // number of changes
}

// resync measures full resyncs, each with a new watcher.
func resync(ctx context.Context, f *fixture, size Size, measured Measured) {
	r := newResyncFixture(ctx, f)
	sizes := []struct {
		name  string
		count int
	}{{"1k_s", 1000}, {"10k_s", 10_000}, {"50k_s", 50_000}}
	if !size.Long {
		sizes = sizes[:2]
	}
	var first float64
	for i, s := range sizes {
		count := size.of(s.count)
		note := fmt.Sprintf("%d workspaces", count)
		check(onFixture(ctx, f.programs, func(f *fixture) {
			watcher, changes := r.startCluster(ctx, f, count)
			began := time.Now()
			r.request(ctx)
			r.await(ctx, r.completed+1)
			seconds := time.Since(began).Seconds()
			if i == 0 {
				first = seconds / float64(count)
			}
			measured[s.name] = Figure{Value: seconds}
			growth := beside(seconds/float64(count)*1000, first*1000)
			growth.Note = fmt.Sprintf("%s beside %d", note, size.of(sizes[0].count))
			measured["growth"] = growth
			if runtime.GOOS == "linux" {
				measured["peak_mb.watcher"] = Figure{Value: watcher.peakMB(), Note: note}
			}
			if i == len(sizes)-1 && size.wants("live_p99_ms") {
				measured["live_p99_ms"] = r.measureLive(ctx, changes, size.of(liveChanges), count)
			}
			if runtime.GOOS == "linux" {
				measured["peak_mb.state"] = Figure{Value: r.state.peakMB(), Note: note}
			}
		}))
	}
}

func newResyncFixture(ctx context.Context, f *fixture) *resyncFixture {
	r := &resyncFixture{fixture: f, http: f.httpClient()}
	database := f.postgres(ctx)
	natsDir := f.file("nats")
	server := f.nats(natsd.Options{ConfigFile: must(natsauth.Init(natsDir, natsauth.Options{Cell: benchCell})).ConfigFile})
	keys, _, err := stack.InitKeys(f.file("keys"))
	check(err)
	r.state = f.start(ctx, stack.State,
		"--cell-name="+string(benchCell), "--database-url="+database, "--nats-url="+server.ClientURL(),
		"--agents-keys-dir="+natsDir, "--secrets-seal-seed-file="+keys.SealSeedFile,
		"--secrets-digest-key-file="+keys.DigestKeyFile, "--bootstrap-admin-token-file="+keys.AdminTokenFile,
		"--api-listen="+loopback, "--ops-listen="+loopback)
	r.database = f.pool(ctx, database, stack.State)
	r.live = watchCommits(ctx, f, r.database, "observed_objects", "resource_version",
		fmt.Sprintf("new.resource_version > %d", listedAt))
	api := client.New(r.http, "http://"+r.state.addresses[stack.ListenerAPI], readLine(keys.AdminTokenFile))
	r.project = must(api.EnsureProject(ctx, "bench/bench/bench")).GetId()
	credentials, agent, err := stack.RegisterAgent(ctx, api, r.project, "bench")
	check(err)
	r.agent, r.credentials = agent.GetId(), f.file("agent.json")
	check(natsauth.WriteAgentCredentials(r.credentials, credentials))
	return r
}

// startCluster starts a cluster with n running workspaces and a watcher, and waits for its first full resync. It
// returns the URL for changes, too.
func (r *resyncFixture) startCluster(ctx context.Context, f *fixture, n int) (watcher *process, changes string) {
	r.storeWorkspaces(ctx, n)
	kubeconfig, changes := f.cluster(ctx, clusterConfig{Agent: r.agent, Workspaces: n})
	r.await(ctx, 0)
	watcher = f.startWatcher(ctx, r.credentials, kubeconfig)
	// The configuration of the agent may cause another one.
	r.await(ctx, r.completed+1)
	return watcher, changes
}

// storeWorkspaces stores running workspaces until there are n.
func (r *resyncFixture) storeWorkspaces(ctx context.Context, n int) {
	o := newObjects(r.agent, workspacePrefix)
	var ids, names, namespaces []string
	for ; r.stored < n; r.stored++ {
		ids = append(ids, o.id("workspace", r.stored).String())
		names, namespaces = append(names, o.name(r.stored)), append(namespaces, o.namespace(r.stored))
	}
	must(r.database.Exec(ctx, `
		insert into workspaces (id, name, namespace, project_id, agent_id, user_id, template, created_at, spec,
			desired_state, desired_revision, rendered_revision, desired_state_changed_at,
			actual_state, actual_state_changed_at, applied_revision, applied_at)
		select n.id, n.name, n.namespace, $4, $5, (select id from users limit 1), 'default', now(), '{"image": "ide"}',
			'running', 1, 1, now(), 'running', now(), 1, now()
		from unnest($1::uuid[], $2::text[], $3::text[]) as n (id, name, namespace)`,
		ids, names, namespaces, r.project, r.agent))
}

// request requests a full resync, as the state service does.
func (r *resyncFixture) request(ctx context.Context) {
	ingest := &stateingest.Ingest{Logger: quiet(), Encoder: publish.Encoder{Cell: benchCell}}
	check(postgres.InTx(ctx, r.database, func(tx pgx.Tx) error {
		nonces, err := ingest.RequestResyncs(ctx, (&store.IngestStores{}).In(tx), []int64{r.agent},
			events.ResyncRequestCauseOperator, time.Now())
		if err == nil && len(nonces) == 0 {
			return errors.New("the agent does not exist")
		}
		return err
	}))
}

// await waits until at least so many full resyncs are complete and none is open.
func (r *resyncFixture) await(ctx context.Context, least int) {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !r.isComplete(ctx, least) {
		select {
		case <-poll.C:
		case <-r.state.Ended():
			check(r.state.withLog(errors.New("the state service ended")))
		case <-ctx.Done():
			check(fmt.Errorf("wait for a full resync: %w", context.Cause(ctx)))
		}
	}
}

func (r *resyncFixture) isComplete(ctx context.Context, least int) bool {
	var open int
	check(r.database.QueryRow(ctx, `
		select count(*) filter (where outcome = 'complete'), count(*) filter (where outcome = 'open') from resyncs`).
		Scan(&r.completed, &open))
	return r.completed >= least && open == 0
}

// measureLive measures from the change of an object in the API server to the commit of its row in PostgreSQL, which the
// API of the state service reads: during full resyncs, beside the same without a resync.
func (r *resyncFixture) measureLive(ctx context.Context, url string, n, workspaces int) Figure {
	idle := r.change(ctx, url, workspaces, func(changes int) bool { return changes < n })
	var during []float64
	resyncs := 0
	for ; len(during) < n; resyncs++ {
		least := r.completed + 1
		r.request(ctx)
		isOpen := func(int) bool { return !r.isComplete(ctx, least) }
		during = append(during, r.change(ctx, url, workspaces, isOpen)...)
	}
	m := beside(percentile(during, 99), percentile(idle, 99))
	m.Note = fmt.Sprintf("%d changes during %d resyncs of %d workspaces; p50 %.1f, without a resync %.1f",
		len(during), resyncs, workspaces, median(during), median(idle))
	return m
}

// change changes a Deployment every livePause while more holds, at least once, and returns the milliseconds until the
// commit of each change.
func (r *resyncFixture) change(ctx context.Context, url string, workspaces int, more func(changes int) bool) []float64 {
	pace := time.NewTicker(livePause)
	defer pace.Stop()
	var versions []int
	var changed []time.Time
	for len(changed) == 0 || more(len(changed)) {
		<-pace.C
		r.changed++
		version := listedAt + r.changed
		request := must(http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s?version=%d", url, version), nil))
		response := must(r.http.Do(request)) //nolint:bodyclose // closed below
		body := must(io.ReadAll(response.Body))
		check(response.Body.Close())
		versions = append(versions, version)
		changed = append(changed, time.Unix(0, must(strconv.ParseInt(string(body), 10, 64))))
	}
	times := make([]float64, len(changed))
	for i, at := range changed {
		// A later version of the same Deployment may replace it.
		committed := r.live.first(ctx, func(version commit) bool {
			return int(version) >= versions[i] && (int(version)-versions[i])%workspaces == 0
		})
		times[i] = milliseconds(committed.Sub(at))
	}
	return times
}
