package sink_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	cell     = topology.Cell("local")
	patience = time.Minute
)

// bed is a cell with its streams and the service's database.
type bed struct {
	t      *testing.T
	server *natsd.Server
	js     jetstream.JetStream
	pool   *pgxpool.Pool
	next   map[string]int
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{t: t, server: natstest.Server(t), next: map[string]int{}}
	b.js = natstest.JetStream(t, b.server)
	require.NoError(t, topology.Ensure(natstest.Context(t), b.js, cell, topology.Options{StorageBytes: 1 << 30}))
	pool, err := postgres.Connect(t.Context(), postgres.Config{URL: pgtest.Database(t), Schema: "deploys"}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b.pool = pool
	migrations, err := sink.Migrations()
	require.NoError(t, err)
	require.NoError(t, postgres.Migrate(t.Context(), pool, slog.New(slog.DiscardHandler), migrations))
	return b
}

// message is a fact as it is on DEPLOYS.
func message(t testing.TB, id string, f events.DeployFact) *nats.Msg {
	t.Helper()
	data, err := json.Marshal(map[string]any{
		"context": map[string]any{"id": id}, "subject": map[string]any{}, "customData": f, "customDataContentType": "application/json",
	})
	require.NoError(t, err)
	w := f.Workload
	return &nats.Msg{Subject: cell.Deploy(w.ClusterUID, w.Namespace, w.Kind, w.Name, string(f.Fact)), Data: data, Header: nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {id}, "ce-type": {"dev.cdeventsx.lockstep-rollout." + string(f.Fact) + ".0.1.0"},
		"ce-source": {"/lockstep/local/deploys"}, "ce-datacontenttype": {"application/json"},
	}}
}

func fact(workload string, sequence int, name events.Fact) events.DeployFact {
	at := time.Date(2026, 5, 1, 10, 0, sequence, 0, time.UTC)
	return events.DeployFact{
		Fact: name, Sequence: sequence, OccurredAt: at, ObservedAt: at, Provenance: events.ProvenanceObserved,
		Workload: events.Workload{ClusterUID: "c1", Namespace: "shop", Kind: "deployment", Name: workload},
		Rollout:  &events.Rollout{ID: "c1/" + workload + "/1", Revision: 1, Change: "updated"},
	}
}

// publish publishes the next fact of the workload; its id is <workload>/<number>.
func (b *bed) publish(workload string, name events.Fact) {
	b.t.Helper()
	b.next[workload]++
	n := b.next[workload]
	id := workload + "/" + strconv.Itoa(n)
	_, err := b.js.PublishMsg(b.t.Context(), message(b.t, id, fact(workload, n, name)))
	require.NoError(b.t, err)
}

// replica runs a set with these entries until the returned function is called or the test ends.
func (b *bed) replica(entries ...sink.Entry) (*sink.Set, func()) {
	b.t.Helper()
	for i := range entries {
		if entries[i].Retry == (sink.Retry{}) {
			entries[i].Retry = sink.Retry{Min: time.Millisecond, Max: 10 * time.Millisecond}
		}
	}
	cfg := sink.Config{
		Cell: cell, Pool: b.pool, JetStream: natstest.JetStream(b.t, b.server), Logger: slog.New(slog.DiscardHandler), Entries: entries,
		LockInterval: time.Millisecond, AckWait: 2 * time.Second, NoteInterval: 20 * time.Millisecond, StaleAfter: time.Nanosecond,
	}
	set, err := sink.New(cfg)
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- set.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(b.t, <-ended)
	})
	b.t.Cleanup(stop)
	return set, stop
}

// begun waits until the sink stands on the stream.
func (b *bed) begun(set *sink.Set) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		list, err := set.List(context.Background())
		return err == nil && len(list) > 0 && list[0].Next > 0
	}, patience, 5*time.Millisecond)
	// A consumer that was made is set back at once, before anything is taken: what the row in the database says is not enough to tell.
	require.Eventually(b.t, func() bool {
		_, err := b.js.Consumer(context.Background(), topology.StreamSinks, "sink-"+"test")
		return err == nil
	}, patience, 5*time.Millisecond)
}

// drained waits until the sink is done with all there is.
func (b *bed) drained(set *sink.Set) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		stream, err := b.js.Stream(context.Background(), topology.StreamDeploys)
		if err != nil {
			return false
		}
		list, err := set.List(context.Background())
		return err == nil && list[0].Next == stream.CachedInfo().State.LastSeq+1 && list[0].Waiting == 0
	}, patience, 5*time.Millisecond)
}

// recorder is a destination that remembers what it was told, and answers as the test says.
type recorder struct {
	traits sink.Traits
	answer func(sink.Delivery) error
	pace   func(context.Context) error

	mu   sync.Mutex
	got  []string
	busy map[string]bool
	twos int // how often two facts of a thread were delivered at once
}

func (r *recorder) Traits() sink.Traits { return r.traits }

func (r *recorder) Thread(f events.DeployFact) (string, bool) {
	return f.Workload.Name, f.Fact != events.FactGap
}

func (r *recorder) Pace(ctx context.Context) error {
	if r.pace == nil {
		return nil
	}
	return r.pace(ctx)
}

func (r *recorder) Deliver(_ context.Context, d sink.Delivery) error {
	r.mu.Lock()
	if r.busy == nil {
		r.busy = map[string]bool{}
	}
	if r.busy[d.Thread] {
		r.twos++
	}
	r.busy[d.Thread] = true
	r.mu.Unlock()
	var err error
	if r.answer != nil {
		err = r.answer(d)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy[d.Thread] = false
	if err == nil {
		text := d.Key
		for range d.Earlier {
			text += "+"
		}
		if d.Again {
			text += "!"
		}
		r.got = append(r.got, text)
	}
	return err
}

func (r *recorder) delivered() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.got...)
}

// of are the deliveries of one workload.
func (r *recorder) of(workload string) []string {
	var list []string
	for _, key := range r.delivered() {
		if len(key) > len(workload) && key[:len(workload)+1] == workload+"/" {
			list = append(list, key)
		}
	}
	return list
}

func (b *bed) eventually(what string, holds func() bool) {
	b.t.Helper()
	require.Eventually(b.t, holds, patience, 5*time.Millisecond, what)
}

func ids(workload string, from, to int) []string {
	var list []string
	for i := from; i <= to; i++ {
		list = append(list, fmt.Sprintf("%s/%d", workload, i))
	}
	return list
}

var discard = slog.New(slog.DiscardHandler)

// dead are the letters on DEAD.
func (b *bed) dead() []*jetstream.RawStreamMsg {
	b.t.Helper()
	stream, err := b.js.Stream(b.t.Context(), topology.StreamDead)
	require.NoError(b.t, err)
	var letters []*jetstream.RawStreamMsg
	for sequence := uint64(1); sequence <= stream.CachedInfo().State.LastSeq; sequence++ {
		m, err := stream.GetMsg(b.t.Context(), sequence)
		require.NoError(b.t, err)
		letters = append(letters, m)
	}
	return letters
}
