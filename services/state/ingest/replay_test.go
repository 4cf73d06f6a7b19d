package ingest_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/workspace"
)

// history publishes random events: changes, duplicates, deletions, complete and incomplete resyncs, a new
// cluster.
func (a *fakeAgent) history(random *rand.Rand, workspaces []workspace.Workspace) {
	a.t.Helper()
	version := 100
	for step := range 150 {
		a.now = a.now.Add(time.Second)
		ws := workspaces[random.IntN(len(workspaces))]
		version++
		s := running(ws, version)
		s.spec, s.available, s.template = random.IntN(2), random.IntN(2), 1
		switch random.IntN(12) {
		case 0:
			s.deleted = true
			a.reportsDeployment(s)
		case 1:
			s.version = max(1, s.version-1-random.IntN(40)) // late
			a.reportsDeployment(s)
		case 2:
			a.replicaSet(ws, version)
		case 3, 4:
			a.pod(ws, fmt.Sprintf("%s-%d", ws.Name, random.IntN(3)), version-random.IntN(3), func(p *events.ObservedPod) {
				if random.IntN(3) == 0 {
					p.Object.Verb = events.VerbDeleted
				}
				p.Containers = []events.ContainerState{
					{
						Name:   "c",
						State:  events.ContainerStatusWaiting,
						Reason: []string{"", "CrashLoopBackOff", "ErrImagePull"}[random.IntN(3)],
					},
				}
			})
		case 5:
			a.ticks()
		case 6:
			a.applies(ws.ID, 1+random.IntN(3))
		case 7:
			a.fails(ws.ID, 1+random.IntN(3))
		case 8:
			a.resync(random, fmt.Sprintf("r%d", step), version, workspaces)
		default:
			a.reportsDeployment(s)
		}
		if step == 110 {
			a.cluster, version = "cluster-2", 10
			a.resync(random, "new", version, workspaces)
		}
	}
}

func (a *fakeAgent) resync(random *rand.Rand, id string, version int, workspaces []workspace.Workspace) {
	a.t.Helper()
	members := workspaces[:random.IntN(len(workspaces)+1)]
	a.begins(id, "", len(members), version-5)
	for _, ws := range members {
		if random.IntN(20) > 0 {
			s := running(ws, max(1, version-5-random.IntN(5)))
			a.reportsDeployment(member(s, id))
		}
	}
	a.ends(id, len(members))
}

// derivedRows returns all rows that can be rebuilt, as text.
func (w *fixture) derivedRows() map[string][]string {
	w.t.Helper()
	out := map[string][]string{}
	for name, query := range map[string]string{
		"objects": `select o::text from observed_objects o order by agent_id, kind, namespace, name`,
		"resyncs": `select r::text from resyncs r order by resync_id`,
		"agents":  `select (id, ticked_at, last_seen_at, cluster_uid, epoch)::text from agents order by id`,
		"workspaces": `
			select (name, actual_state, reason, message, applied_revision, applied_at, apply_error_revision,
				apply_error_reason, termination, reconsider_at)::text
			from workspaces order by id`,
	} {
		rows, err := w.pool.Query(w.t.Context(), query)
		require.NoError(w.t, err)
		out[name], err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(w.t, err)
	}
	return out
}

// reset creates an empty database with the original workspaces.
func (w *fixture) reset(workspaces []workspace.Workspace) {
	w.t.Helper()
	w.open()
	w.tx(func(tx pgx.Tx) error {
		for _, ws := range workspaces {
			if err := w.insert(tx, ws); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestReplayIntoAnEmptyDatabaseGivesTheSameRows(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	workspaces := make([]workspace.Workspace, 0, 6)
	for i := range 6 {
		workspaces = append(workspaces, w.workspace(fmt.Sprintf("w%d", i)))
	}
	live := w.startConsumers(0)
	w.agent(7).history(rand.New(rand.NewPCG(seed(t), 1)), workspaces)
	w.caughtUp()
	live()
	want := w.derivedRows()
	require.NotEmpty(t, want["objects"])
	for name, batch := range map[string]int{"one by one": 1, "in small batches": 7, "all at once": 1000} {
		w.reset(workspaces)
		stop := w.startConsumers(batch)
		w.caughtUp()
		stop()
		require.Equal(t, want, w.derivedRows(), name)
	}
	require.Empty(t, w.deadLetterReasons())

	w.reset(workspaces)
	w.read()
	w.judgeAll()
	require.Equal(t, want, w.derivedRows(), "judged as late as possible")

	// Terminate the database sessions at several positions, also within a transaction.
	w.reset(workspaces)
	for _, at := range []uint64{20, 60, 61, 100} {
		stop := w.startConsumers(3)
		w.waitForCursor(topology.StreamObserved, func(sequence uint64) bool { return sequence >= at })
		w.exec(`select pg_terminate_backend(pid) from pg_stat_activity
			where pid <> pg_backend_pid() and datname = current_database()`)
		stop()
	}
	w.ingestAll()
	require.Equal(t, want, w.derivedRows(), "killed")
}

func TestConcurrentUsersAndStreamsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	workspaces := make([]workspace.Workspace, 0, 6)
	for i := range 6 {
		workspaces = append(workspaces, w.workspace(fmt.Sprintf("w%d", i)))
	}
	stop := w.startConsumers(5)
	var users errgroup.Group
	for user := range 3 {
		random := rand.New(rand.NewPCG(uint64(user), 2))
		users.Go(func() error {
			for range 60 {
				// Lock pairs in random order. The store locks in id order.
				a, b := workspaces[random.IntN(6)].ID, workspaces[random.IntN(6)].ID
				to := []workspace.DesiredState{
					workspace.DesiredRunning, workspace.DesiredStopped, workspace.DesiredRestartRequested,
				}[random.IntN(3)]
				err := postgres.InTx(t.Context(), w.pool, func(tx pgx.Tx) error {
					locked, err := w.workspaces.Lock(t.Context(), tx, []uuid.UUID{a, b})
					if err != nil {
						return err
					}
					for _, before := range locked {
						after, events, err := before.SetDesired(to, 9, start())
						if err != nil {
							return err
						}
						if err := w.save(tx, workspace.Update{Before: before, After: after, Events: events}); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	w.agent(7).history(rand.New(rand.NewPCG(3, 4)), workspaces)
	require.NoError(t, users.Wait())
	w.caughtUp()
	stop()
	require.Empty(t, w.logs.matching("deadlock"))
	require.Empty(t, w.logs.matching("consumer failed"))
	require.Empty(t, w.logs.matching("judge failed"))
	for _, ws := range workspaces {
		desired := w.published("desired.7." + ws.ID.String())
		revisions := make([]int64, 0, len(desired))
		for _, e := range desired {
			revisions = append(revisions, int64(e["desired_revision"].(float64)))
		}
		require.IsIncreasing(t, revisions, "each revision once, in order")
		require.Equal(t, w.get(ws.ID).DesiredRevision, revisions[len(revisions)-1])
	}
}
