package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgxpool"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

const (
	dispatchWorkspaces = 10
	// dispatchSpell is how many changes, and then how many commits, a turn has.
	dispatchSpell = 20
	// dispatchPause between changes: what the one before has led to shall not burden the next.
	dispatchPause = 40 * time.Millisecond
)

// dispatchFamily measures how soon and how fast the cluster is brought to what people want.
func dispatchFamily() Family {
	return Family{
		Name: "dispatch",
		About: "p50_ms and p99_ms: a user's request is sent to the real state service → its dispatcher's first request about that revision arrives at the API server, with PostgreSQL, " +
			"outbox, accounts of NATS and all; the API server is a stand-in that accepts everything, so that nothing else of a cluster is measured. applied_per_s: a real kubelab, new stopped workspaces from " +
			"their messages on DESIRED to their results on APPLIED.",
		Specs: []Spec{
			{Name: "p50_ms", Unit: "ms", About: "request sent → apply begins, half of them, at about twenty requests a second", Baseline: "one durable commit of one row, in the same database", Aim: Aim{Of: ofRatio, Below: 4}},
			{Name: "p99_ms", Unit: "ms", About: "the same, all but one in a hundred", Baseline: "the same percentile of such commits", Aim: Aim{Of: ofValue, Below: 15}},
			{
				Name: "applied_per_s", Unit: "1/s", About: "workspaces applied, whose inventories are kept and results told",
				Baseline: "bare server-side applies of the same manifests by one client with as many workers, which keep and tell nothing", Aim: Aim{Of: ofRatio, AtLeast: 0.8},
			},
		},
		Run: dispatchFigures,
	}
}

func dispatchFigures(ctx context.Context, size Size) (Measured, error) {
	measured := Measured{}
	if size.wants("p50_ms", "p99_ms") {
		if err := measureLatency(ctx, measured, size); err != nil {
			return nil, err
		}
	}
	if size.wants("applied_per_s") {
		if err := measureApplied(ctx, measured, size); err != nil {
			return nil, err
		}
	}
	return measured, nil
}

// latencyBed is a whole system whose cluster is a stand-in.
type latencyBed struct {
	api        *client.API
	database   *pgxpool.Pool
	cluster    *acceptance
	workspaces []string
	next       int
}

func measureLatency(ctx context.Context, measured Measured, size Size) (err error) {
	parts := &bed{}
	defer parts.close(ctx, &err)
	b, err := newLatencyBed(ctx, parts)
	if err != nil {
		return err
	}
	var ours, bare []float64
	_, _, err = takeTurns(ctx, size.For,
		func(ctx context.Context, _ int) (float64, error) {
			pace := time.NewTicker(dispatchPause)
			defer pace.Stop()
			for range size.of(dispatchSpell) {
				select {
				case <-pace.C:
				case <-ctx.Done():
					return 0, fmt.Errorf("change workspaces: %w", context.Cause(ctx))
				}
				took, err := b.change(ctx)
				if err != nil {
					return 0, err
				}
				ours = append(ours, milliseconds(took))
			}
			return 0, nil
		},
		func(ctx context.Context, round int) (float64, error) {
			pace := time.NewTicker(dispatchPause)
			defer pace.Stop()
			for i := range size.of(dispatchSpell) {
				<-pace.C
				began := time.Now()
				if _, err := b.database.Exec(ctx, `update bench set value = $1`, strconv.Itoa(round*dispatchSpell+i)); err != nil {
					return 0, fmt.Errorf("commit: %w", err)
				}
				bare = append(bare, milliseconds(time.Since(began)))
			}
			return 0, nil
		})
	if err != nil {
		return err
	}
	measured["p50_ms"] = beside(median(ours), median(bare))
	measured["p99_ms"] = beside(percentile(ours, 99), percentile(bare, 99))
	return nil
}

func newLatencyBed(ctx context.Context, parts *bed) (*latencyBed, error) {
	dir, err := parts.folder()
	if err != nil {
		return nil, err
	}
	database, err := parts.postgres(ctx)
	if err != nil {
		return nil, err
	}
	f, err := newFleet(benchAgent, "w")
	if err != nil {
		return nil, err
	}
	server, kubeconfig, err := parts.cluster(dir, f, 0)
	if err != nil {
		return nil, err
	}
	b := &latencyBed{cluster: accept(server)}
	if b.database, err = parts.pool(ctx, database.URL(), "public"); err != nil {
		return nil, err
	}
	if _, err := b.database.Exec(ctx, `create table bench as select ''::text as value`); err != nil {
		return nil, fmt.Errorf("make a table: %w", err)
	}
	system, err := stack.Start(ctx, stack.Options{Kubeconfig: kubeconfig, DatabaseURL: database.URL()})
	if err != nil {
		return nil, fmt.Errorf("start the system: %w", err)
	}
	parts.onClose(func(context.Context) error { return system.Stop() })
	token, err := readLine(filepath.Join(system.Dir(), "keys", "admin.token"))
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{}
	parts.onClose(func(context.Context) error {
		transport.CloseIdleConnections()
		return nil
	})
	b.api = client.New(&http.Client{Transport: transport}, system.APIURL(), token)
	return b, b.create(ctx)
}

// create makes the workspaces and waits until each has been applied.
func (b *latencyBed) create(ctx context.Context) error {
	projects, err := b.api.Projects(ctx)
	if err != nil {
		return fmt.Errorf("find the project: %w", err)
	}
	for i := range dispatchWorkspaces {
		made, err := b.api.Workspaces.CreateWorkspace(ctx, connect.NewRequest(&statev1.CreateWorkspaceRequest{Name: fmt.Sprintf("w%d", i), ProjectId: projects[0].GetId()}))
		if err != nil {
			return fmt.Errorf("create a workspace: %w", err)
		}
		w := made.Msg.GetWorkspace()
		if _, err := b.cluster.reached(ctx, w.GetId(), w.GetDesiredRevision()); err != nil {
			return err
		}
		b.workspaces = append(b.workspaces, w.GetId())
	}
	return nil
}

// change stops or starts one workspace after the other.
func (b *latencyBed) change(ctx context.Context) (time.Duration, error) {
	id := b.workspaces[b.next%len(b.workspaces)]
	to := statev1.DesiredState_DESIRED_STATE_STOPPED
	if b.next/len(b.workspaces)%2 == 1 {
		to = statev1.DesiredState_DESIRED_STATE_RUNNING
	}
	b.next++
	began := time.Now()
	changed, err := b.api.Workspaces.SetDesiredState(ctx, connect.NewRequest(&statev1.SetDesiredStateRequest{
		Workspace: &statev1.WorkspaceReference{Reference: &statev1.WorkspaceReference_Id{Id: id}}, DesiredState: to,
	}))
	if err != nil {
		return 0, fmt.Errorf("change a workspace: %w", err)
	}
	at, err := b.cluster.reached(ctx, id, changed.Msg.GetWorkspace().GetDesiredRevision())
	return at.Sub(began), err
}
