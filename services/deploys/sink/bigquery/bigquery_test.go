package bigquery_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/egress"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/services/deploys/sink/bigquery"
	"lockstep.internal/services/deploys/sink/bigquery/bigquerytest"
	"lockstep.internal/services/deploys/sink/sinktest"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) {
	// A dependency of the BigQuery client starts a goroutine at process start.
	leaktest.Main(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

const table = "deploy_facts"

type bundle struct {
	t      *testing.T
	server *bigquerytest.Server
	sink   *bigquery.Sink
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{t: t, server: bigquerytest.Start(t)}
	b.open(time.Minute)
	return b
}

func (b *bundle) open(timeout time.Duration) {
	b.t.Helper()
	cfg := bigquery.DefaultConfig()
	cfg.Project, cfg.Dataset, cfg.APIURL = "acme-deploys", bigquerytest.Dataset, config.URL(b.server.APIURL())
	require.Empty(b.t, cfg.Validate())
	require.Empty(b.t, cfg.Missing())
	transport := sink.NewTransport(sink.ClientOptions{
		Limiter: sink.NewLimiter(), Timeout: timeout, Network: egress.Config{AllowPrivate: true},
	})
	b.t.Cleanup((&http.Client{Transport: transport}).CloseIdleConnections)
	b.sink = bigquery.New(cfg, bigquery.Options{Transport: transport, Timeout: timeout})
}

func delivery(n int) sink.Delivery {
	at := time.Date(2026, 5, 1, 10, 0, n, 0, time.UTC)
	ms := 1500
	return sink.Delivery{Key: fmt.Sprintf("id-%d", n), Fact: events.DeployFact{
		Fact:       events.FactCompleted,
		Sequence:   n,
		OccurredAt: at,
		ObservedAt: at,
		Provenance: events.ProvenanceObserved,
		DurationMs: &ms,
		Workload:   events.Workload{ClusterUID: "c1", Namespace: "shop", Kind: "deployment", Name: "checkout"},
		Rollout: &events.Rollout{
			ID:                "c1/u/42",
			Revision:          42,
			Change:            "updated",
			StartedObservedAt: &at,
			Images:            []events.Image{{Container: "c", Image: "shop:1"}},
		},
	}}
}

func deliveries(n int) []sink.Delivery {
	var list []sink.Delivery
	for i := range n {
		list = append(list, delivery(i+1))
	}
	return list
}

func noErrors(t *testing.T, errs []error) {
	t.Helper()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

func TestTableIsCreatedAndEachFactIsARow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	noErrors(t, b.sink.DeliverBatch(t.Context(), deliveries(3)))
	rows := b.server.Rows(table)
	require.Len(t, rows, 3)
	require.Equal(t, "id-1", rows[0]["fact_id"])
	require.Equal(t, "2026-05-01T10:00:01Z", rows[0]["occurred_at"])
	require.InDelta(t, 1500, rows[0]["duration_ms"], 0)
	require.Equal(t, []any{"shop:1"}, rows[0]["images"])
	var fact events.DeployFact
	require.NoError(t, json.Unmarshal([]byte(rows[0]["data"].(string)), &fact))
	require.Equal(t, delivery(1).Fact, fact)
	created := b.server.Table(table)
	require.JSONEq(t, `{"type":"DAY","field":"occurred_at"}`, string(created.TimePartitioning))
	require.JSONEq(t, `{"fields":["namespace","name"]}`, string(created.Clustering))

	scale := delivery(9)
	scale.Key, scale.Fact.Rollout = strings.Repeat("long", 50), nil
	require.NoError(t, b.sink.Deliver(t.Context(), scale))
	noErrors(t, b.sink.DeliverBatch(t.Context(), append(deliveries(3), scale)))
	require.Len(t, b.server.Rows(table), 4, "BigQuery drops rows with known insert ids")
}

func TestMissingColumnsAreAdded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.sink.Deliver(t.Context(), delivery(1)))
	b.server.Drop(table, "environment_url", "observed_at")
	b.open(time.Minute)
	require.NoError(t, b.sink.Deliver(t.Context(), delivery(2)))
	require.Len(t, b.server.Rows(table), 2)
}

func TestMissingTableIsRetried(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.server.NotReady(2)
	for range 2 {
		err := b.sink.Deliver(t.Context(), delivery(1))
		require.ErrorContains(t, err, "Not found")
		require.False(t, retry.IsPermanent(err))
	}
	require.NoError(t, b.sink.Deliver(t.Context(), delivery(1)))
	b.server.Drop(table)
	require.Error(t, b.sink.Deliver(t.Context(), delivery(2)))
	require.NoError(t, b.sink.Deliver(t.Context(), delivery(2)))
	require.Len(t, b.server.Rows(table), 1)
}

func TestInvalidRowFailsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.sink.Deliver(t.Context(), delivery(1)))
	batch := deliveries(4)
	b.server.Drop(table, "rollout_id", "revision", "change", "started_at")
	batch[1].Fact.Rollout, batch[2].Fact.Rollout = nil, nil // valid rows
	errs := b.sink.DeliverBatch(t.Context(), batch)
	require.True(t, retry.IsPermanent(errs[0]))
	require.ErrorContains(t, errs[0], "no such field")
	require.True(t, retry.IsPermanent(errs[3]))
	for _, err := range errs[1:3] {
		require.Error(t, err)
		require.False(t, retry.IsPermanent(err))
	}
	noErrors(t, b.sink.DeliverBatch(t.Context(), batch[1:3]))
	require.Len(t, b.server.Rows(table), 3)
}

func TestLargeBatchIsSplit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.server.MaxBytes = 4 << 10
	batch := deliveries(20)
	batch[7].Fact.Message = strings.Repeat("x", 5<<10)
	errs := b.sink.DeliverBatch(t.Context(), batch)
	for i, err := range errs {
		require.Equal(t, i == 7, retry.IsPermanent(err), err)
	}
	require.Len(t, b.server.Rows(table), 19)
}

func TestErrorsOfAPIAreRetried(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fault sinktest.Fault
		rows  int
	}{
		"quota": {sinktest.Status(403, http.Header{"Content-Type": {"application/json"}},
			bigquerytest.ErrorBody(403, "quotaExceeded", "Exceeded quota")), 0},
		"denied": {sinktest.Status(403, http.Header{"Content-Type": {"application/json"}},
			bigquerytest.ErrorBody(403, "accessDenied", "Access Denied")), 0},
		"lost response":       {sinktest.DropResponse(), 1},
		"no response":         {sinktest.Hang(true), 1},
		"incomplete response": {sinktest.TruncateResponse(), 1},
		"dropped request":     {sinktest.Drop(), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			require.NoError(t, b.sink.Deliver(t.Context(), delivery(1)))
			b.open(700 * time.Millisecond)
			inserts := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "insertAll") }
			// On a slow machine, an attempt may time out before it has sent a request.
			for retrying := true; retrying; retrying = len(b.server.Rows(table)) < 1+tc.rows {
				faults := slices.Repeat([]sinktest.Fault{tc.fault}, 20) // more than a delivery has attempts
				b.server.Faults.Matching(inserts, faults...)
				err := b.sink.Deliver(t.Context(), delivery(2))
				require.Error(t, err)
				require.False(t, retry.IsPermanent(err))
			}
			require.Len(t, b.server.Rows(table), 1+tc.rows)
			b.server.Faults.Clear()
			b.open(time.Minute)
			require.NoError(t, b.sink.Deliver(t.Context(), delivery(2)))
			require.Len(t, b.server.Rows(table), 2)
		})
	}
}

func TestTemporaryFailureIsRetriedWithinTheDelivery(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.sink.Deliver(t.Context(), delivery(1)))
	b.open(30 * time.Second)
	b.server.Faults.Writes(sinktest.Status(503, http.Header{"Retry-After": {"1"}}, "{}"))
	start := time.Now()
	require.NoError(t, b.sink.Deliver(t.Context(), delivery(2)))
	require.GreaterOrEqual(t, time.Since(start), time.Second)
}

func TestMissingDatasetIsRetried(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cfg := bigquery.Config{Project: "acme-deploys", Dataset: "none", Table: "t", APIURL: config.URL(b.server.APIURL())}
	transport := sink.NewTransport(sink.ClientOptions{
		Limiter: sink.NewLimiter(),
		Network: egress.Config{AllowPrivate: true},
	})
	t.Cleanup((&http.Client{Transport: transport}).CloseIdleConnections)
	err := bigquery.New(cfg, bigquery.Options{Transport: transport}).Deliver(t.Context(), delivery(1))
	require.ErrorContains(t, err, "Not found: Dataset none")
	require.False(t, retry.IsPermanent(err))
}

func TestInvalidConfigurationIsReported(t *testing.T) {
	t.Parallel()
	require.Len(t, bigquery.Config{}.Missing(), 3)
	require.Len(t, bigquery.Config{Project: "A", Dataset: "-", Table: "a b", APIURL: "x"}.Validate(), 4)
}
