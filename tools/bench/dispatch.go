package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"connectrpc.com/connect"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/watcher/kube/kubetest"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

const (
	dispatchWorkspaces = 10
	// dispatchRequests is the number of requests, and then of commits, in a turn.
	dispatchRequests = 20
	// dispatchPause between requests lets the effects of the last one end.
	dispatchPause = 40 * time.Millisecond
)

// latencyFixture is a whole system. A stand-in for the API server accepts everything.
type latencyFixture struct {
	api        *client.API
	cluster    *acceptingCluster
	workspaces []string
	next       int
}

// dispatch measures from a request to the state service to the first request of the
// dispatcher to the API server, beside commits of one row in the same database.
func dispatch(ctx context.Context, f *fixture, size Size, measured Measured) {
	database := f.postgres(ctx)
	pool := f.pool(ctx, database, "public")
	must(pool.Exec(ctx, `create table bench as select ''::text as value`))
	l := newLatencyFixture(ctx, f, database)
	paced := func(times *[]float64, fn func() time.Duration) func(int) float64 {
		return func(int) float64 {
			pace := time.NewTicker(dispatchPause)
			defer pace.Stop()
			for range size.of(dispatchRequests) {
				<-pace.C
				*times = append(*times, milliseconds(fn()))
			}
			return 0
		}
	}
	var ours, bare []float64
	takeTurns(ctx, size.For, paced(&ours, func() time.Duration { return l.change(ctx) }),
		paced(&bare, func() time.Duration {
			began := time.Now()
			must(pool.Exec(ctx, `update bench set value = $1`, strconv.Itoa(len(bare))))
			return time.Since(began)
		}))
	measured["p50_ms"] = beside(median(ours), median(bare))
	measured["p99_ms"] = beside(percentile(ours, 99), percentile(bare, 99))
}

func newLatencyFixture(ctx context.Context, f *fixture, database string) *latencyFixture {
	server := kubetest.New()
	f.onEnd(server.Close)
	kubeconfig := f.file("kubeconfig")
	check(server.WriteKubeconfig(kubeconfig))
	l := &latencyFixture{cluster: &acceptingCluster{newTimeline[arrival]()}}
	server.Handle(l.cluster.serve)
	system := f.system(ctx, stack.Options{Kubeconfig: kubeconfig, DatabaseURL: database})
	token := readLine(filepath.Join(system.Dir(), "keys", "admin.token"))
	l.api = client.New(f.httpClient(), system.APIURL(), token)
	project := must(l.api.Projects(ctx))[0].GetId()
	for i := range dispatchWorkspaces {
		created := must(l.api.Workspaces.CreateWorkspace(ctx, connect.NewRequest(&statev1.CreateWorkspaceRequest{
			Name: fmt.Sprintf("w%d", i), ProjectId: project,
		})))
		w := created.Msg.GetWorkspace()
		l.cluster.applied(ctx, w.GetId(), w.GetDesiredRevision())
		l.workspaces = append(l.workspaces, w.GetId())
	}
	return l
}

// change stops or starts the next workspace and waits until the cluster is asked to apply it.
func (l *latencyFixture) change(ctx context.Context) time.Duration {
	id := l.workspaces[l.next%len(l.workspaces)]
	to := statev1.DesiredState_DESIRED_STATE_STOPPED
	if l.next/len(l.workspaces)%2 == 1 {
		to = statev1.DesiredState_DESIRED_STATE_RUNNING
	}
	l.next++
	began := time.Now()
	changed := must(l.api.Workspaces.SetDesiredState(ctx, connect.NewRequest(&statev1.SetDesiredStateRequest{
		Workspace:    &statev1.WorkspaceReference{Reference: &statev1.WorkspaceReference_Id{Id: id}},
		DesiredState: to,
	})))
	return l.cluster.applied(ctx, id, changed.Msg.GetWorkspace().GetDesiredRevision()).Sub(began)
}
